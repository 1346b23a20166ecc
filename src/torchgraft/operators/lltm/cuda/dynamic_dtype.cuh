// Tensors whose dtype, float32, float16 or bfloat16, a kernel only knows as it runs: it reads few numbers of
// them beside those in float, so it need not be compiled for each dtype.
#pragma once

#include <cuda_fp16.h>
#include <torchgraft/checks.h>
#include <torchgraft/dispatch.h>

#include <cstdint>
#include <optional>

namespace torchgraft::lltm::cuda {

class DynamicInput {
 public:
  DynamicInput() = default;
  explicit DynamicInput(const Tensor& tensor)
      : data_(tensor.const_data_ptr()), dtype_(tensor.scalar_type()) {}
  explicit DynamicInput(const std::optional<Tensor>& tensor) {
    if (tensor.has_value()) *this = DynamicInput(*tensor);
  }

  __host__ __device__ explicit operator bool() const { return data_ != nullptr; }
  __host__ __device__ bool is_half() const { return dtype_ == ScalarType::Half; }
  __host__ __device__ bool is_float() const { return dtype_ == ScalarType::Float; }
  __host__ __device__ const void* data() const { return data_; }
  // For a caller that knows the dtype.
  template <typename T>
  __host__ __device__ const T* as() const {
    return static_cast<const T*>(data_);
  }
  __host__ __device__ const float* floats() const { return as<float>(); }

  __device__ __forceinline__ float operator[](int64_t index) const {
    Bits bits;
    load(index, bits);
    return value_of(bits);
  }

  // A number as it was loaded, in one register or the other, so that only what needs its value waits for it.
  struct Bits {
    uint32_t of_four = 0;
    uint16_t of_two = 0;
  };
  __device__ __forceinline__ void load(int64_t index, Bits& bits) const {
    if (is_float()) {
      bits.of_four = as<uint32_t>()[index];
    } else {
      bits.of_two = as<uint16_t>()[index];
    }
  }
  __device__ __forceinline__ float value_of(const Bits& bits) const {
    return is_float() ? value_of(bits.of_four) : value_of(bits.of_two);
  }
  __device__ __forceinline__ float value_of(uint32_t bits) const { return __uint_as_float(bits); }
  __device__ __forceinline__ float value_of(uint16_t bits) const {
    // bfloat16 is the upper half of a float.
    return is_half() ? __half2float(__ushort_as_half(bits)) : __uint_as_float(uint32_t{bits} << 16);
  }
  // Calls `function` with a pointer to the bits of all numbers.
  template <typename Function>
  __device__ __forceinline__ void visit(const Function& function) const {
    if (is_float()) {
      function(as<uint32_t>());
    } else {
      function(as<uint16_t>());
    }
  }

 private:
  const void* data_ = nullptr;
  ScalarType dtype_ = ScalarType::Float;
};

class DynamicOutput {
 public:
  explicit DynamicOutput(Tensor& tensor) : data_(tensor.mutable_data_ptr()), dtype_(tensor.scalar_type()) {}

  template <typename T>
  __host__ __device__ T* as() const {
    return static_cast<T*>(data_);
  }
  __host__ __device__ float* floats() const { return as<float>(); }
  __host__ __device__ bool is_float() const { return dtype_ == ScalarType::Float; }

  // A number in two bytes, where the dtype has as many.
  __device__ __forceinline__ uint16_t bits_of(float value) const {
    return dtype_ == ScalarType::Half ? static_cast<Half>(value).x : static_cast<BFloat16>(value).x;
  }
  __device__ __forceinline__ void store(int64_t index, float value) const {
    if (is_float()) {
      floats()[index] = value;
    } else {
      as<uint16_t>()[index] = bits_of(value);
    }
  }

 private:
  void* data_;
  ScalarType dtype_;
};

}  // namespace torchgraft::lltm::cuda
