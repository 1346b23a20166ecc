// The gradients of gates as halves that tensor cores multiply, and their sums over all rows; and h before
// each step, which they are multiplied with.
//
// A gradient in float is the sum of two numbers of T, `high` and `low`: 22 bits of it in float16 and 16 in
// bfloat16, as in the recurrence (split.cuh). Numbers of float16 are of the matrix multiplied by
// a power of two for its largest number. A row's halves lie side by side, so that
//
//     gates_grad @ weight     is one product of twice the depth, with the weight below itself, or, of few
//                             rows, two into sums of their own;
//     gates_grad.T @ factor   is one for both halves: side by side into two sums, or, of few rows, one above
//                             the other, with each row of the factor twice, into one; and a second for the
//                             lower half of a factor; into sums of a weight's size each,
//
// and one kernel adds the sums up and rounds them.
//
// Of each number of gates_grad 4 bytes are read for the sums, that of the bias, and the largest number of
// float16; 4 are read and 4 written for the halves, and those are read again by each product. Of 65,536 rows
// and 768 columns that is 200 MB, 50 us at 4 TB/s, and twice that; and 26 billion operations a product of
// halves, 40 us at 650 TFLOP/s, of which there are seven for a sequence and eight for a cell. Measured were
// 99 us for the halves, 73 for h and its halves, 39 a product and 33 for what is rounded.

#include "products.h"

#include <torchgraft/cuda.cuh>

#include "../policy.h"
#include "../split.cuh"
#include "multiply.h"

namespace torchgraft::lltm::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kLanes = 32;
constexpr int kRowsOfBlock = kThreads / kLanes;
constexpr int kAbreast = 8;  // numbers that a thread has under way at once
// Blocks that sum columns, so many a multiprocessor, as far as there are rows; and how many at most are
// summed up after them.
constexpr int64_t kBlocksOfSums = 8;
constexpr int64_t kMostShares = 256;

template <typename Kept, typename T>
struct HiddenSource {
  HiddenStates<Kept, T> states;

  struct Row {
    const Kept* activations;
    const Kept* cells;
    const T* h0;

    __device__ Kept operator[](int64_t unit) const {
      if (h0 != nullptr) return static_cast<Kept>(h0[unit]);
      return tanh(cells[unit]) * activations[unit];
    }
  };

  __device__ Row operator()(int64_t row) const {
    const int64_t t = row / states.batch;
    if (t == (states.reverse ? states.steps - 1 : 0)) {
      return {nullptr, nullptr, states.h0 + (row - t * states.batch) * states.units};
    }
    const int64_t before = states.reverse ? row + states.batch : row - states.batch;
    return {states.activations + (3 * before + 1) * states.units, states.cells + before * states.units,
            nullptr};
  }
};

// A matrix of float; with `largest` it is multiplied by the power of two that brings that number near the
// largest of float16.
struct MatrixSource {
  const float* matrix;
  int64_t columns;
  const float* largest;

  struct Row {
    const float* row;
    float power;

    __device__ float operator[](int64_t column) const { return row[column] * power; }
  };

  __device__ Row operator()(int64_t row) const {
    return {matrix + row * columns, largest == nullptr ? 1.0f : power_to_fill_half(*largest)};
  }
};

// A matrix of T as it is.
template <typename T>
struct PlainSource {
  const T* matrix;
  int64_t pitch;

  __device__ const T* operator()(int64_t row) const { return matrix + row * pitch; }
};

template <typename Kept>
struct PlainSink {
  Kept* matrix;
  int64_t pitch;

  __device__ void put(int64_t row, int64_t column, Kept value) const { matrix[row * pitch + column] = value; }
};

template <typename T>
struct HalvesSink {
  T* matrix;
  int64_t pitch;

  __device__ void put(int64_t row, int64_t column, float value) const {
    const Split<T> split(value);
    matrix[2 * row * pitch + column] = split.high;
    matrix[(2 * row + 1) * pitch + column] = split.low;
  }
};

// Every row twice.
template <typename T>
struct TwiceSink {
  T* matrix;
  int64_t pitch;

  __device__ void put(int64_t row, int64_t column, T value) const {
    matrix[2 * row * pitch + column] = value;
    matrix[(2 * row + 1) * pitch + column] = value;
  }
};

// Every number of `source`, (rows, columns), into `sink`, and zeros after them up to its pitch.
template <typename Source, typename Sink>
__global__ void __launch_bounds__(kThreads)
    rows_kernel(Source source, Sink sink, int64_t rows, int64_t columns) {
  const int64_t row = static_cast<int64_t>(blockIdx.x) * kRowsOfBlock + threadIdx.y;
  if (row >= rows) return;
  const int64_t first = static_cast<int64_t>(blockIdx.y) * kLanes * kAbreast + threadIdx.x;
  const auto from = source(row);
  std::decay_t<decltype(from[0])> values[kAbreast];
#pragma unroll
  for (int i = 0; i < kAbreast; ++i) {
    const int64_t column = first + i * kLanes;
    values[i] = column < columns ? from[column] : std::decay_t<decltype(from[0])>(0);
  }
#pragma unroll
  for (int i = 0; i < kAbreast; ++i) {
    const int64_t column = first + i * kLanes;
    if (column < sink.pitch) sink.put(row, column, values[i]);
  }
}

template <typename Source, typename Sink>
void launch_rows(const Source& source, const Sink& sink, int64_t rows, int64_t columns, cudaStream_t stream) {
  if (rows == 0 || columns == 0) return;
  const dim3 grid(grid_of(ceil_divide<int64_t>(rows, kRowsOfBlock), "lltm_grads"),
                  grid_of(ceil_divide<int64_t>(sink.pitch, kLanes * kAbreast), "lltm_grads"));
  rows_kernel<<<grid, dim3(kLanes, kRowsOfBlock), 0, stream>>>(source, sink, rows, columns);
  check_launch("lltm_grads");
}

// The sums of a matrix's columns over a share of its rows, and its largest finite number, as bits, which are
// ordered as the numbers are where none is negative. A lane owns a column, and the warps share out the rows.
template <typename T, bool kLargest>
__global__ void __launch_bounds__(kThreads)
    share_sums_kernel(const T* matrix, int64_t rows, int64_t columns, T* sums, unsigned* largest) {
  const int64_t column = static_cast<int64_t>(blockIdx.x) * kLanes + threadIdx.x;
  const int64_t share = ceil_divide<int64_t>(rows, gridDim.y);
  const int64_t begin = blockIdx.y * share;
  const int64_t end = begin + share < rows ? begin + share : rows;
  T sum = T(0);
  float size = 0.0f;
  for (int64_t first = begin + threadIdx.y; first < end; first += kRowsOfBlock * kAbreast) {
    T values[kAbreast];
#pragma unroll
    for (int i = 0; i < kAbreast; ++i) {
      const int64_t row = first + i * kRowsOfBlock;
      values[i] = row < end && column < columns ? matrix[row * columns + column] : T(0);
    }
#pragma unroll
    for (int i = 0; i < kAbreast; ++i) {
      sum += values[i];
      if constexpr (kLargest) size = fmaxf(size, finite_size(values[i]));
    }
  }
  __shared__ T of_warps[kRowsOfBlock][kLanes];
  of_warps[threadIdx.y][threadIdx.x] = sum;
  if constexpr (kLargest) {
    size = largest_of_warp(size);
    if (threadIdx.x == 0 && size > 0.0f) atomicMax(largest, __float_as_uint(size));
  }
  __syncthreads();
  if (threadIdx.y != 0 || column >= columns) return;
#pragma unroll
  for (int warp = 1; warp < kRowsOfBlock; ++warp) sum += of_warps[warp][threadIdx.x];
  sums[blockIdx.y * columns + column] = sum;
}

// What the shares' sums add up to, in their order.
template <typename Kept, typename T>
__global__ void __launch_bounds__(kThreads)
    column_sums_kernel(const Kept* sums, int64_t shares, int64_t columns, T* results) {
  const int64_t column = static_cast<int64_t>(blockIdx.x) * kLanes + threadIdx.x;
  Kept sum = Kept(0);
  if (column < columns) {
#pragma unroll 4
    for (int64_t share = threadIdx.y; share < shares; share += kRowsOfBlock) {
      sum += sums[share * columns + column];
    }
  }
  __shared__ Kept of_warps[kRowsOfBlock][kLanes];
  of_warps[threadIdx.y][threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.y != 0 || column >= columns) return;
#pragma unroll
  for (int warp = 1; warp < kRowsOfBlock; ++warp) sum += of_warps[warp][threadIdx.x];
  results[column] = static_cast<T>(sum);
}

// What `count` sums add up to, element by element, without the power of two that they were multiplied by.
// From one to the next they are so far apart.
template <typename T>
__global__ void __launch_bounds__(kThreads) rounded_kernel(const float* sums, int count, int64_t distance,
                                                           const float* largest, T* results, int64_t size) {
  const float power = largest == nullptr ? 1.0f : 1.0f / power_to_fill_half(*largest);
  const int64_t first = static_cast<int64_t>(blockIdx.x) * kThreads * kAbreast + threadIdx.x;
  float values[kAbreast] = {};
  for (int part = 0; part < count; ++part) {
#pragma unroll
    for (int i = 0; i < kAbreast; ++i) {
      const int64_t index = first + i * kThreads;
      if (index < size) values[i] += sums[part * distance + index];
    }
  }
#pragma unroll
  for (int i = 0; i < kAbreast; ++i) {
    const int64_t index = first + i * kThreads;
    if (index < size) results[index] = static_cast<T>(values[i] * power);
  }
}

unsigned flat_grid(int64_t count) {
  return grid_of(ceil_divide<int64_t>(count, kThreads * kAbreast), "lltm_grads");
}

// The higher or the lower halves of (rows, 2 pitch).
Tensor half_of(const Tensor& halves, int64_t columns, bool is_low) {
  return torch::stable::narrow(const_cast<Tensor&>(halves), 1, is_low ? halves.size(1) / 2 : 0, columns);
}

// sums[part] = left @ right
void multiply_into(const Tensor& sums, int64_t part, const Tensor& left, const Tensor& right) {
  Tensor result = torch::stable::select(sums, 0, part);
  multiply(left, right, result);
}

}  // namespace

TORCHGRAFT_KERNELS(lltm_grads, kSequenceGradsRules)

template <typename Kept, typename T>
Tensor hidden_before(const HiddenStates<Kept, T>& states, const Tensor& like, cudaStream_t stream) {
  const int64_t rows = states.steps * states.batch;
  Tensor result = empty_of({rows, states.units}, dtype_of<Kept>(), like);
  launch_rows(HiddenSource<Kept, T>{states}, PlainSink<Kept>{mutable_data<Kept>(result), states.units}, rows,
              states.units, stream);
  return result;
}

template <typename T>
Factor hidden_halves_before(const HiddenStates<float, T>& states, const Tensor& like, cudaStream_t stream) {
  const int64_t rows = states.steps * states.batch;
  const int64_t pitch = padded_to_whole(states.units);
  Tensor halves = empty_of({rows, 2 * pitch}, like.scalar_type(), like);
  launch_rows(HiddenSource<float, T>{states}, HalvesSink<T>{mutable_data<T>(halves), pitch}, rows,
              states.units, stream);
  return {half_of(halves, states.units, false), half_of(halves, states.units, true)};
}

template <typename Kept, typename T>
Tensor column_sums(const Tensor& matrix, float* largest, cudaStream_t stream) {
  const int64_t rows = matrix.size(0);
  const int64_t columns = matrix.size(1);
  Tensor result = empty_of({columns}, dtype_of<T>(), matrix);
  const int64_t tiles = ceil_divide<int64_t>(columns, kLanes);
  const int64_t blocks = kBlocksOfSums * current_device().multiprocessors;
  const int64_t shares =
      std::clamp<int64_t>(std::min(blocks / tiles, rows / (kRowsOfBlock * kAbreast)), 1, kMostShares);
  Tensor sums = empty_of({shares, columns}, matrix.scalar_type(), matrix);
  const dim3 block(kLanes, kRowsOfBlock);
  const dim3 grid(grid_of(tiles, "lltm_grads"), static_cast<unsigned>(shares));
  auto* const bits = reinterpret_cast<unsigned*>(largest);
  if constexpr (std::is_same_v<Kept, float>) {
    const auto kernel = largest == nullptr ? share_sums_kernel<float, false> : share_sums_kernel<float, true>;
    kernel<<<grid, block, 0, stream>>>(data<float>(matrix), rows, columns, mutable_data<float>(sums), bits);
  } else {
    share_sums_kernel<Kept, false>
        <<<grid, block, 0, stream>>>(data<Kept>(matrix), rows, columns, mutable_data<Kept>(sums), bits);
  }
  check_launch("lltm_grads");
  column_sums_kernel<Kept, T>
      <<<grid.x, block, 0, stream>>>(data<Kept>(sums), shares, columns, mutable_data<T>(result));
  check_launch("lltm_grads");
  return result;
}

template <typename T>
GateHalves<T>::GateHalves(const Tensor& gates_grad, bool of_bias, cudaStream_t stream)
    : dtype_(dtype_of<T>()),
      stream_(stream),
      width_(gates_grad.size(1)),
      pitch_(padded_to_whole(width_)),
      halves_(empty_of({gates_grad.size(0), 2 * pitch_}, dtype_, gates_grad)),
      bias_(empty_of({0}, dtype_, gates_grad)) {
  if constexpr (std::is_same_v<T, Half>) {
    largest_ = empty_workspace<float>(1, gates_grad);
    TORCHGRAFT_CHECK(cudaMemsetAsync(mutable_data<float>(*largest_), 0, sizeof(float), stream) == cudaSuccess,
                     "lltm_grads: memory could not be cleared");
  }
  if (of_bias || largest_.has_value()) {
    float* const largest = largest_.has_value() ? mutable_data<float>(*largest_) : nullptr;
    const Tensor sums = column_sums<float, T>(gates_grad, largest, stream);
    if (of_bias) bias_ = sums;
  }
  launch_rows(MatrixSource{data<float>(gates_grad), width_, data<float>(largest_)},
              HalvesSink<T>{mutable_data<T>(halves_), pitch_}, gates_grad.size(0), width_, stream);
}

template <typename T>
Tensor GateHalves<T>::times(bool is_wanted, const Tensor& weight) const {
  if (!is_wanted) return empty_of({0}, dtype_, halves_);
  const int64_t rows = halves_.size(0);
  const int64_t columns = weight.size(1);
  if (rows < width_) {
    // Two sums are less than a copy of the weight.
    Tensor sums = empty_of({2, rows, columns}, ScalarType::Float, halves_);
    multiply_into(sums, 0, half_of(halves_, width_, false), weight);
    multiply_into(sums, 1, half_of(halves_, width_, true), weight);
    return rounded(sums, rows);
  }
  Tensor stacked = empty_of({2 * pitch_, columns}, dtype_, weight);
  if (pitch_ != width_) torch::stable::zero_(stacked);
  for (const int64_t first : {int64_t{0}, pitch_}) {
    Tensor place = torch::stable::narrow(stacked, 0, first, width_);
    torch::stable::copy_(place, weight);
  }
  Tensor sums = empty_of({1, rows, columns}, ScalarType::Float, halves_);
  multiply_into(sums, 0, halves_, stacked);
  return rounded(sums, rows);
}

template <typename T>
Tensor GateHalves<T>::transposed_times(bool is_wanted, const Factor& factor) const {
  if (!is_wanted) return empty_of({0}, dtype_, halves_);
  const int64_t rows = halves_.size(0);
  const int64_t columns = factor.high.size(1);
  // Both halves of each row times the same of the factor: of few rows a copy of it is less than another sum.
  const bool copies = rows < width_;
  const int64_t of_high = copies ? 1 : 2;
  Tensor sums =
      empty_of({of_high + (factor.low.has_value() ? 1 : 0), pitch_, columns}, ScalarType::Float, halves_);
  Tensor all = torch::stable::view(sums, {sums.size(0) * pitch_, columns});
  Tensor high_sums = torch::stable::narrow(all, 0, 0, of_high * pitch_);
  if (copies) {
    const Tensor both = torch::stable::view(halves_, {2 * rows, pitch_});
    multiply(transposed(both), twice(factor.high), high_sums);
  } else {
    multiply(transposed(halves_), factor.high, high_sums);
  }
  if (factor.low.has_value()) {
    Tensor low_sums = torch::stable::narrow(all, 0, of_high * pitch_, width_);
    multiply(transposed(half_of(halves_, width_, false)), *factor.low, low_sums);
  }
  return rounded(sums, width_);
}

template <typename T>
Tensor GateHalves<T>::twice(const Tensor& matrix) const {
  const Tensor source = matrix.stride(1) == 1 ? matrix : to_contiguous(matrix);
  const int64_t rows = source.size(0);
  const int64_t columns = source.size(1);
  const int64_t pitch = padded_to_whole(columns);
  Tensor result = empty_of({2 * rows, pitch}, dtype_, source);
  launch_rows(PlainSource<T>{data<T>(source), source.stride(0)}, TwiceSink<T>{mutable_data<T>(result), pitch},
              rows, columns, stream_);
  return torch::stable::narrow(result, 1, 0, columns);
}

template <typename T>
Tensor GateHalves<T>::rounded(const Tensor& sums, int64_t rows) const {
  Tensor result = empty_of({rows, sums.size(2)}, dtype_, sums);
  const int64_t size = result.numel();
  if (size == 0) return result;
  rounded_kernel<T><<<flat_grid(size), kThreads, 0, stream_>>>(
      data<float>(sums), static_cast<int>(sums.size(0)), sums.size(1) * sums.size(2), data<float>(largest_),
      mutable_data<T>(result), size);
  check_launch("lltm_grads");
  return result;
}

template Tensor hidden_before(const HiddenStates<double, double>&, const Tensor&, cudaStream_t);
template Tensor hidden_before(const HiddenStates<float, float>&, const Tensor&, cudaStream_t);
template Tensor hidden_before(const HiddenStates<float, Half>&, const Tensor&, cudaStream_t);
template Tensor hidden_before(const HiddenStates<float, BFloat16>&, const Tensor&, cudaStream_t);
template Tensor column_sums<double, double>(const Tensor&, float*, cudaStream_t);
template Tensor column_sums<float, float>(const Tensor&, float*, cudaStream_t);
template Tensor column_sums<float, Half>(const Tensor&, float*, cudaStream_t);
template Tensor column_sums<float, BFloat16>(const Tensor&, float*, cudaStream_t);
template Factor hidden_halves_before(const HiddenStates<float, Half>&, const Tensor&, cudaStream_t);
template Factor hidden_halves_before(const HiddenStates<float, BFloat16>&, const Tensor&, cudaStream_t);
template class GateHalves<Half>;
template class GateHalves<BFloat16>;

}  // namespace torchgraft::lltm::cuda
