// CUDA host functions: device, stream, launch; and sixteen-byte accesses for kernels.
#pragma once

#include <cuda_runtime.h>
#include <torch/csrc/inductor/aoti_torch/c/shim.h>
#include <torch/csrc/stable/accelerator.h>
#include <torch/csrc/stable/c/shim.h>

#include <cstdint>
#include <type_traits>

#include "allocation.h"
#include "checks.h"
#include "device.cuh"
#include "numbers.h"

namespace torchgraft {

// Makes the device of a tensor current for a scope, and gives the stream on which PyTorch launches there.
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

// Throws if the launch before it failed, with the name of the kernel and CUDA's reason. It does not wait for
// the kernel.
inline void check_launch(const char* kernel) {
  const cudaError_t error = cudaGetLastError();
  if (error != cudaSuccess) [[unlikely]]
    fail(kernel, " did not launch: ", cudaGetErrorString(error));
}

// The number of elements in one access of sixteen bytes.
template <typename T>
inline constexpr int kVectorElements = 16 / sizeof(T);

// Elements that are loaded or stored in one access, and are aligned to their total size.
template <typename T, int kElements = kVectorElements<T>>
struct alignas(sizeof(T) * kElements) Vector {
  T elements[kElements];

  __device__ T& operator[](int index) { return elements[index]; }
  __device__ const T& operator[](int index) const { return elements[index]; }
};

// Device memory for `count` values of T, which is double or float. It is freed with the tensor. It comes from
// the caching allocator, which respects the stream and CUDA graphs, as cudaMalloc does not.
template <typename T>
Tensor empty_workspace(int64_t count, const Tensor& like) {
  const int32_t dtype = std::is_same_v<T, double> ? aoti_torch_dtype_float64() : aoti_torch_dtype_float32();
  const int64_t stride = 1;
  return make_empty(1, &count, &stride, dtype, aoti_torch_device_type_cuda(), like.get_device_index());
}

// Whether an address is a multiple of `bytes`.
inline bool is_aligned(const void* pointer, size_t bytes) {
  return reinterpret_cast<uintptr_t>(pointer) % bytes == 0;
}

// The number of blocks as the x size of a grid, the only one that may exceed 65535. Throws if there are more
// blocks than a grid can have.
inline unsigned grid_of(int64_t blocks, const char* kernel) {
  TORCHGRAFT_CHECK(blocks <= INT32_MAX, kernel, ": the tensors are too large for one launch");
  return static_cast<unsigned>(blocks);
}

// Whether a position lies in [0, size).
__device__ inline bool is_inside(int position, int size) {
  return static_cast<unsigned>(position) < static_cast<unsigned>(size);
}

// The dynamic shared memory of a block; the launch sets its size.
template <typename T>
__device__ T* shared_memory() {
  extern __shared__ __align__(16) unsigned char shared_bytes[];
  return reinterpret_cast<T*>(shared_bytes);
}

// Division by a number that is known before the launch: a multiplication and a shift, instead of some
// twenty instructions. Numerator and divisor must be below 2**31 (Granlund and Montgomery, 1994).
class FastDivisor {
 public:
  FastDivisor() = default;
  explicit FastDivisor(int divisor) : divisor_(divisor) {
    while ((int64_t{1} << shift_) < divisor) ++shift_;
    const uint64_t excess = (uint64_t{1} << shift_) - static_cast<uint64_t>(divisor);
    multiplier_ = static_cast<uint32_t>((excess << 32) / static_cast<uint64_t>(divisor) + 1);
  }

  __host__ __device__ int divisor() const { return divisor_; }
  __device__ int divide(int numerator) const {
    const uint32_t value = static_cast<uint32_t>(numerator);
    return static_cast<int>((__umulhi(value, multiplier_) + value) >> shift_);
  }

 private:
  int divisor_ = 1;
  uint32_t multiplier_ = 1;
  uint32_t shift_ = 0;
};

}  // namespace torchgraft
