// The part of PyTorch's CUDA that host functions use, for a device that is the CPU.
#pragma once

#include <torch/csrc/inductor/aoti_torch/c/shim.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

#include <array>
#include <cstdint>
#include <cstring>

#include "emulation.h"

namespace emulation {

struct DeviceGuard {
  explicit DeviceGuard(int32_t) {}
};

inline int32_t get_current_stream(int32_t, void** stream) {
  *stream = nullptr;
  return 0;
}

// PyTorch's function, and then filled with NaN of every floating type, so that elements that no kernel writes
// show.
inline AOTITorchError empty_strided(int64_t dim, const int64_t* sizes, const int64_t* strides, int32_t dtype,
                                    int32_t device_type, int32_t device, AtenTensorHandle* tensor) {
  if (const AOTITorchError error =
          aoti_torch_empty_strided(dim, sizes, strides, dtype, device_type, device, tensor)) {
    return error;
  }
  void* memory = nullptr;
  int64_t bytes = 0;
  if (const AOTITorchError error = aoti_torch_get_data_ptr(*tensor, &memory)) return error;
  if (const AOTITorchError error = aoti_torch_get_storage_size(*tensor, &bytes)) return error;
  if (bytes > 0 && runs_launches()) std::memset(memory, 0xff, static_cast<size_t>(bytes));
  return 0;
}

// PyTorch's torch_call_dispatcher, with products that PyTorch has for CUDA only: factors in half types and a
// result in float. If launches do not run, a product into a given tensor computes nothing either and returns
// that tensor.
inline AOTITorchError call_dispatcher(const char* name, const char* overload, StableIValue* stack,
                                      uint64_t version) {
  using torch::stable::Tensor;
  using torch::stable::detail::from;
  using torch::stable::detail::to;
  const bool is_widened = std::strcmp(overload, "dtype_out") == 0;
  const bool is_product = is_widened || std::strcmp(overload, "out") == 0;
  if (!is_product || (runs_launches() && !is_widened)) {
    return torch_call_dispatcher(name, overload, stack, version);
  }
  const Tensor left = to<Tensor>(stack[0]), right = to<Tensor>(stack[1]);
  if (!runs_launches()) {
    stack[0] = stack[is_widened ? 3 : 2];
    return 0;
  }
  const Tensor result = to<Tensor>(stack[3]);
  const auto widened = [&](const Tensor& factor) {
    Tensor wide = torch::stable::new_empty(factor, factor.sizes(), result.scalar_type());
    torch::stable::copy_(wide, factor);
    return wide;
  };
  std::array<StableIValue, 3> product = {from(widened(left)), from(widened(right)), from(result)};
  const AOTITorchError error = torch_call_dispatcher(name, "out", product.data(), version);
  stack[0] = product[0];
  return error;
}

}  // namespace emulation
