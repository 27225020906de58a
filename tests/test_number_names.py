# Copyright 2026 The modeling_ode_transformer authors. Licensed under the Apache License, Version 2.0.
"""The generated pairs of the quickstart, which many tests train on."""

import number_names
import pytest


@pytest.mark.parametrize(
    "number, english, german",
    [
        (0, "zero", "null"),
        (101, "one hundred one", "einhunderteins"),
        (1017, "one thousand seventeen", "eintausendsiebzehn"),
        (
            421_735,
            "four hundred twenty-one thousand seven hundred thirty-five",
            "vierhunderteinundzwanzigtausendsiebenhundertfünfunddreißig",
        ),
    ],
)
def test_number_names(number, english, german):
    assert number_names.english(number) == english
    assert number_names.german(number) == german
