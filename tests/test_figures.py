"""Figures in files of JSON, which people read and compare line by line."""

import json
import math

import pytest

from torchgraft.machine.figures import as_json


def test_each_row_takes_a_line():
    figures = {"chip": {"name": "a", "clocks": [1, 2]}, "rows": [{"n": 1, "times": [1.5, 2.5]}, {"n": 2, "times": []}]}
    assert as_json(figures) == (
        '{\n "chip": {"name": "a", "clocks": [1, 2]},\n "rows": [\n'
        '  {"n": 1, "times": [1.5, 2.5]},\n  {"n": 2, "times": []}\n ]\n}\n'
    )


@pytest.mark.parametrize(
    "figures",
    [
        {},
        [],
        {"rows": []},
        [[1, 2], [3]],
        {"of": {"shift": {"rows": [{"a": {"b": [{"c": 1}]}}]}}},
        [{"a": None}, {"b": "ü\n"}],
        {"parts": [{"name": "x", "rows": [{"y": True}]}]},
    ],
)
def test_they_can_be_read_again(figures):
    assert json.loads(as_json(figures)) == figures


def test_what_json_does_not_have_is_null():
    assert json.loads(as_json({"a": math.nan, "b": (math.inf, 1.0), 3: -math.inf})) == {
        "a": None,
        "b": [None, 1.0],
        "3": None,
    }
