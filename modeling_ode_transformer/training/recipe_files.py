# Copyright 2026 The modeling_ode_transformer authors. Licensed under the Apache License, Version 2.0.
"""The recipes that come with the package, by their names; without torch, so that a wrong name is an error at once."""

from argparse import ArgumentParser
from collections.abc import Collection
from pathlib import Path

from ..text_files import read_json


RECIPES = Path(__file__).with_name("recipes")
RUNS_CODE = ("trust_remote_code", "import_schemes", "metrics")


def recipe_of(argv: list[str]) -> tuple[str | None, list[str]]:
    """The recipe that a command line names, if any, and the other arguments; ValueError if it names two."""
    parser = ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--recipe", action="append", default=[])
    asked, rest = parser.parse_known_args(argv)
    names = asked.recipe
    if rest and rest[0].endswith(".json"):
        names, rest = [rest[0], *names], rest[1:]
    if len(names) > 1:
        raise ValueError(f"More than one recipe is given ({' and '.join(names)}): give one.")
    return (names[0] if names else None), rest


def recipe_file(name: str) -> Path:
    """The file of a recipe: the package's of that name, or a path that ends in `.json`; ValueError, which lists the
    names, if there is none of that name."""
    if name.endswith(".json"):
        return Path(name)
    if name not in recipe_names():
        raise ValueError(
            f"There is no recipe {name}, only {', '.join(recipe_names())}. The name of a recipe file must end in "
            ".json."
        )
    return RECIPES / f"{name}.json"


def read_recipe(file: str | Path, known: Collection[str]) -> dict:
    """The arguments in a recipe, by name.

    Raises:
        ValueError: it is not a JSON object, holds unknown arguments, or gives one that runs code.
        FileNotFoundError: there is no such file.
    """
    recipe = read_json(file)
    for name in RUNS_CODE:
        if recipe.get(name):
            raise ValueError(f"{file} gives {name}, which runs code: that can be asked for only on the command line.")
    if unknown := sorted(recipe.keys() - known):
        raise ValueError(f"{file} holds unknown arguments: {', '.join(unknown)} (--help lists the known ones).")
    return recipe


def recipe_names() -> list[str]:
    """The names of the recipes that come with the package."""
    return sorted(path.stem for path in RECIPES.glob("*.json"))
