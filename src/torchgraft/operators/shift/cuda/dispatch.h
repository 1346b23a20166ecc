// Chooses the kernel of a pass (policy.h), cuts its work (supports.h), and launches it. Everything is
// enqueued on a stream, and nothing waits.
#pragma once

#include <torchgraft/cuda.cuh>

#include "kernels.h"
#include "policy.h"

namespace torchgraft::shift::cuda {

// A kernel and how it cuts its work.
template <typename T>
struct Chosen {
  Kernel kernel;
  Plan plan;

  Chosen(const Arguments<T>& arguments, Pass pass) {
    const Device& device = current_device();
    const Problem problem = {arguments.geometry,
                             pass,
                             arguments.layout == Layout::channels_last,
                             sizeof(T),
                             device.multiprocessors,
                             device.shared_of_block,
                             device.shared_of_multiprocessor};
    const Rule& rule = choose(kRules, problem);
    kernel = rule.kernel;
    plan = rule.plan(problem);
  }

  void launch(const Arguments<T>& arguments, Pass pass, accumulate_t<T>* partial, cudaStream_t stream) const {
    switch (kernel) {
#define TORCHGRAFT_CASE(NAME, LAUNCH, ...) \
  case Kernel::NAME:                       \
    return LAUNCH(arguments, pass, plan, partial, stream);
      TORCHGRAFT_SHIFT_KERNELS(TORCHGRAFT_CASE)
#undef TORCHGRAFT_CASE
    }
  }
};

// Where nothing but images is computed.
template <typename T>
void resample(const Arguments<T>& arguments, Pass pass, cudaStream_t stream) {
  Chosen<T>(arguments, pass).launch(arguments, pass, /*partial=*/nullptr, stream);
}

// The gradients of the offsets too.
template <typename T>
void resample_and_sum(const Arguments<T>& arguments, Pass pass, T* x_grad, T* y_grad, const Tensor& like,
                      cudaStream_t stream) {
  const Chosen<T> chosen(arguments, pass);
  const int64_t parts = chosen.plan.parts;
  const Tensor workspace = empty_workspace<accumulate_t<T>>(2 * arguments.geometry.channels * parts, like);
  const auto partial = mutable_data_of<accumulate_t<T>>(workspace);
  chosen.launch(arguments, pass, partial, stream);
  launch_add_parts(arguments, partial, parts, x_grad, y_grad, stream);
}

}  // namespace torchgraft::shift::cuda
