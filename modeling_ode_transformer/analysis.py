# Copyright 2026 The modeling_ode_transformer authors. Licensed under the Apache License, Version 2.0.
"""The analysis of a scheme: its order, and the order conditions that it fulfils and violates."""

import math
from collections.abc import Sequence
from functools import cache
from itertools import combinations_with_replacement
from operator import mul
from typing import NamedTuple

from .integration_ode_transformer import TOLERANCE, ButcherTableau


class OrderCondition(NamedTuple):
    """The condition of one rooted tree for schemes of order `order`: `value` equals `required`."""

    order: int
    tree: str
    value: float
    required: float

    @property
    def holds(self) -> bool:
        """Whether both are equal within `TOLERANCE`."""
        return abs(self.value - self.required) < TOLERANCE


# A rooted tree is the tuple of its root's subtrees; a single node is ().
Tree = tuple["Tree", ...]


@cache
def rooted_trees(order: int) -> tuple[Tree, ...]:
    """All rooted trees of `order` nodes: 1, 1, 2, 4, 9, 20, ... of them."""

    def forests(nodes: int, largest: int) -> list[Tree]:
        if nodes == 0:
            return [()]
        return [
            (*trees, *rest)
            for size in range(min(nodes, largest), 0, -1)
            for count in range(1, nodes // size + 1)
            for trees in combinations_with_replacement(rooted_trees(size), count)
            for rest in forests(nodes - count * size, size - 1)
        ]

    return tuple(forests(order - 1, order - 1))


def tree_size(tree: Tree) -> int:
    return 1 + sum(map(tree_size, tree))


def tree_density(tree: Tree) -> int:
    return tree_size(tree) * math.prod(map(tree_density, tree))


def conditions_of_order(tableau: ButcherTableau, order: int) -> list[OrderCondition]:
    """The conditions of rooted trees of `order` nodes.

    Raises:
        ValueError: a stage does not start from the whole state, so that it is not a Runge-Kutta scheme.
    """
    if not tableau.is_runge_kutta:
        raise ValueError(f"y={tableau.y} is not all ones: order conditions apply only to Runge-Kutta schemes.")

    def dot(left: Sequence[float], right: Sequence[float]) -> float:
        return sum(map(mul, left, right))

    @cache
    def elementary_weights(tree: Tree) -> list[float]:
        branches = [elementary_weights(branch) for branch in tree]
        return [math.prod(dot(row, weights) for weights in branches) for row in tableau.a]

    def spelled(tree: Tree) -> str:
        return f"[{''.join(map(spelled, tree))}]" if tree else "t"

    return [
        OrderCondition(order, spelled(tree), dot(tableau.b, elementary_weights(tree)), 1 / tree_density(tree))
        for tree in rooted_trees(order)
    ]


def order_conditions(tableau: ButcherTableau, max_order: int | None = None) -> list[OrderCondition]:
    """The order conditions up to `max_order` (None: the number of stages, which bounds the order of an explicit
    scheme): one for each rooted tree `t`, `sum_i b_i Phi_i(t) = 1 / gamma(t)` (Butcher, 1963).

    Raises:
        ValueError: a stage does not start from the whole state, so that it is not a Runge-Kutta scheme.
    """
    last = tableau.num_stages if max_order is None else max_order
    return [condition for order in range(1, last + 1) for condition in conditions_of_order(tableau, order)]


def order_of(tableau: ButcherTableau) -> int:
    """The order of the scheme with these weights: the error of a step of size h is O(h ** (order + 1)).

    Raises:
        ValueError: it is not a Runge-Kutta scheme.
    """
    order = 0
    while order < tableau.num_stages and all(each.holds for each in conditions_of_order(tableau, order + 1)):
        order += 1
    return order


def report(tableau: ButcherTableau) -> str:
    """Describes the order and the order conditions as text, up to one order more than the scheme has.

    Raises:
        ValueError: it is not a Runge-Kutta scheme.
    """
    order = order_of(tableau)
    lines = [f"order {order}, {tableau.num_stages} evaluations"]
    for condition in order_conditions(tableau, order + 1):
        verdict = "holds" if condition.holds else f"violated: {condition.value:.6g}"
        lines.append(f"  order {condition.order}  {condition.tree:12} = {condition.required:.6g}  {verdict}")
    return "\n".join(lines)
