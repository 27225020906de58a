# Copyright 2026 The modeling_ode_transformer authors. Licensed under the Apache License, Version 2.0.
"""Generated articles, of which the summaries repeat three facts."""

import json
import random
from pathlib import Path


NAMES = "Adams Baker Carter Davis Evans Foster Green Harris".split()
PLACES = "Athens Berlin Cairo Dublin Florence Geneva Hanoi Istanbul".split()
EVENTS = "a bridge, a library, a museum, a school, a station, a theatre".split(", ")
FILLERS = (
    "The weather was fine on that day and many people came to see it .",
    "A band played for an hour before the first guests left the place .",
    "Reporters were told that more news would follow in the next week .",
    "Some of the neighbours said that they had never heard of the plan .",
)


def write_corpus(folder: Path, sizes: dict[str, int]) -> None:
    """Writes `{split}.jsonl`: articles with their summaries ("highlights"), always the same ones."""
    draw = random.Random(0)
    for split, size in sizes.items():
        lines = []
        for _ in range(size):
            name, place, event = draw.choice(NAMES), draw.choice(PLACES), draw.choice(EVENTS)
            cost, year = draw.randrange(2, 100), draw.randrange(1990, 2030)
            facts = [f"{name} opened {event} in {place} ."]
            facts += [f"It cost {cost} million dollars .", f"It began in {year} ."]
            article = [facts[0], *draw.sample(FILLERS, 2), facts[1], *draw.sample(FILLERS, 2), facts[2]]
            lines.append(json.dumps({"article": " ".join(article), "highlights": "\n".join(facts)}))
        (folder / f"{split}.jsonl").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
