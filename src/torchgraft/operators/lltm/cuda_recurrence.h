// The recurrence of a whole sequence, forward and back: what it is of, and the kernels that are all of it.
#pragma once

#include <cuda_fp16.h>
#include <cuda_runtime.h>
#include <torchgraft/checks.h>
#include <torchgraft/dispatch.h>

#include <cstdint>
#include <optional>

namespace torchgraft::lltm::cuda {

// Numbers in float32, float16 or bfloat16; which of them a kernel learns as it runs. It has few of them
// beside those in float.
class Numbers {
 public:
  Numbers() = default;
  explicit Numbers(const Tensor& tensor) : data_(tensor.const_data_ptr()), dtype_(tensor.scalar_type()) {}
  explicit Numbers(const std::optional<Tensor>& tensor) {
    if (tensor.has_value()) *this = Numbers(*tensor);
  }

  __host__ __device__ explicit operator bool() const { return data_ != nullptr; }
  __host__ __device__ bool is_half() const { return dtype_ == ScalarType::Half; }
  __host__ __device__ bool is_float() const { return dtype_ == ScalarType::Float; }
  __host__ __device__ const void* data() const { return data_; }
  // Where the caller knows what they are.
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

  // A number as it was loaded, in one register or the other, so that nothing waits for it but its value.
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
    // What bfloat16 leaves out of float is zero.
    return is_half() ? __half2float(__ushort_as_half(bits)) : __uint_as_float(uint32_t{bits} << 16);
  }
  // Calls `function` with a pointer to the bits of all, for what loads many.
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

class Results {
 public:
  explicit Results(Tensor& tensor) : data_(tensor.mutable_data_ptr()), dtype_(tensor.scalar_type()) {}

  template <typename T>
  __host__ __device__ T* as() const {
    return static_cast<T*>(data_);
  }
  __host__ __device__ float* floats() const { return as<float>(); }

  __device__ __forceinline__ void put(int64_t index, float value) const {
    if (dtype_ == ScalarType::Float) {
      floats()[index] = value;
    } else {
      const bool is_half = dtype_ == ScalarType::Half;
      as<uint16_t>()[index] = is_half ? static_cast<Half>(value).x : static_cast<BFloat16>(value).x;
    }
  }

 private:
  void* data_;
  ScalarType dtype_;
};

// What is given and what is asked for is of the same dtype, what is kept in float.
struct ForwardPass {
  Numbers weight;      // weight_hh, (3 units, units)
  Numbers bias;        // (3 units), or none
  Numbers h0;          // (batch, units)
  Numbers c0;          // (batch, units)
  float* activations;  // (steps, batch, 3 units), in which the gates of the inputs come
  Results output;      // (steps, batch, units)
  float* cells;        // (steps, batch, units)
  int64_t steps;
  int64_t batch;
  int64_t units;
  bool reverse;
};

struct BackwardPass {
  Numbers weight;            // weight_hh, (3 units, units)
  const float* activations;  // (steps, batch, 3 units)
  const float* cells;        // (steps, batch, units)
  Numbers output_grad;       // (steps, batch, units), or none
  float* gates_grad;         // (steps, batch, 3 units)
  float* h_grad;             // (batch, units): of the last h, becomes that of the first
  float* c_grad;             // (batch, units), likewise
  int64_t steps;
  int64_t batch;
  int64_t units;
  bool reverse;
};

inline int device_attribute(cudaDeviceAttr attribute) {
  int device = 0;
  int value = 0;
  const bool known = cudaGetDevice(&device) == cudaSuccess &&
                     cudaDeviceGetAttribute(&value, attribute, device) == cudaSuccess;
  TORCHGRAFT_CHECK(known, "lltm: the device does not say what it can do");
  return value;
}

// Each launches the pass where the current device can hold all blocks at once that wait for each other, and
// says whether it did; where it did not, nothing was written. `weight` is the tensor of weight_hh.
//
// In true float32: in clusters, with at most so many rows each, for which the gradient of the output is
// converted; or on the grid, where everything is in float32. In clusters it is faster where both can.
bool launch_clusters(const ForwardPass& pass, cudaStream_t stream, int64_t most_rows = INT64_MAX);
bool launch_clusters(const BackwardPass& pass, const std::optional<Tensor>& output_grad, cudaStream_t stream,
                     int64_t most_rows = INT64_MAX);
bool launch_grid(const ForwardPass& pass, cudaStream_t stream);
bool launch_grid(const BackwardPass& pass, cudaStream_t stream);
// On tensor cores.
bool launch_tensor_cores(const ForwardPass& pass, const Tensor& weight, cudaStream_t stream);
bool launch_tensor_cores(const BackwardPass& pass, const Tensor& weight, cudaStream_t stream);

}  // namespace torchgraft::lltm::cuda
