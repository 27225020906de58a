# Copyright 2026 The modeling_ode_transformer authors. Licensed under the Apache License, Version 2.0.
"""English number names and their German ones: generated translation pairs, whose words have another order."""

import random
from pathlib import Path


ENGLISH = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen "
    "eighteen nineteen"
).split()
ENGLISH_TENS = "twenty thirty forty fifty sixty seventy eighty ninety".split()
GERMAN = (
    "null eins zwei drei vier fünf sechs sieben acht neun zehn elf zwölf dreizehn vierzehn fünfzehn sechzehn siebzehn "
    "achtzehn neunzehn"
).split()
GERMAN_TENS = "zwanzig dreißig vierzig fünfzig sechzig siebzig achtzig neunzig".split()


def english(number: int) -> str:
    """The English name of a whole number below a million: 421 is "four hundred twenty-one"."""
    for size, name in ((1000, "thousand"), (100, "hundred")):
        if number >= size:
            rest = number % size
            return f"{english(number // size)} {name}" + (f" {english(rest)}" if rest else "")
    if number < 20:
        return ENGLISH[number]
    tens, ones = divmod(number, 10)
    return ENGLISH_TENS[tens - 2] + (f"-{ENGLISH[ones]}" if ones else "")


def german(number: int, one: str = "eins") -> str:
    """The German name of a whole number below a million: 421 is "vierhunderteinundzwanzig"; `one` is that of a one at
    its end, "ein" before other words."""
    for size, name in ((1000, "tausend"), (100, "hundert")):
        if number >= size:
            rest = number % size
            return german(number // size, "ein") + name + (german(rest, one) if rest else "")
    if number < 20:
        return one if number == 1 else GERMAN[number]
    tens, ones = divmod(number, 10)
    return (f"{german(ones, 'ein')}und" if ones else "") + GERMAN_TENS[tens - 2]


def write_corpus(folder: Path, sizes: dict[str, int]) -> None:
    """Writes `{split}.en` and `{split}.de`: the names of random numbers, none of them twice, always the same ones."""
    folder.mkdir(parents=True, exist_ok=True)
    numbers = random.Random(0).sample(range(1_000_000), sum(sizes.values()))
    for split, size in sizes.items():
        drawn, numbers = numbers[:size], numbers[size:]
        for language, name in (("en", english), ("de", german)):
            text = "".join(f"{name(number)}\n" for number in drawn)
            (folder / f"{split}.{language}").write_text(text, encoding="utf-8", newline="\n")
