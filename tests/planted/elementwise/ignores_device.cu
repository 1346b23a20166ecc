// Wrong: launched on the device that is current, on its stream, wherever the input is.

#include "scale.cuh"

namespace planted {
namespace {

Tensor ignores_device_cuda(Tensor input, double factor) {
  return dispatch_floating(input.scalar_type(), "ignores_device", [&](auto tag) {
    using T = typename decltype(tag)::type;
    const Tensor source = to_dense(input);
    Tensor output = empty_as(source);
    const int64_t count = output.numel();
    if (count == 0) return output;
    int device = 0;
    TORCHGRAFT_CHECK(cudaGetDevice(&device) == cudaSuccess, "ignores_device: there is no device");
    void* stream = nullptr;
    TORCH_ERROR_CODE_CHECK(aoti_torch_get_current_cuda_stream(device, &stream));
    multiply_each<<<blocks_for(count), kThreads, 0, static_cast<cudaStream_t>(stream)>>>(
        static_cast<const T*>(source.const_data_ptr()), static_cast<accumulate_t<T>>(factor),
        static_cast<T*>(output.mutable_data_ptr()), count);
    check_launch("ignores_device");
    return output;
  });
}

}  // namespace

TORCHGRAFT_KERNEL(planted, CUDA, ignores_device, ignores_device_cuda)

}  // namespace planted
