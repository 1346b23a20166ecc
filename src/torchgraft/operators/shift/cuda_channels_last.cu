#include "cuda_kernels.h"

namespace torchgraft::shift::cuda {

template <typename T>
bool plan_channels_last(const Arguments<T>&, Pass, Plan&) {
  return false;
}
template <typename T>
void launch_channels_last(const Arguments<T>&, Pass, const Plan&, accumulate_t<T>*, cudaStream_t) {}

#define SHIFT_CHANNELS_LAST(T)                                        \
  template bool plan_channels_last(const Arguments<T>&, Pass, Plan&); \
  template void launch_channels_last(const Arguments<T>&, Pass, const Plan&, accumulate_t<T>*, cudaStream_t);
SHIFT_CHANNELS_LAST(double)
SHIFT_CHANNELS_LAST(float)
SHIFT_CHANNELS_LAST(Half)
SHIFT_CHANNELS_LAST(BFloat16)

}  // namespace torchgraft::shift::cuda
