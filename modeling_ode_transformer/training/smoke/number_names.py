# Copyright 2026 The modeling_ode_transformer authors. Licensed under the Apache License, Version 2.0.
"""English number names and their German ones: generated translation pairs, whose words have another order."""

import random
from pathlib import Path


ENGLISH_BELOW_20 = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen "
    "eighteen nineteen"
).split()
ENGLISH_TENS = "twenty thirty forty fifty sixty seventy eighty ninety".split()
GERMAN_BELOW_20 = (
    "null ein zwei drei vier fünf sechs sieben acht neun zehn elf zwölf dreizehn vierzehn fünfzehn sechzehn siebzehn "
    "achtzehn neunzehn"
).split()
GERMAN_TENS = "zwanzig dreißig vierzig fünfzig sechzig siebzig achtzig neunzig".split()


def english(number: int) -> str:
    """The English name of a whole number below a million: 421 is "four hundred twenty-one"."""
    thousands, number = split_thousands(number)
    words = [english_below_1000(thousands), "thousand"] if thousands else []
    if number or not thousands:
        words.append(english_below_1000(number) or "zero")
    return " ".join(words)


def english_below_1000(number: int) -> str:
    hundreds, rest = divmod(number, 100)
    words = [ENGLISH_BELOW_20[hundreds], "hundred"] if hundreds else []
    if rest >= 20:
        tens, ones = divmod(rest, 10)
        words.append(ENGLISH_TENS[tens - 2] + (f"-{ENGLISH_BELOW_20[ones]}" if ones else ""))
    elif rest:
        words.append(ENGLISH_BELOW_20[rest])
    return " ".join(words)


def german(number: int) -> str:
    """The German name of a whole number below a million: 421 is "vierhunderteinundzwanzig"."""
    thousands, number = split_thousands(number)
    name = german_below_1000(thousands, one="ein") + "tausend" if thousands else ""
    return name + german_below_1000(number, one="eins") or "null"


def german_below_1000(number: int, one: str) -> str:
    """The name, "" for 0; a one at the end is "eins", but "ein" where "tausend" follows."""
    hundreds, rest = divmod(number, 100)
    name = GERMAN_BELOW_20[hundreds] + "hundert" if hundreds else ""
    if rest >= 20:
        tens, ones = divmod(rest, 10)
        return name + (f"{GERMAN_BELOW_20[ones]}und" if ones else "") + GERMAN_TENS[tens - 2]
    if rest == 1:
        return name + one
    return name + (GERMAN_BELOW_20[rest] if rest else "")


def split_thousands(number: int) -> tuple[int, int]:
    if not 0 <= number < 1_000_000:
        raise ValueError(f"Only numbers from 0 to 999,999 are named here, not {number}.")
    return divmod(number, 1_000)


def write_corpus(folder: Path, sizes: dict[str, int]) -> None:
    """Writes `{split}.en` and `{split}.de`: the names of random numbers, none of them twice, always the same ones."""
    folder.mkdir(parents=True, exist_ok=True)
    numbers = random.Random(0).sample(range(1_000_000), sum(sizes.values()))
    for split, size in sizes.items():
        drawn, numbers = numbers[:size], numbers[size:]
        for language, name in (("en", english), ("de", german)):
            text = "".join(f"{name(number)}\n" for number in drawn)
            (folder / f"{split}.{language}").write_text(text, encoding="utf-8", newline="\n")
