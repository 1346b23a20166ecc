// Two sums over the parts that blocks leave in a workspace, added up by one launch.

#include <torchgraft/checks.h>
#include <torchgraft/data.h>
#include <torchgraft/empty.h>
#include <torchgraft/layout.h>
#include <torchgraft/registration.h>
#include <torchgraft/cuda.cuh>
#include <torchgraft/sums.cuh>

namespace emulated_sums {
namespace {

using namespace torchgraft;

// `partials` is (parts, 2, columns); `wanted` says which of the two results are written.
std::tuple<Tensor, Tensor> two_cuda(Tensor partials, std::vector<bool> wanted) {
  check_dim(partials, 3, "partials");
  const Tensor rows = to_contiguous(partials, "partials");
  const int64_t columns = rows.size(2);
  Tensor first = empty_contiguous({wanted[0] ? columns : 0}, rows);
  Tensor second = empty_contiguous({wanted[1] ? columns : 0}, rows);
  const Launch launch(rows);
  sum_partials<float>(data_of<float>(rows), static_cast<int>(rows.size(0)), columns,
                      {wanted[0] ? mutable_data_of<float>(first) : nullptr,
                       wanted[1] ? mutable_data_of<float>(second) : nullptr},
                      launch.stream(), "two");
  return {first, second};
}

}  // namespace

TORCHGRAFT_KERNEL(emulated_sums, CUDA, two, two_cuda)

}  // namespace emulated_sums
