# Copyright 2026 The modeling_ode_transformer authors. Licensed under the Apache License, Version 2.0.
"""Derive the accelerated Runge-Kutta method of CSAARK (eqs. 9-10 of the CSAODE paper) from its order conditions.

    python accelerated_runge_kutta.py

needs sympy, which PyTorch installs. The method (Udwadia and Farahani, 2008) has the stages of this step, `Z_i`, and of
the step before, `Z_-i`:

    Z_1 = r F(G)    Z_2 = r F(G + a_2 Z_1)    Z_3 = r F(G + a_3 Z_2)
    G(t + r) = c_0 G(t) - c_-0 G(t - r) + c_1 Z_1 - c_-1 Z_-1 + c_2 (Z_2 - Z_-2) + c_3 (Z_3 - Z_-3)

So a step evaluates F three times; RK4 evaluates it four times. Equation 10 as printed multiplies by r twice,
`a_j r Z_{j-1}` with an r in `Z_{j-1}`. With constant coefficients, that form has order 3 only for c_-0 = -5, which is
not stable. It never has order 4, which requires c_-0 = -1. Its `Z_-j` belong to time t_{i-1}, not to the printed t_i;
this does not matter, since F does not depend on time.

The expanded equation is autonomous, `G' = F(G)`. Along the solution, a stage is a sum of elementary differentials of
order 1 (F), 2 (F'F), 3 (F''FF and F'F'F) and 4 (F'''FFF, F''(F,F'F), F'F''FF and F'F'F'F).
"""

import sympy


# The derivative along the solution of each elementary differential of order below 4.
DERIVATIVES = {
    "F": {"F'F": 1},
    "F'F": {"F''FF": 1, "F'F'F": 1},
    "F''FF": {"F'''FFF": 1, "F''(F,F'F)": 2},
    "F'F'F": {"F''(F,F'F)": 1, "F'F''FF": 1, "F'F'F'F": 1},
}
ORDERS = {
    1: ("F",),
    2: ("F'F",),
    3: ("F''FF", "F'F'F"),
    4: ("F'''FFF", "F''(F,F'F)", "F'F''FF", "F'F'F'F"),
}
DIFFERENTIALS = [name for names in ORDERS.values() for name in names]

Series = dict[str, sympy.Expr]


def add(*terms: tuple[sympy.Expr, Series]) -> Series:
    """The sum of series, each times a factor."""
    return {name: sum(factor * series.get(name, 0) for factor, series in terms) for name in DIFFERENTIALS}


def derivative(series: Series) -> Series:
    """r d/dt of a series, up to order 4."""
    return add(*((factor, DERIVATIVES[name]) for name, factor in series.items() if name in DERIVATIVES))


def shifted(series: Series, steps: int) -> Series:
    """A series at time t + `steps` r, in differentials at time t."""
    terms, current = [(sympy.Integer(1), series)], series
    for order in range(1, 4):
        current = derivative(current)
        terms.append((sympy.Rational(steps**order, sympy.factorial(order)), current))
    return add(*terms)


def stage(inner: Series) -> Series:
    """r F(G + inner), by Taylor's theorem."""
    first, second, third, fourth = (sympy.sympify(inner.get(name, 0)) for name in DIFFERENTIALS[:4])
    powers = (sympy.Integer(1), first, first**2 / 2, second, first**3 / 6, first * second, third, fourth)
    return dict(zip(DIFFERENTIALS, powers))


def chain(*a: sympy.Expr) -> list[Series]:
    """Stages that each start from the one before: at G, G + a_2 Z_1, G + a_3 Z_2, ..."""
    stages = [stage({})]
    for factor in a:
        stages.append(stage(add((factor, stages[-1]))))
    return stages


def exact(steps: int) -> Series:
    """The series of G(t + steps r) - G(t)."""
    current, terms = {"F": sympy.Integer(1)}, []
    for order in range(1, 5):
        terms.append((sympy.Rational(steps**order, sympy.factorial(order)), current))
        current = derivative(current)
    return add(*terms)


a_2, a_3, c_1, c_2, c_3, c_back_0, c_back_1 = sympy.symbols("a_2 a_3 c_1 c_2 c_3 c_-0 c_-1")


def order_conditions() -> dict[int, list[sympy.Expr]]:
    """By order, the expressions that vanish for a method of that order. c_0 = 1 + c_-0 is the condition of order 0."""
    here = chain(a_2, a_3)
    before = [shifted(each, -1) for each in here]
    step = add(
        (-c_back_0, exact(-1)),
        *zip((c_1, c_2, c_3), here),
        *zip((-c_back_1, -c_2, -c_3), before),
        (sympy.Integer(-1), exact(1)),
    )
    return {order: [sympy.expand(step[name]) for name in names] for order, names in ORDERS.items()}


def family() -> dict[sympy.Symbol, sympy.Expr]:
    """All methods of order 4: two numbers, a_2 and c_-0, are free."""
    conditions = [condition for each in order_conditions().values() for condition in each]
    (solution,) = sympy.solve(conditions, (c_1, c_2, c_3, c_back_1, a_3), dict=True)
    return {symbol: sympy.factor(value) for symbol, value in solution.items()}


def start(method: dict[sympy.Symbol, sympy.Rational]) -> list[sympy.Rational]:
    """The weights of the four stages of the classical RK4 whose sum is Z_3 to O(r^4)."""
    half = sympy.Rational(1, 2)
    stages = chain(half, half, 1)
    third = chain(method[a_2], method[a_3])[2]
    weights = sympy.symbols("d_1:5")
    conditions = [sum(w * s[name] for w, s in zip(weights, stages)) - third[name] for name in DIFFERENTIALS[:4]]
    (solution,) = sympy.linsolve(conditions, *weights)
    return list(solution)


def method(**free: sympy.Rational) -> dict[sympy.Symbol, sympy.Rational]:
    """The member of the family with the given `a_2` and `c_back_0`."""
    values = {a_2: free["a_2"], c_back_0: free["c_back_0"]}
    return values | {symbol: value.subs(values) for symbol, value in family().items()}


def main() -> None:
    print("Order conditions (each is 0):")
    for order, conditions in order_conditions().items():
        # Several trees give the same condition: a method with paired stages has fewer conditions.
        for condition in dict.fromkeys(sympy.factor(each) for each in conditions):
            print(f"  {order}: {condition}")
    print("All methods of order 4, for any a_2 and c_-0 (stable as r goes to 0 if -1 <= c_-0 < 1):")
    solution = family()
    for symbol in (a_3, c_3, c_2, c_back_1, c_1):
        print(f"  {symbol} = {solution[symbol]}")
    chosen = method(a_2=sympy.Rational(1, 2), c_back_0=sympy.Integer(0))
    print("CSAARK's: c_-0 = 0, so that no error of the step before is carried on, and a_2 = 1/2, RK4's second stage:")
    print("  " + ", ".join(f"{symbol} = {chosen[symbol]}" for symbol in (a_2, a_3, c_1, c_2, c_3, c_back_0, c_back_1)))
    print("The Z_3 of the first step, which RK4 makes, to O(r^4):")
    print("  " + " + ".join(f"({weight}) Z_{i}" for i, weight in enumerate(start(chosen), 1)))
    # With this chain, the stages of a four-stage method of order 4 could be used without a combination.
    unstable = sympy.solve(sympy.Eq(solution[a_3], 3 * a_2 - 4 * a_2**2), c_back_0)
    print(f"A first step of order 4 that has Z_2 and Z_3 themselves needs c_-0 = {unstable}, which is not stable.")


if __name__ == "__main__":
    main()
