// segment_sum and its gradient on CUDA, as functions of tvm-ffi.
//
// Starts lie on the GPU, and to look at them the host would have to wait. The kernels therefore stay inside
// of the rows whatever starts hold; for starts that are no segments, the results mean nothing. Sums are in
// double, in the order of the rows, as on a CPU.

#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/error.h>
#include <tvm/ffi/extra/c_env_api.h>
#include <tvm/ffi/function.h>

#include <algorithm>
#include <cstdint>
#include <type_traits>

namespace {

using tvm::ffi::TensorView;

constexpr int kThreads = 256;
// A thread goes on to the next element where there are more than a grid has threads.
constexpr int64_t kMostBlocks = 1 << 20;

__device__ int64_t clamped(int64_t row, int64_t rows) { return row < 0 ? 0 : row > rows ? rows : row; }

// A thread owns a column of a segment, so neighbours read neighbours.
template <typename T>
__global__ void sum(const T* values, const int64_t* starts, T* sums, int64_t count, int64_t rows,
                    int64_t columns) {
  const int64_t all = count * columns;
  for (int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x; i < all;
       i += int64_t{gridDim.x} * kThreads) {
    const int64_t segment = i / columns, column = i % columns;
    const int64_t end = segment + 1 < count ? clamped(starts[segment + 1], rows) : rows;
    double total = 0;
    for (int64_t row = clamped(starts[segment], rows); row < end; ++row)
      total += values[row * columns + column];
    sums[i] = static_cast<T>(total);
  }
}

// A thread owns an element of the rows: it looks for the last segment that does not begin behind its row.
template <typename T>
__global__ void spread(const T* sums_grad, const int64_t* starts, T* values_grad, int64_t count, int64_t rows,
                       int64_t columns) {
  const int64_t all = rows * columns;
  for (int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x; i < all;
       i += int64_t{gridDim.x} * kThreads) {
    const int64_t row = i / columns;
    int64_t low = 0, high = count;
    while (low < high) {
      const int64_t middle = low + (high - low) / 2;
      if (starts[middle] <= row) {
        low = middle + 1;
      } else {
        high = middle;
      }
    }
    values_grad[i] = low == 0 ? T(0) : sums_grad[(low - 1) * columns + i % columns];
  }
}

void check_sizes(TensorView starts, TensorView sums, TensorView values) {
  if (sums.size(0) != starts.size(0) || sums.size(1) != values.size(1)) {
    TVM_FFI_THROW(ValueError) << "sums must have a row for each of " << starts.size(0)
                              << " segments, and the columns of values";
  }
}

template <typename Kernel, typename T>
void launch(Kernel kernel, int64_t threads, TensorView from, TensorView starts, TensorView to, int64_t rows,
            const T*) {
  if (threads == 0) return;
  const DLDevice device = from.device();
  const auto stream = static_cast<cudaStream_t>(TVMFFIEnvGetStream(device.device_type, device.device_id));
  const int64_t blocks = std::min((threads + kThreads - 1) / kThreads, kMostBlocks);
  kernel<<<static_cast<unsigned>(blocks), kThreads, 0, stream>>>(
      static_cast<const T*>(from.data_ptr()), static_cast<const int64_t*>(starts.data_ptr()),
      static_cast<T*>(to.data_ptr()), starts.size(0), rows, to.size(1));
  if (const cudaError_t error = cudaGetLastError(); error != cudaSuccess) {
    TVM_FFI_THROW(RuntimeError) << cudaGetErrorString(error);
  }
}

// Calls a function with a null pointer of the type of the elements.
template <typename Function>
void dispatch(TensorView tensor, Function function) {
  const DLDataType dtype = tensor.dtype();
  if (dtype.code != kDLFloat || (dtype.bits != 32 && dtype.bits != 64)) {
    TVM_FFI_THROW(TypeError) << "values must be float32 or float64";
  }
  dtype.bits == 32 ? function(static_cast<const float*>(nullptr))
                   : function(static_cast<const double*>(nullptr));
}

void segment_sum(TensorView values, TensorView starts, TensorView sums) {
  check_sizes(starts, sums, values);
  dispatch(values, [&](auto* tag) {
    using T = std::remove_const_t<std::remove_pointer_t<decltype(tag)>>;
    launch(sum<T>, sums.size(0) * sums.size(1), values, starts, sums, values.size(0), tag);
  });
}

// The number of rows is the size of `values_grad`.
void segment_sum_backward(TensorView sums_grad, TensorView starts, int64_t rows, TensorView values_grad) {
  check_sizes(starts, sums_grad, values_grad);
  dispatch(sums_grad, [&](auto* tag) {
    using T = std::remove_const_t<std::remove_pointer_t<decltype(tag)>>;
    launch(spread<T>, values_grad.size(0) * values_grad.size(1), sums_grad, starts, values_grad,
           values_grad.size(0), tag);
  });
}

}  // namespace

TVM_FFI_DLL_EXPORT_TYPED_FUNC(segment_sum, segment_sum);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(segment_sum_backward, segment_sum_backward);
