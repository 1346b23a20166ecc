"""`torchgraft/small_product.h`: products of small matrices inside a kernel."""

import pytest
import torch

from torchgraft import load_inline

SOURCE = """
#include <torchgraft/small_product.h>

template <typename T>
Matrix<T> matrix(T* data, const Tensor& tensor) {
  return {data, tensor.size(0), tensor.size(1), tensor.stride(0), tensor.stride(1)};
}

Tensor added_cpu(Tensor left, Tensor right, Tensor start, bool turned) {
  // The result lies in memory as `start` does, or with rows and columns exchanged.
  const int64_t rows = start.size(0), columns = start.size(1);
  Tensor result = turned ? empty_contiguous({columns, rows}, start) : empty_contiguous({rows, columns}, start);
  dispatch_floating(left.scalar_type(), "added", [&](auto tag) {
    using T = typename decltype(tag)::type;
    using Sum = accumulate_t<T>;
    const Sum* const from = data_of<Sum>(start);
    Sum* const to = mutable_data_of<Sum>(result);
    for (int64_t i = 0; i < rows; ++i) {
      for (int64_t j = 0; j < columns; ++j) {
        to[turned ? j * rows + i : i * columns + j] = from[i * start.stride(0) + j * start.stride(1)];
      }
    }
    const Matrix<Sum> sums = matrix(to, result);
    add_product(matrix(data_of<T>(left), left), matrix(data_of<T>(right), right), turned ? transposed(sums) : sums);
  });
  return result;
}
"""

DTYPES = (torch.float64, torch.float32, torch.float16, torch.bfloat16)


@pytest.fixture(scope="module")
def added():
    operator = load_inline(
        "small_product::added(Tensor left, Tensor right, Tensor start, bool turned) -> Tensor",
        reference=lambda left, right, start, turned: start + left @ right,
        output=lambda left, right, start, turned: torch.empty_like(start.mT if turned else start),
        dtypes={"left": DTYPES, "right": DTYPES, "start": (torch.float64, torch.float32)},
        cpu=SOURCE,
    )
    assert operator.name == "added"
    return lambda *arguments: torch.ops.small_product.added(*arguments)


def sum_dtype(dtype):
    return torch.promote_types(dtype, torch.float32)


def made(rows, columns, dtype, layout, seed):
    """A matrix as it is, transposed, or with gaps between its columns."""
    generator = torch.Generator().manual_seed(seed)
    shape = {"rows": (rows, columns), "columns": (columns, rows), "gaps": (rows + 1, 3 * columns + 2)}[layout]
    values = torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)
    return {"rows": values, "columns": values.mT, "gaps": values[1:, 1 : 3 * columns + 1 : 3]}[layout]


# On both sides of a tile of four rows, of one and two vectors of columns, and of a panel of 128.
SIZES = [
    (1, 1, 1),
    (3, 7, 5),
    (4, 8, 16),
    (5, 9, 17),
    (8, 32, 31),
    (9, 33, 129),
    (2, 64, 128),
    (13, 40, 257),
    (4, 15, 3),
]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("rows", "columns", "depth"), SIZES)
@pytest.mark.parametrize("layouts", [("rows", "rows"), ("columns", "columns"), ("gaps", "gaps"), ("rows", "columns")])
@pytest.mark.parametrize("turned", [False, True])
def test_a_product_is_added(added, rows, columns, depth, dtype, layouts, turned):
    left, right = made(rows, depth, dtype, layouts[0], 1), made(depth, columns, dtype, layouts[1], 2)
    start = made(rows, columns, sum_dtype(dtype), "rows", 3)
    found = added(left, right, start, turned)
    found = found.mT if turned else found
    exact = start.double() + left.double() @ right.double()
    # Each of depth additions and products rounds once.
    sizes = start.double().abs() + left.double().abs() @ right.double().abs()
    bound = (depth + 1) * torch.finfo(sum_dtype(dtype)).eps * sizes
    assert ((found.double() - exact).abs() <= bound).all()


@pytest.mark.parametrize("sizes", [(0, 3, 4), (3, 0, 4), (3, 4, 0)], ids=str)
def test_nothing_is_added_where_there_is_nothing(added, sizes):
    rows, columns, depth = sizes
    start = torch.ones(rows, columns)
    found = added(torch.ones(rows, depth), torch.ones(depth, columns), start, False)
    assert found.shape == start.shape
    assert torch.equal(found, start)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_an_element_has_the_same_bits_wherever_it_lies(added, dtype):
    left, right = made(11, 150, dtype, "rows", 4), made(150, 45, dtype, "rows", 5)
    start = torch.zeros(11, 45, dtype=sum_dtype(dtype))
    whole = added(left, right, start, False)
    for row, column in ((0, 0), (3, 16), (5, 31), (10, 44)):
        alone = added(left[row:, :], right[:, column:], start[row:, column:].contiguous(), False)
        assert torch.equal(alone, whole[row:, column:])
        assert torch.equal(
            added(left[row:, :], right[:, column:].mT.contiguous().mT, start[row:, column:], True).mT, alone
        )


def test_infinity_and_nan_stay_in_their_rows_and_columns(added):
    left, right = torch.ones(5, 3), torch.ones(3, 37)
    left[1, 0], right[2, 36] = float("inf"), float("nan")
    found = added(left, right, torch.zeros(5, 37), False)
    assert found[1, :36].isinf().all()
    assert found[:, 36].isnan().all()
    assert found[[0, 2, 3, 4], :36].eq(3).all()
