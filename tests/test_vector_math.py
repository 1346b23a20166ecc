"""The functions of torchgraft/vector_math.h keep their stated errors, and for_each_element computes any dtype."""

import math
import re
import runpy
from types import SimpleNamespace

import pytest
import torch

from test_docs import ROOT
from torchgraft import load_inline

measured = SimpleNamespace(**runpy.run_path(str(ROOT / "benchmarks/vector_math.py")))
HEADER = (ROOT / "src/torchgraft/include/torchgraft/vector_math.h").read_text()
STATED = re.compile(
    r"// Error in ulp: ([\d.]+) float, ([\d.]+) double\.\n.*\nTORCHGRAFT_INLINE accumulate_t<T> (\w+)\(", re.MULTILINE
)
BOUNDS = {name: (float(single), float(double)) for single, double, name in STATED.findall(HEADER)}
LEVELS = measured.levels()
INF, NAN = math.inf, math.nan
# What a function gives at its limits, and where it is zero: exactly, with the sign of zero.
LIMITS = {
    "exp": [(-INF, 0.0), (INF, INF), (0.0, 1.0), (-0.0, 1.0), (-1e30, 0.0), (1e30, INF)],
    "expm1": [(-INF, -1.0), (INF, INF), (0.0, 0.0), (-0.0, -0.0), (-1e30, -1.0), (1e30, INF)],
    "log": [(-INF, NAN), (INF, INF), (0.0, -INF), (-0.0, -INF), (-1e-30, NAN), (1.0, 0.0)],
    "log1p": [(-INF, NAN), (INF, INF), (0.0, 0.0), (-0.0, -0.0), (-1.0, -INF), (-1.5, NAN)],
    "tanh": [(-INF, -1.0), (INF, 1.0), (0.0, 0.0), (-0.0, -0.0), (-1e30, -1.0), (1e30, 1.0)],
    "sigmoid": [(-INF, 0.0), (INF, 1.0), (0.0, 0.5), (-0.0, 0.5), (-1e30, 0.0), (1e30, 1.0)],
    "erf": [(-INF, -1.0), (INF, 1.0), (0.0, 0.0), (-0.0, -0.0), (-1e30, -1.0), (1e30, 1.0)],
}
RANGES = {"exp": (0, INF), "expm1": (-1, INF), "tanh": (-1, 1), "sigmoid": (0, 1), "erf": (-1, 1)}
ODD = ("tanh", "erf")


def test_each_function_states_its_errors():
    assert tuple(BOUNDS) == measured.FUNCTIONS


def test_this_machine_measures_several_instruction_sets():
    assert {"baseline", "scalar"} <= set(LEVELS) <= set(measured.LEVELS)


@pytest.mark.parametrize("name", measured.FUNCTIONS)
def test_no_float_has_a_larger_error_than_stated(name):
    found = measured.largest_error(name, measured.all_floats(step=8191), LEVELS)
    assert {level: error for level, (error, _) in found.items() if not 0.4 < error <= BOUNDS[name][0]} == {}


@pytest.mark.parametrize("name", measured.FUNCTIONS)
def test_no_double_has_a_larger_error_than_stated(name):
    found = measured.largest_error(name, measured.drawn_doubles(60_000, seed=1), LEVELS)
    assert {level: error for level, (error, _) in found.items() if not 0.4 < error <= BOUNDS[name][1]} == {}


@pytest.mark.parametrize("level", [*LEVELS, "elements"])
@pytest.mark.parametrize("dtype", measured.DTYPES)
@pytest.mark.parametrize("name", measured.FUNCTIONS)
def test_limits_and_zeros_are_exact(name, dtype, level):
    input, expected = torch.tensor([*LIMITS[name], (NAN, NAN), (-NAN, NAN)], dtype=dtype).unbind(1)
    found = measured.values(name, level, input)
    torch.testing.assert_close(found, expected, rtol=0, atol=0, equal_nan=True)
    is_number = ~expected.isnan()
    assert torch.equal(found.signbit()[is_number], expected.signbit()[is_number])


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("name", RANGES)
def test_a_function_never_passes_its_limits(name, level):
    for input in (torch.linspace(-120, 120, 400_001), torch.linspace(-800, 800, 200_001, dtype=torch.float64)):
        found = measured.values(name, level, input)
        least, most = RANGES[name]
        assert (found >= least).all()
        assert (found <= most).all()


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("name", ODD)
def test_an_odd_function_of_the_negative_number_has_the_same_bits(name, level):
    for dtype in measured.DTYPES:
        input = torch.logspace(-40, 2, 10_001, dtype=dtype)
        assert torch.equal(measured.values(name, level, -input), -measured.values(name, level, input))


def test_the_measure_finds_a_wrong_value():
    """The error of a neighbour is one ulp more; NaN for a number and a number for NaN are infinitely wrong."""
    input = torch.tensor([1.0, 1.0, -1.0, 100.0])
    exact = torch.tensor([math.e, math.e, 1 / math.e, INF])
    wrong = torch.tensor([math.e + 2**-22 * 3, NAN, 1 / math.e, torch.finfo(torch.float32).max])
    ((none, _), (most, at)) = measured.errors("exp", input, [exact, wrong])
    assert none <= 0.5
    assert (most, at) == (INF, 1.0)
    ((three, at),) = measured.errors("exp", input[:1], [wrong[:1]])
    assert 2.5 < three < 3.5
    assert at == 1
    assert measured.errors("log", torch.tensor([-1.0]), [torch.tensor([1.0])])[0][0] == INF


SUBNORMAL = {"exp": -100.0, "sigmoid": -100.0, "expm1": 1e-42, "tanh": -1e-42, "erf": 1e-42, "log1p": 1e-42}


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("name", SUBNORMAL)
def test_a_subnormal_result_is_no_zero(name, level):
    found = measured.values(name, level, torch.tensor([SUBNORMAL[name]])).item()
    exact = getattr(torch, name)(torch.tensor([SUBNORMAL[name]], dtype=torch.float64)).item()
    assert 0 < abs(exact) < torch.finfo(torch.float32).tiny
    assert abs(found - exact) <= 2**-149


# The whole range of each half type: 65,536 numbers.
ALL_HALVES = torch.arange(-(1 << 15), 1 << 15).to(torch.int16)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("name", measured.FUNCTIONS)
def test_half_types_are_computed_in_float_and_rounded_once(name, dtype):
    input = ALL_HALVES.view(dtype)
    found = measured.values(name, "elements", input)
    expected = measured.values(name, "elements", input.float()).to(dtype)
    torch.testing.assert_close(found, expected, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("dtype", [*measured.DTYPES, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("name", measured.FUNCTIONS)
def test_an_element_has_the_same_bits_wherever_it_lies(name, dtype):
    """Whole vectors, a part of one, and each element alone."""
    input = torch.linspace(-3, 9, 83, dtype=torch.float64).to(dtype)
    whole = measured.values(name, "elements", input)
    for first, count in [(0, 1), (1, 15), (2, 16), (3, 17), (5, 33), (7, 64), (82, 1)]:
        part = measured.values(name, "elements", input[first : first + count].clone())
        torch.testing.assert_close(part, whole[first : first + count], rtol=0, atol=0, equal_nan=True)


# Several rows to read and to write, of different dtypes; a function that branches, and one that no compiler vectorizes.
ROWS = """
#include <torchgraft/elementwise.h>

std::tuple<Tensor, Tensor> rows_cpu(Tensor first, Tensor second) {
  const Tensor left = to_contiguous(first), right = to_contiguous(second);
  Tensor sums = empty_as(left), products = empty_as(right);
  dispatch_floating(left.scalar_type(), "rows", [&](auto tag) {
    using T = typename decltype(tag)::type;
    T* const all = mutable_data_of<T>(sums);
    for_each_element(
        left.numel(),
        [](auto a, float b, auto& sum, float& product) {
          if (a > b) sum = a + b;
          product = static_cast<float>(std::lgamma(a)) * b;
        },
        data_of<T>(left), data_of<float>(right), all, mutable_data_of<float>(products));
    // In place: the row that is read is the row that is written.
    for_each_element(left.numel(), [](auto a, auto& twice) { twice = a + a; }, static_cast<const T*>(all), all);
  });
  return {sums, products};
}
"""


@pytest.fixture(scope="module")
def rows():
    return load_inline(
        "vector_math::rows(Tensor first, Tensor second) -> (Tensor, Tensor)",
        reference=lambda first, second: (first.clone(), second.clone()),
        cpu=ROWS,
    ).raw


DTYPES = (torch.float64, torch.float32, torch.float16, torch.bfloat16)


@pytest.mark.parametrize("count", [0, 1, 7, 16, 37])
@pytest.mark.parametrize("dtype", DTYPES)
def test_rows_of_several_dtypes_go_together(rows, dtype, count):
    generator = torch.Generator().manual_seed(count)
    left, right = torch.randn(count, generator=generator).to(dtype), torch.randn(count, generator=generator)
    wide = left.to(torch.promote_types(dtype, torch.float32))
    sums, products = rows(left, right)
    # A sum that the function does not write is zero.
    torch.testing.assert_close(sums, torch.where(wide > right, wide + right, 0).to(dtype) * 2)
    torch.testing.assert_close(products, torch.lgamma(wide).float() * right)
