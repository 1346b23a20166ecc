"""Times products of small matrices by `torchgraft/small_product.h`, beside `torch.bmm`, on one thread.

`python benchmarks/small_product.py` prints, for each dtype and size, the least time of many calls.
"""

import argparse
import time
from collections.abc import Callable
from typing import Any

import torch

import torchgraft

DTYPES = (torch.float32, torch.float64, torch.bfloat16)
# Products, rows, columns and depth of each.
SIZES = ((64, 16, 16, 16), (64, 32, 32, 64), (64, 64, 64, 64), (64, 49, 49, 32), (8, 128, 128, 128))
SOURCE = """
#include <torchgraft/small_product.h>

Tensor products_cpu(Tensor left, Tensor right) {
  const int64_t batch = left.size(0), rows = left.size(1), depth = left.size(2), columns = right.size(1);
  Tensor output = empty_contiguous({batch, rows, columns}, left);
  dispatch_floating(left.scalar_type(), "products", [&](auto tag) {
    using T = typename decltype(tag)::type;
    using Sum = accumulate_t<T>;
    const T *one = data_of<T>(left), *other = data_of<T>(right);
    T* const to = mutable_data_of<T>(output);
    std::vector<Sum> sums(rows * columns);
    for (int64_t b = 0; b < batch; ++b) {
      std::fill(sums.begin(), sums.end(), Sum(0));
      const Matrix<const T> l{one + b * rows * depth, rows, depth, depth};
      const Matrix<const T> r{other + b * columns * depth, columns, depth, depth};
      add_product(l, transposed(r), Matrix<Sum>{sums.data(), rows, columns, columns});
      std::transform(sums.begin(), sums.end(), to + b * rows * columns, [](Sum s) { return static_cast<T>(s); });
    }
  });
  return output;
}
"""


def least_time(function: Callable[..., Any], *arguments: Any, calls: int) -> float:
    """The least time of some calls, in seconds."""
    times = []
    for _ in range(calls):
        started = time.perf_counter()
        function(*arguments)
        times.append(time.perf_counter() - started)
    return min(times)


def main() -> None:
    """Prints the times."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--calls", type=int, default=50)
    calls = parser.parse_args().calls
    torch.set_num_threads(1)
    operator = torchgraft.load_inline(
        "small_product_times::products(Tensor left, Tensor right) -> Tensor",
        reference=lambda left, right: left @ right.mT,
        shapes="b n d, b m d -> b n m",
        cpu=SOURCE,
    )
    print(f"PyTorch {torch.__version__}; microseconds")
    for dtype in DTYPES:
        for batch, rows, columns, depth in SIZES:
            left, right = torch.randn(batch, rows, depth).to(dtype), torch.randn(batch, columns, depth).to(dtype)
            ours = least_time(operator, left, right, calls=calls)
            theirs = least_time(torch.bmm, left, right.mT, calls=calls)
            what = f"{batch} products of {rows} x {depth} x {columns}, {str(dtype).removeprefix('torch.')}"
            print(f"{what}: {ours * 1e6:.0f}, torch.bmm {theirs * 1e6:.0f}")


if __name__ == "__main__":
    main()
