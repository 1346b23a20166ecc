"""A refusal by TORCHGRAFT_CHECK in a kernel is a ValueError of the Operator, without a word of the declaration."""

import pytest
import torch

import torchgraft
from torchgraft import building
from torchgraft.checking.case import Case
from torchgraft.checking.helpers.mistakes import Wrong
from torchgraft.checking.properties import bad_input
from torchgraft.checking.subject import Subject
from torchgraft.sampling import Drawn, Sample, Samples

SOURCE = """
#include <torchgraft/arguments.h>
#include <torchgraft/data.h>
#include <torchgraft/dispatch.h>
#include <torchgraft/empty.h>
#include <torchgraft/layout.h>
#include <torchgraft/registration.h>

using namespace torchgraft;

Tensor rows_cpu(Tensor table, Tensor index) {
  check_dim(table, 2, "table"), check_dim(index, 1, "index");
  TORCHGRAFT_CHECK(same_device(table, index), "table and index must be on the same device");
  TORCHGRAFT_CHECK(index.scalar_type() == ScalarType::Long, "index must be int64");
  const int64_t columns = table.size(1), count = index.size(0);
  const Tensor from = to_contiguous(table), places = to_contiguous(index);
  Tensor output = empty_contiguous({count, columns}, from);
  dispatch_floating(table.scalar_type(), "rows", [&](auto tag) {
    using T = typename decltype(tag)::type;
    for (int64_t i = 0; i < count; ++i) {
      const int64_t row = data_of<int64_t>(places)[i];
      TORCHGRAFT_CHECK(row >= 0 && row < table.size(0), "index out of range: index[", i, "] is ", row,
                       ", but table has ", table.size(0), " rows");
      for (int64_t c = 0; c < columns; ++c) {
        mutable_data_of<T>(output)[i * columns + c] = data_of<T>(from)[row * columns + c];
      }
    }
  });
  return output;
}

Tensor grown_cpu(Tensor input, int64_t size) { return empty_contiguous({size, size}, input); }
Tensor failing_cpu(Tensor input) { fail("no luck today"); }
Tensor misread_cpu(Tensor input) { return data_of<double>(input, "input") == nullptr ? input : to_contiguous(input); }

TORCHGRAFT_KERNEL(refusals, CPU, rows, rows_cpu)
TORCHGRAFT_KERNEL(refusals, CPU, grown, grown_cpu)
TORCHGRAFT_KERNEL(refusals, CPU, failing, failing_cpu)
TORCHGRAFT_KERNEL(refusals, CPU, misread, misread_cpu)
"""


@pytest.fixture(scope="module")
def operators(tmp_path_factory):
    source = tmp_path_factory.mktemp("refusals") / "refusals.cpp"
    source.write_text(SOURCE)
    building.load("refusals", [source])
    gradient = "reference"
    return {
        "rows": torchgraft.Operator(
            "refusals::rows(Tensor table, Tensor index) -> Tensor",
            reference=lambda table, index: table[_not_negative(index)],
            output=lambda table, index: table.new_empty((index.shape[0], table.shape[1])),
            gradient=gradient,
            dtypes={"table": torchgraft.operator.FLOATING, "index": (torch.int64,)},
        ),
        **{
            name: torchgraft.Operator(
                f"refusals::{name}(Tensor input{more}) -> Tensor",
                reference=lambda input, *size: input.clone(),
                output=lambda input, *size: input.new_empty(size * 2 or input.shape),
                gradient=gradient,
            )
            for name, more in (("grown", ", int size"), ("failing", ""), ("misread", ""))
        },
    }


def _not_negative(index):
    if (index < 0).any():
        raise IndexError("rows are counted from the first one")
    return index


@pytest.mark.parametrize("needs_grad", [False, True])
def test_an_index_that_the_kernel_refuses_is_a_value_error_that_names_operator_and_argument(operators, needs_grad):
    table, index = torch.ones(3, 2, requires_grad=needs_grad), torch.tensor([0, 3])
    with pytest.raises(ValueError, match=r"^rows: index out of range: index\[1\] is 3, but table has 3 rows$"):
        operators["rows"](table, index)
    # Past the Operator it is an error, too.
    with pytest.raises(RuntimeError, match="index out of range"):
        torch.ops.refusals.rows(table, index)


def test_a_result_that_is_too_large_is_a_value_error(operators):
    with pytest.raises(ValueError, match=r"^grown: a result is too large: it overflows 64 bits$"):
        operators["grown"](torch.ones(1), 2**40)


@pytest.mark.parametrize(("name", "said"), [("failing", "no luck today"), ("misread", "but the kernel reads it as")])
def test_what_is_no_mistake_of_the_caller_is_none(operators, name, said):
    with pytest.raises(RuntimeError, match=said) as raised:
        operators[name](torch.ones(2))
    assert raised.type is RuntimeError


def test_an_error_of_another_operator_is_not_taken_for_the_last_refusal(operators):
    """The text of a refusal stays where the kernel left it."""
    with pytest.raises(ValueError, match="too large"):
        operators["grown"](torch.ones(1), 2**40)
    with pytest.raises(RuntimeError, match="no luck today") as raised:
        operators["failing"](torch.ones(2))
    assert raised.type is RuntimeError


def test_bad_input_holds_without_an_explain(operators):
    samples = Samples([Sample("rows", (Drawn((3, 2)), Drawn((4,), dtype=torch.int64, high=3)))])
    subject = Subject(operators["rows"], samples)
    bad_input.check(Case(subject, torch.device("cpu"), torch.float32))


@pytest.mark.parametrize(
    ("reference", "asked", "verdict"),
    [
        # In float64 there is no room: neither is the reference asked in float32, nor are values compared.
        ("no room in float64", ["float64", "meta", "meta"], {"unknown": True}),
        ("no room, and refused on meta", ["float64", "meta", "float32"], {"raised": "TypeError: no"}),
        ("refused in float32", ["float64", "float32"], {"raised": "TypeError: no"}),
        ("refused in float64", ["float64", "float32"], {"raised": "TypeError: no"}),
        ("taken", ["float64", "float32"], {}),
    ],
)
def test_the_reference_is_asked_in_float32_unless_float64_has_no_room(reference, asked, verdict):
    heard = []

    def refer(input):
        heard.append("meta" if input.is_meta else str(input.dtype).removeprefix("torch."))
        if reference.startswith("no room") and heard[-1] == "float64":
            raise RuntimeError("can't allocate memory")
        if reference in (f"refused in {heard[-1]}", "no room, and refused on meta"):
            raise TypeError("no")
        return 2 * input

    operator = torchgraft.Operator("refusals_asked::twice(Tensor input) -> Tensor", reference=refer)
    try:
        sample = Sample("one", (Drawn((2,)),))
        call = Case(Subject(operator, Samples([sample])), torch.device("cpu"), torch.float32).call(sample)
        found = bad_input._ask_reference(call, Wrong("anything", call.arguments))
    finally:
        operator.undeclare()
    assert heard == asked
    assert {"unknown": found.unknown, "raised": found.raised} == {"unknown": False, "raised": "", **verdict}
    if not verdict:
        assert torch.equal(found.expected, 2 * call.arguments[0].double())
