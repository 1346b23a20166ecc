// CUDA host functions: device, stream, launch; and sixteen-byte accesses for kernels.
#pragma once

#include <cuda_runtime.h>
#include <torch/csrc/inductor/aoti_torch/c/shim.h>
#include <torch/csrc/stable/accelerator.h>
#include <torch/csrc/stable/c/shim.h>

#include <cstdint>
#include <type_traits>

#include "checks.h"

namespace torchgraft {

// Makes a tensor's device current for a scope and knows the stream that PyTorch would launch on there.
class Launch {
 public:
  explicit Launch(const Tensor& tensor) : guard_(tensor.get_device_index()) {
    void* stream = nullptr;
    TORCH_ERROR_CODE_CHECK(aoti_torch_get_current_cuda_stream(tensor.get_device_index(), &stream));
    stream_ = static_cast<cudaStream_t>(stream);
  }

  cudaStream_t stream() const { return stream_; }

 private:
  torch::stable::accelerator::DeviceGuard guard_;
  cudaStream_t stream_ = nullptr;
};

inline void check_launch(const char* kernel) {
  const cudaError_t error = cudaGetLastError();
  TORCHGRAFT_CHECK(error == cudaSuccess, kernel, " did not launch: ", cudaGetErrorString(error));
}

template <typename Integer>
__host__ __device__ constexpr Integer ceil_divide(Integer numerator, Integer denominator) {
  return (numerator + denominator - 1) / denominator;
}

// As many elements as one sixteen-byte access holds.
template <typename T>
inline constexpr int kVectorElements = 16 / sizeof(T);

template <typename T, int kElements = kVectorElements<T>>
struct alignas(sizeof(T) * kElements) Vector {
  T elements[kElements];

  __device__ T& operator[](int index) { return elements[index]; }
  __device__ const T& operator[](int index) const { return elements[index]; }
};

// Device memory for `count` values of T, one of double and float, that is given back when the tensor goes. The caching
// allocator knows the stream and CUDA graphs; cudaMalloc knows neither.
template <typename T>
Tensor empty_workspace(int64_t count, const Tensor& like) {
  const int32_t dtype = std::is_same_v<T, double> ? aoti_torch_dtype_float64() : aoti_torch_dtype_float32();
  const int64_t stride = 1;
  AtenTensorHandle handle = nullptr;
  TORCH_ERROR_CODE_CHECK(aoti_torch_empty_strided(1, &count, &stride, dtype, aoti_torch_device_type_cuda(),
                                                  like.get_device_index(), &handle));
  return Tensor(handle);
}

inline bool is_aligned(const void* pointer, size_t bytes) {
  return reinterpret_cast<uintptr_t>(pointer) % bytes == 0;
}

}  // namespace torchgraft
