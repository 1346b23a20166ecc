"""What torchgraft's headers give an author: pointers of the right type, rows of any tensor, sums of the same bits."""

import functools
import math

import pytest
import torch

import torchgraft
from torchgraft import load_inline

# One library, as each compiles for seconds: what an operator does, `which` says.
TEXT = """
TORCHGRAFT_CLONES double add_up(const float* from, int64_t count) {
  return sum_of<float>(count, [&](int64_t i) { return from[i]; });
}

Tensor helpers_cpu(Tensor input, Text which, int64_t kept) {
  if (which == "as double") data_of<double>(input, "input");
  if (which == "as int to write") mutable_data_of<int>(input, "input");
  Tensor output = empty_contiguous({which == "sum_rows" ? rows_of(input, "input", kept).columns : 3}, input);
  float* to = mutable_data_of<float>(output);
  if (which == "rows_of") {
    const Rows rows = rows_of(input, "input", kept);
    const float first = rows.is_empty() ? -1 : data_of<float>(rows.tensor)[rows.count * rows.columns - 1];
    to[0] = static_cast<float>(rows.count), to[1] = static_cast<float>(rows.columns), to[2] = first;
  }
  if (which == "sum_rows") {
    const Rows rows = rows_of(input, "input", kept);
    const float* from = data_of<float>(rows.tensor);
    sum_rows<float>(rows.count, rows.columns, 1, to, [&](int64_t first, int64_t last, float* sums) {
      for (int64_t row = first; row < last; ++row) {
        for (int64_t c = 0; c < rows.columns; ++c) sums[c] += from[row * rows.columns + c];
      }
    });
  }
  if (which == "sum_of") to[0] = static_cast<float>(add_up(data_of<float>(input), input.numel()));
  return output;
}
"""


@pytest.fixture(scope="module")
def helpers():
    operator = load_inline(
        "helpers::helpers(Tensor input, str which, int kept=1) -> Tensor",
        reference=lambda input, which, kept: input.new_empty(3),
        output=lambda input, which, kept: input.new_empty(math.prod(input.shape[-kept:]) if which == "sum_rows" else 3),
        cpu=TEXT,
    )
    yield torch.ops.helpers.helpers
    assert operator.name == "helpers"


@pytest.mark.parametrize(
    ("which", "dtype", "message"),
    [
        ("as double", torch.float32, "input is float32, but the kernel reads it as float64"),
        ("as double", torch.bfloat16, "input is bfloat16, but the kernel reads it as float64"),
        ("as int to write", torch.int64, "input is int64, but the kernel reads it as int32"),
        ("sum_of", torch.float16, "a result is float16, but the kernel reads it as float32"),
        ("sum_of", torch.complex64, "a result is ComplexFloat, but the kernel reads it as float32"),
    ],
)
def test_a_pointer_of_another_type_than_the_tensors_is_refused(helpers, which, dtype, message):
    with pytest.raises(RuntimeError, match=message):
        helpers(torch.ones(2, dtype=dtype), which)


@pytest.mark.parametrize(
    ("shape", "kept", "found"),
    [
        ((4,), 1, (1, 4)),
        ((2, 3, 5), 1, (6, 5)),
        ((2, 3, 5), 2, (2, 15)),
        ((2, 3, 5), 3, (1, 30)),
        ((2, 3), 0, (6, 1)),
        ((), 0, (1, 1)),
        ((3, 0), 1, (3, 0)),
        ((0, 3), 1, (0, 3)),
        ((0,), 1, (1, 0)),
    ],
)
@pytest.mark.parametrize("layout", ["contiguous", "turned"])
def test_rows_are_the_first_dimensions_and_columns_the_last(helpers, shape, kept, found, layout):
    input = torch.arange(math.prod(shape), dtype=torch.float32).reshape(shape)
    if layout == "turned":
        input = input.mT.contiguous().mT if input.dim() > 1 else input.repeat_interleave(2)[::2].reshape(shape)
    last = math.prod(shape) - 1
    assert helpers(input, "rows_of", kept).tolist() == [*found, last]


def test_rows_that_are_none_are_refused(helpers):
    with pytest.raises(RuntimeError, match="input must have at least 1 dimension, got 0"):
        helpers(torch.ones(()), "rows_of")
    with pytest.raises(RuntimeError, match="input must have at least 3 dimensions, got 2"):
        helpers(torch.ones(2, 2), "rows_of", 3)
    with pytest.raises(RuntimeError, match="input is too large: it overflows 64 bits"):
        helpers(torch.empty(0).as_strided((0, 2**40, 2**40), (0, 0, 1)), "rows_of", 2)
    freed = torch.ones(4, 4)
    freed.untyped_storage().resize_(0)
    with pytest.raises(RuntimeError, match="input needs a storage of 64 bytes, and its storage has 0"):
        helpers(freed, "rows_of")


@pytest.fixture(params=[1, 2, 3, 8])
def threads(request):
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


# Numbers whose sum in float32 depends on the order.
UNEVEN = torch.randn(1000, 33, generator=torch.Generator().manual_seed(0)) * torch.logspace(0, 6, 1000)[:, None]


def added_in_order(numbers):
    """PyTorch's own sums have another order, or are kept in float64."""
    return functools.reduce(torch.add, numbers)


def test_a_sum_over_rows_has_the_same_bits_on_any_number_of_threads(helpers, threads):
    # Chunks of 16 rows, one after the other, and then the chunks.
    chunks = [added_in_order(chunk) for chunk in UNEVEN.split(16)]
    assert helpers(UNEVEN, "sum_rows").tolist() == added_in_order(chunks).tolist()
    exact = UNEVEN.double().sum(0)
    bound = 80 * torch.finfo(torch.float32).eps * UNEVEN.double().abs().sum(0)
    assert ((helpers(UNEVEN, "sum_rows") - exact).abs() <= bound).all()


@pytest.mark.parametrize("shape", [(0, 5), (1, 5), (3, 5), (4, 5), (5, 5), (257, 1), (0, 0), (3, 0)])
def test_a_sum_over_few_rows_or_none(helpers, shape):
    input = torch.arange(math.prod(shape), dtype=torch.float32).reshape(shape)
    assert helpers(input, "sum_rows").tolist() == input.sum(0).tolist()


@pytest.mark.parametrize("count", [0, 1, 15, 16, 17, 1000])
def test_a_sum_of_a_row_adds_sixteen_lanes(helpers, count):
    input = UNEVEN.flatten()[:count]
    padded = torch.cat([input, torch.zeros(-count % 16)]).reshape(-1, 16)
    lanes = added_in_order([torch.zeros(16), *padded])
    assert helpers(input, "sum_of")[0].item() == added_in_order(lanes.double()).float().item()


def test_no_call_ran_on_the_reference(helpers):
    assert not [each for each in torchgraft.fallbacks() if each.operator == "helpers::helpers"]
