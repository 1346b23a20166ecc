"""The helpers of torchgraft's headers: pointers of the right type, rows of any tensor, sums of the same bits."""

import functools
import math

import pytest
import torch

import torchgraft
from torchgraft import load_inline
from torchgraft.operator import FLOATING

# One library, as each compiles for seconds: what an operator does, `which` says.
TEXT = """
#include <torchgraft/in_place.h>

TORCHGRAFT_CLONES double add_up(const float* from, int64_t count) {
  return sum_of<float>(count, [&](int64_t i) { return from[i]; });
}

Tensor empties_cpu(Tensor like, std::vector<int64_t> sizes, Text from) {
  if (from == "vector") return empty_contiguous(sizes, like);
  if (from == "vector and dtype") return empty_contiguous(sizes, like, aoti_torch_dtype_int64());
  if (from == "pointer") return empty_contiguous({sizes.data(), sizes.size()}, like);
  if (from == "tensor") return empty_contiguous(like.sizes(), like);
  if (from == "braces and dtype") return empty_contiguous({2, 3}, like, aoti_torch_dtype_bool());
  if (from == "one in braces") return empty_contiguous({4}, like);
  TORCHGRAFT_CHECK(from == "none in braces", "from is ", from);
  return empty_contiguous({}, like);
}
TORCHGRAFT_KERNEL(helpers, CPU, empties, empties_cpu)

// Whether `apart_from` copies, and what it gives; a written tensor whose elements share memory is refused.
Tensor apart_cpu(Tensor written, Tensor other) {
  check_separate(written, "written");
  const Tensor found = apart_from(written, other, "other");
  Tensor output = empty_contiguous({1 + found.numel()}, found);
  float* const to = mutable_data_of<float>(output);
  to[0] = found.const_data_ptr() != other.const_data_ptr();
  std::copy_n(data_of<float>(found, "found"), found.numel(), to + 1);
  return output;
}
TORCHGRAFT_KERNEL(helpers, CPU, apart, apart_cpu)

// One element: how many bytes the type has that the dispatch found.
Tensor dispatched_cpu(Tensor input, Text by) {
  Tensor output = empty_contiguous({1}, input);
  const auto filled = [&](auto tag) {
    using T = typename decltype(tag)::type;
    mutable_data_of<T>(output)[0] = static_cast<T>(sizeof(T));
    return output;
  };
  const ScalarType dtype = input.scalar_type();
  if (by == "floating") return dispatch_floating(dtype, "dispatched", filled);
  if (by == "integral") return dispatch_integral(dtype, "dispatched", filled);
  if (by == "one") return dispatch_types<float>(dtype, "dispatched", filled);
  if (by == "two") return dispatch_types<bool, Half>(dtype, "dispatched", filled);
  return dispatch_types<Complex<float>, Complex<double>, uint8_t>(dtype, "dispatched", filled);
}
TORCHGRAFT_KERNEL(helpers, CPU, dispatched, dispatched_cpu)

// Every type that a kernel can take. What arrives is told in numbers.
Tensor typed_cpu(Tensor input, std::optional<Tensor> maybe, std::vector<Tensor> many,
                 std::vector<std::optional<Tensor>> some, int64_t whole, std::optional<int64_t> whole_maybe,
                 std::vector<int64_t> wholes, std::vector<int64_t> pair, double real,
                 std::optional<double> real_maybe, std::vector<double> reals, bool flag, std::optional<bool> flag_maybe,
                 std::vector<bool> flags, Text text, std::optional<Text> text_maybe, ScalarType dtype,
                 std::optional<ScalarType> dtype_maybe, std::optional<std::vector<int64_t>> wholes_maybe,
                 std::optional<torch::stable::Device> device, torch::stable::Device place,
                 torch::headeronly::Layout layout, std::optional<torch::headeronly::Layout> layout_maybe,
                 torch::headeronly::MemoryFormat format, std::optional<torch::headeronly::MemoryFormat> format_maybe) {
  std::vector<double> found = {static_cast<double>(many.size()), static_cast<double>(some.size())};
  found.push_back(maybe.has_value());
  for (const auto& each : some) found.push_back(each.has_value());
  found.push_back(static_cast<double>(whole)), found.push_back(static_cast<double>(whole_maybe.value_or(-1)));
  for (const int64_t each : wholes) found.push_back(static_cast<double>(each));
  for (const int64_t each : pair) found.push_back(static_cast<double>(each));
  found.push_back(real), found.push_back(real_maybe.value_or(-1));
  for (const double each : reals) found.push_back(each);
  found.push_back(flag), found.push_back(flag_maybe.value_or(false));
  for (const bool each : flags) found.push_back(each);
  found.push_back(static_cast<double>(text.size())), found.push_back(text_maybe ? 1 : -1);
  found.push_back(dtype == ScalarType::Half), found.push_back(dtype_maybe.value_or(ScalarType::Int) == ScalarType::Int);
  found.push_back(wholes_maybe ? static_cast<double>(wholes_maybe->size()) : -1);
  found.push_back(device.has_value()), found.push_back(place.is_cpu());
  found.push_back(layout == torch::headeronly::Layout::Strided), found.push_back(layout_maybe.has_value());
  found.push_back(format == torch::headeronly::MemoryFormat::Contiguous), found.push_back(format_maybe.has_value());
  Tensor output = empty_contiguous({static_cast<int64_t>(found.size())}, input);
  std::copy(found.begin(), found.end(), mutable_data_of<double>(output));
  return output;
}
TORCHGRAFT_KERNEL(helpers, CPU, typed, typed_cpu)

Tensor helpers_cpu(Tensor input, Text which, int64_t kept) {
  if (which == "as double") data_of<double>(input, "input");
  if (which == "as int to write") mutable_data_of<int>(input, "input");
  const bool has_two = which == "two sums" || which == "the second sum";
  const int64_t sums = has_two ? 2 : 1;
  const bool of_rows = has_two || which == "sum_rows";
  Tensor output = empty_contiguous({of_rows ? sums * rows_of(input, "input", kept).columns : 3}, input);
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
  if (has_two) {
    const Rows rows = rows_of(input, "input", kept);
    const float* from = data_of<float>(rows.tensor);
    std::fill(to, to + output.numel(), -1.0f);
    float* const first_sum = which == "two sums" ? to : nullptr;
    sum_rows<float>(rows.count, rows.columns, 1, {first_sum, to + rows.columns},
                    [&](int64_t first, int64_t last, float* const(&sums)[2]) {
                      for (int64_t row = first; row < last; ++row) {
                        for (int64_t c = 0; c < rows.columns; ++c) {
                          const float value = from[row * rows.columns + c];
                          sums[0][c] += value;
                          sums[1][c] += 2 * value;
                        }
                      }
                    });
  }
  if (which == "sum_of") to[0] = static_cast<float>(add_up(data_of<float>(input), input.numel()));
  return output;
}
"""


# How many sums of each column a call returns.
SUMS = {"sum_rows": 1, "two sums": 2, "the second sum": 2}


@pytest.fixture(scope="module")
def helpers():
    operators = [
        torchgraft.Operator(
            "helpers::empties(Tensor like, int[] sizes, str from) -> Tensor",
            # A dtype of its own: nothing here answers in place of the kernel.
            reference=lambda like, sizes, source: like.new_zeros(sizes, dtype=torch.int8),
        ),
        torchgraft.Operator(
            "helpers::dispatched(Tensor input, str by) -> Tensor", reference=lambda input, by: input.new_zeros(1)
        ),
        torchgraft.Operator(
            "helpers::typed(Tensor input, Tensor? maybe, Tensor[] many, Tensor?[] some, SymInt whole, int? whole_maybe,"
            " int[] wholes, int[2] pair, float real, float? real_maybe, float[] reals, bool flag, bool? flag_maybe,"
            " bool[2] flags, str text, str? text_maybe, ScalarType dtype, ScalarType? dtype_maybe,"
            " int[]? wholes_maybe, Device? device, Device place, Layout layout, Layout? layout_maybe,"
            " MemoryFormat format, MemoryFormat? format_maybe) -> Tensor",
            reference=lambda input, *others: input.new_zeros(1),
        ),
        torchgraft.Operator(
            "helpers::apart(Tensor written, Tensor other) -> Tensor",
            reference=lambda written, other: other.new_zeros(1 + other.numel(), dtype=torch.int8),
        ),
    ]
    operator = load_inline(
        "helpers::helpers(Tensor input, str which, int kept=1) -> Tensor",
        reference=lambda input, which, kept: input.new_empty(3),
        output=lambda input, which, kept: input.new_empty(
            math.prod(input.shape[-kept:]) * SUMS[which] if which in SUMS else 3
        ),
        cpu=TEXT,
    )
    yield torch.ops.helpers.helpers
    assert operator.name == "helpers"
    assert [each.name for each in operators] == ["empties", "dispatched", "typed", "apart"]


@pytest.mark.parametrize(
    ("which", "dtype", "message"),
    [
        ("as double", torch.float32, "input is float32, but the kernel reads it as float64"),
        ("as double", torch.bfloat16, "input is bfloat16, but the kernel reads it as float64"),
        ("as int to write", torch.int64, "input is int64, but the kernel reads it as int32"),
        ("sum_of", torch.float16, "a result is float16, but the kernel reads it as float32"),
        ("sum_of", torch.complex64, "a result is complex64, but the kernel reads it as float32"),
    ],
)
def test_a_pointer_of_another_type_than_the_tensors_is_refused(helpers, which, dtype, message):
    with pytest.raises(RuntimeError, match=message):
        helpers(torch.ones(2, dtype=dtype), which)


@pytest.mark.parametrize("sizes", [(), (0,), (5,), (2, 3), (2, 0, 3), (1, 2, 3, 4, 5, 6)])
def test_a_result_has_sizes_of_any_rank(helpers, sizes):
    empties = torch.ops.helpers.empties
    like = torch.empty(sizes, dtype=torch.float16)
    turned = like.permute(tuple(reversed(range(like.dim()))))
    for made, dtype in (
        (empties(like, sizes, "vector"), torch.float16),
        (empties(like, sizes, "vector and dtype"), torch.int64),
        (empties(like, sizes, "pointer"), torch.float16),
        (empties(like, (), "tensor"), torch.float16),
        (empties(turned, turned.shape[::-1], "vector"), torch.float16),
    ):
        assert (made.shape, made.stride(), made.dtype) == (sizes, like.stride(), dtype)


def test_a_result_has_sizes_in_braces(helpers):
    empties = torch.ops.helpers.empties
    like = torch.empty(7, dtype=torch.bfloat16)
    assert (empties(like, (), "one in braces").shape, empties(like, (), "none in braces").shape) == ((4,), ())
    made = empties(like, (), "braces and dtype")
    assert (made.shape, made.dtype) == ((2, 3), torch.bool)


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ((2, -1), "a result must not have a negative size, got -1"),
        ((2**40, 2**40), "a result is too large: it overflows 64 bits"),
        ((0, 2**40, 2**40), "a result is too large: it overflows 64 bits"),
        ((2**62,), "a result is too large: it overflows 64 bits"),
    ],
)
def test_sizes_that_no_tensor_has_are_refused(helpers, sizes, message):
    for source in ("vector", "vector and dtype", "pointer"):
        with pytest.raises(RuntimeError, match=message):
            torch.ops.helpers.empties(torch.empty(1), sizes, source)


WHOLE = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
DISPATCHES = {
    "floating": (FLOATING, "float64, float32, float16 and bfloat16"),
    "integral": (WHOLE, "uint8, int8, int16, int32 and int64"),
    "one": ((torch.float32,), "float32"),
    "two": ((torch.bool, torch.float16), "bool and float16"),
    "three": ((torch.complex64, torch.complex128, torch.uint8), "complex64, complex128 and uint8"),
}


@pytest.mark.parametrize("by", DISPATCHES)
@pytest.mark.parametrize("dtype", [*FLOATING, *WHOLE, torch.bool, torch.complex64, torch.complex128, torch.uint16])
def test_a_dispatch_finds_the_type_of_its_dtypes_and_refuses_all_others(helpers, by, dtype):
    known, listed = DISPATCHES[by]
    dispatched = torch.ops.helpers.dispatched
    # An empty tensor has a dtype too.
    for input in (torch.zeros(3).to(dtype), torch.zeros(0).to(dtype)):
        if dtype in known:
            size = torch.ones((), dtype=torch.bool) if dtype == torch.bool else torch.tensor(dtype.itemsize)
            assert torch.equal(dispatched(input, by), size.to(dtype)[None])
            continue
        with pytest.raises(RuntimeError, match=f"^dispatched has kernels for {listed} only$"):
            dispatched(input, by)


def test_every_type_of_a_schema_arrives(helpers):
    input = torch.zeros(1, dtype=torch.float64)
    given = torch.ops.helpers.typed(
        input, input, [input] * 3, [input, None], 5, 6, [7, 8, 9], [10, 11], 0.5, 1.5, [2.5, 3.5],
        True, True, [True, False], "abcd", "e", torch.float16, torch.float32, [1, 2], torch.device("cpu"),
        torch.device("cpu"), torch.strided, torch.strided, torch.contiguous_format, torch.channels_last,
    )  # fmt: skip
    expected = [3, 2, 1, 1, 0, 5, 6, 7, 8, 9, 10, 11, 0.5, 1.5, 2.5, 3.5, 1, 1, 1, 0, 4, 1, 1, 0, 2, 1, 1, 1, 1, 1, 1]
    assert given.tolist() == expected
    left_out = torch.ops.helpers.typed(
        input, None, [], [], 5, None, [], 10, 0.5, None, [], False, None, [True, True], "", None, torch.int8, None,
        None, None, torch.device("cpu"), torch.sparse_coo, None, torch.channels_last, None,
    )  # fmt: skip
    assert left_out.tolist() == [0, 0, 0, 5, -1, 10, 10, 0.5, -1, 0, 0, 1, 1, 0, -1, 0, 1, -1, 0, 1, 0, 0, 0, 0]


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


def test_two_sums_over_rows_have_the_bits_of_each_alone(helpers, threads):
    one = helpers(UNEVEN, "sum_rows")
    # Twice a number rounds as the number does.
    assert helpers(UNEVEN, "two sums").tolist() == torch.cat([one, 2 * one]).tolist()
    # A null pointer stands for a sum that nobody wants.
    assert helpers(UNEVEN, "the second sum").tolist() == torch.cat([torch.full_like(one, -1), 2 * one]).tolist()
    assert helpers(UNEVEN[:0], "two sums").tolist() == [0.0] * (2 * UNEVEN.shape[1])


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


def _parts(first, second):
    memory = torch.arange(40.0)
    return memory[first], memory[second]


@pytest.mark.parametrize(
    ("tensors", "copied"),
    [
        (_parts(slice(0, 10), slice(10, 20)), False),
        (_parts(slice(10, 20), slice(0, 10)), False),
        (_parts(slice(0, 11), slice(10, 20)), True),
        (_parts(slice(10, 20), slice(0, 11)), True),
        (_parts(slice(0, 40), slice(10, 12)), True),
        (_parts(slice(0, 10), slice(0, 10)), True),
        # What lies in the gaps of another one may be apart, and is copied all the same.
        (_parts(slice(0, 40, 2), slice(11, 13)), True),
        (_parts(slice(0, 30, 3), slice(28, 40)), False),
        (_parts(slice(0, 0), slice(0, 10)), False),
        # A copy that makes it contiguous lies apart already.
        (_parts(slice(0, 10), slice(0, 10, 2)), True),
    ],
)
def test_a_tensor_apart_from_what_is_written_is_copied_if_both_may_share_memory(helpers, tensors, copied):
    written, other = tensors
    was_copied, *values = torch.ops.helpers.apart(written, other).tolist()
    assert was_copied == copied
    assert values == other.tolist()


def test_what_is_written_to_may_not_be_expanded(helpers):
    other = torch.ones(1)
    with pytest.raises(RuntimeError, match="written is written to and has elements that share memory"):
        torch.ops.helpers.apart(torch.ones(2, 1).expand(2, 3), other)
    for separate in (torch.ones(1).expand(1, 1), torch.ones(1).expand(0, 1), torch.ones(1).expand(3, 0, 1)):
        assert torch.ops.helpers.apart(separate, other).tolist() == [0, 1]


def test_no_call_ran_on_the_reference(helpers):
    assert not [each for each in torchgraft.fallbacks() if each.operator == "helpers::helpers"]
