# Copyright 2026 The modeling_ode_transformer authors. Licensed under the Apache License, Version 2.0.
"""Options, declared once: a field of a dataclass says in `option` what its help, its range and its consequences are.
The command line, the checks of values and the comparison of runs are derived from that. Needs no torch."""

from argparse import ArgumentTypeError
from collections.abc import Mapping
from dataclasses import MISSING, Field, field, fields
from operator import ge, gt, le, lt
from types import UnionType
from typing import Any, get_args, get_origin, get_type_hints


# What an option can affect; the first is the default, so that what nobody declares is taken for a part of a training:
# - "training": what a model becomes;
# - "examples": which examples a training has and which are held out, by their number;
# - "files": where examples come from; runs are compared by the names and the contents of these;
# - "validation", "test": only how many examples of that split are used;
# - "result": which checkpoint is kept, and how outputs are made and scored;
# - "call": nothing that remains.
AFFECTS = ("training", "examples", "files", "validation", "test", "result", "call")
# The bounds of a number, in words.
BOUNDS = {"least": ("at least", ge), "most": ("at most", le), "above": ("above", gt), "below": ("less than", lt)}
# What the fields declare beside the arguments of `add_argument`, which are their metadata: transformers' parser passes
# all of these on.
DECLARED: dict[Field, dict[str, Any]] = {}


def true_or_false(text: str) -> bool:
    """For `type` of `add_argument`."""
    if text.lower() not in ("true", "false"):
        raise ArgumentTypeError(f"{text!r} must be true or false")
    return text.lower() == "true"


# What `add_argument` needs for an option that is true without a value, or takes true or false, so that one set in a
# recipe can be turned off.
FLAG: dict[str, Any] = {"nargs": "?", "const": True, "type": true_or_false, "metavar": "BOOL"}


def option(
    help: str,
    default: Any = None,
    affects: str = "training",
    default_factory: Any = MISSING,
    **metadata: Any,
) -> Any:
    """A field of a dataclass of options.

    Args:
        help: What `--help` says.
        default: The value if none is given; not with `default_factory`.
        affects: One of `AFFECTS`.
        default_factory: As of `dataclasses.field`.
        metadata: Bounds of a number by the names in `BOUNDS`; the `group` of the option in `--help`; `aliases`; and
            further arguments of `add_argument`, such as `choices`.
    """
    if affects not in AFFECTS:
        raise ValueError(f"affects={affects!r} must be one of {', '.join(AFFECTS)}.")
    own = {name: metadata.pop(name) for name in ("group", *BOUNDS) if name in metadata}
    defaults = {"default": default} if default_factory is MISSING else {"default_factory": default_factory}
    made: Any = field(**defaults, metadata={"help": help, **metadata})
    DECLARED[made] = {"affects": affects, **own}
    return made


def declarations(*owners: type) -> dict[str, dict[str, Any]]:
    """What dataclasses declare of their fields, by name; nothing of those that `option` did not make."""
    return {each.name: DECLARED.get(each, {}) for owner in owners for each in fields(owner)}


def check_ranges(values: Mapping[str, Any], declared: Mapping[str, Mapping]) -> None:
    """Raises a ValueError if a number, of the values by name, is out of its declared range."""
    for name, value in values.items():
        if name not in declared or isinstance(value, bool) or not isinstance(value, (int, float)):
            continue
        for bound in (bound for bound in BOUNDS if bound in declared[name]):
            words, holds = BOUNDS[bound]
            if not holds(value, declared[name][bound]):
                raise ValueError(f"--{name} {value} must be {words} {declared[name][bound]}, or left out.")


def add_options(parser: Any, owner: type, without: str | None = None) -> None:
    """Adds the fields of a dataclass of options, except `without`, to an `ArgumentParser`, in their groups."""
    groups: dict[str | None, Any] = {None: parser}
    hints = get_type_hints(owner)
    for each in (each for each in fields(owner) if each.name != without):
        settings, title, kind = dict(each.metadata), DECLARED[each].get("group"), hints[each.name]
        if title not in groups:
            groups[title] = parser.add_argument_group(title)
        default = each.default if each.default_factory is MISSING else each.default_factory()
        kinds = [one for one in (get_args(kind) if isinstance(kind, UnionType) else (kind,)) if one is not type(None)]
        if kinds == [bool]:
            settings |= FLAG
        elif get_origin(kinds[0]) is list:
            settings |= {"nargs": "+"}
        elif kinds[0] is not str:
            settings |= {"type": kinds[0]}
        if "default:" not in settings["help"] and default not in (None, []):
            settings["help"] += f"; default: {str(default).lower() if kinds == [bool] else default}"
        groups[title].add_argument(f"--{each.name}", default=default, **settings)
