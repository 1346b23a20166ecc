// Conversion of weight_hh for tensor cores, and of rows into halves.
//
// Each number is read once or twice and written once, in two bytes: 50 MB of float for 2048 units, 20 us. A
// block has a row, or a tile of 32 x 32 that it transposes in shared memory.

#include "mma_weight.h"

#include <torchgraft/cuda.cuh>

#include "split.cuh"

namespace torchgraft::lltm::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kTile = 32;
// A thread finds the largest number of a column in so many rows.
constexpr int64_t kRowsOfBlock = 64;

// Copies groups of `rows` rows of `columns` numbers to groups of `padded_rows` rows of `padded_columns`, with
// zeros in what is new, and the lower halves to `low` where that is not null. With `scales` each row is
// divided by a power of two, its scale.
template <typename Factor>
__global__ void __launch_bounds__(kThreads)
    mma_weight_rows(DynamicInput from, Factor* to, Factor* low, float* scales, int64_t rows, int64_t columns,
                    int64_t padded_rows, int64_t padded_columns) {
  const int64_t place = blockIdx.x;
  const int64_t row = place % padded_rows;
  const int64_t count = row < rows ? columns : 0;
  const int64_t first = (place / padded_rows * rows + row) * columns;
  float factor = 1.0f;
  if (scales != nullptr) {
    float largest = 0.0f;
#pragma unroll 4
    for (int64_t k = threadIdx.x; k < count; k += kThreads) {
      largest = fmaxf(largest, finite_magnitude(from[first + k]));
    }
    factor = power_to_fill_half(largest_of_block(largest));
    if (threadIdx.x == 0) scales[place] = 1.0f / factor;
  }
#pragma unroll 4
  for (int64_t k = threadIdx.x; k < padded_columns; k += kThreads) {
    const float number = k < count ? from[first + k] * factor : 0.0f;
    const int64_t at = place * padded_columns + k;
    if (low == nullptr) {
      to[at] = rounded_to_no_zero<Factor>(number);
    } else {
      const Split<Factor> split(number);
      to[at] = split.high;
      low[at] = split.low;
    }
  }
}

// A thread a column of some rows: the largest finite number of each, into memory that is zero at first. Bits
// of numbers that are not negative are ordered as the numbers are.
__global__ void __launch_bounds__(kThreads)
    mma_weight_column_max(DynamicInput from, uint32_t* largest, int64_t rows, int64_t columns) {
  const int64_t column = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (column >= columns) return;
  const int64_t first = int64_t{blockIdx.y} * kRowsOfBlock;
  const int64_t end = min(first + kRowsOfBlock, rows);
  float found = 0.0f;
#pragma unroll 8
  for (int64_t row = first; row < end; ++row)
    found = fmaxf(found, finite_magnitude(from[row * columns + column]));
  atomicMax(largest + column, __float_as_uint(found));
}

// A block a tile of the transpose: 32 units of one gate times 32 units of h, each multiplied by the power of
// two for its largest number, unless `largest` is null.
template <typename Factor>
__global__ void __launch_bounds__(kThreads)
    mma_weight_transposed(DynamicInput from, Factor* to, float* scales, const float* largest, int64_t units,
                          int64_t padded) {
  __shared__ float tile[kTile][kTile + 1];
  const int64_t tiles = ceil_divide<int64_t>(padded, kTile);
  const int64_t gate = blockIdx.y / tiles;
  const int64_t first_unit = blockIdx.y % tiles * kTile;
  const int64_t first_column = int64_t{blockIdx.x} * kTile;
  const auto lane = static_cast<int>(threadIdx.x) % kTile;
  const auto warp = static_cast<int>(threadIdx.x) / kTile;
#pragma unroll
  for (int row = warp; row < kTile; row += kThreads / kTile) {
    const int64_t unit = first_unit + row;
    const int64_t k = first_column + lane;
    tile[row][lane] = unit < units && k < units ? from[(gate * units + unit) * units + k] : 0.0f;
  }
  __syncthreads();
#pragma unroll
  for (int row = warp; row < kTile; row += kThreads / kTile) {
    const int64_t k = first_column + row;
    const int64_t unit = first_unit + lane;
    if (k >= padded || unit >= padded) continue;
    float factor = 1.0f;
    if (largest != nullptr) {
      factor = power_to_fill_half(largest[k]);
      if (blockIdx.y == 0 && lane == 0) scales[k] = 1.0f / factor;
    }
    to[(k * 3 + gate) * padded + unit] = rounded_to_no_zero<Factor>(tile[lane][row] * factor);
  }
}

}  // namespace

template <typename T>
MmaWeight row_scaled_weight(const Tensor& weight, cudaStream_t stream) {
  constexpr ScalarType dtype = dtype_of<T>();
  const int64_t units = weight.size(1);
  const int64_t padded = padded_to_whole(units);
  const bool is_scaled = std::is_same_v<T, Half> && weight.scalar_type() != dtype;
  TORCHGRAFT_CHECK(is_scaled || weight.scalar_type() == dtype, "lltm: only a weight in float16 is scaled");
  if (!is_scaled && units == padded && is_aligned(weight.const_data_ptr(), 16)) {
    return {weight, std::nullopt, padded};
  }
  MmaWeight result = {empty_of({3 * padded, padded}, dtype, weight), std::nullopt, padded};
  if (is_scaled) result.scales = empty_of({3 * padded}, ScalarType::Float, weight);
  float* const scales = is_scaled ? mutable_data<float>(*result.scales) : nullptr;
  mma_weight_rows<T><<<grid_of(3 * padded, "lltm"), kThreads, 0, stream>>>(
      DynamicInput(weight), mutable_data<T>(result.matrix), nullptr, scales, units, units, padded, padded);
  check_launch("lltm");
  return result;
}

template <typename T>
MmaWeight column_scaled_weight(const Tensor& weight, cudaStream_t stream) {
  constexpr ScalarType dtype = dtype_of<T>();
  const int64_t units = weight.size(1);
  const int64_t padded = padded_to_whole(units);
  MmaWeight result = {empty_of({padded, 3 * padded}, dtype, weight), std::nullopt, padded};
  std::optional<Tensor> largest;
  float* scales = nullptr;
  if (weight.scalar_type() != dtype) {
    result.scales = empty_of({padded}, ScalarType::Float, weight);
    scales = mutable_data<float>(*result.scales);
    largest = empty_of({padded}, ScalarType::Float, weight);
    torch::stable::zero_(*largest);
    const dim3 grid(grid_of(ceil_divide<int64_t>(units, kThreads), "lltm"),
                    static_cast<unsigned>(ceil_divide(3 * units, kRowsOfBlock)));
    mma_weight_column_max<<<grid, kThreads, 0, stream>>>(
        DynamicInput(weight), static_cast<uint32_t*>(largest->mutable_data_ptr()), 3 * units, units);
    check_launch("lltm");
  }
  const int64_t tiles = ceil_divide<int64_t>(padded, kTile);
  const dim3 grid(grid_of(tiles, "lltm"), static_cast<unsigned>(3 * tiles));
  mma_weight_transposed<T><<<grid, kThreads, 0, stream>>>(
      DynamicInput(weight), mutable_data<T>(result.matrix), scales, data<float>(largest), units, padded);
  check_launch("lltm");
  return result;
}

template MmaWeight row_scaled_weight<Half>(const Tensor&, cudaStream_t);
template MmaWeight row_scaled_weight<BFloat16>(const Tensor&, cudaStream_t);
template MmaWeight column_scaled_weight<Half>(const Tensor&, cudaStream_t);
template MmaWeight column_scaled_weight<BFloat16>(const Tensor&, cudaStream_t);

void split_rows(const DynamicInput& rows, int64_t count, int64_t columns, Half* high, Half* low,
                float* scales, int64_t padded, cudaStream_t stream) {
  mma_weight_rows<Half><<<grid_of(count, "lltm"), kThreads, 0, stream>>>(rows, high, low, scales, count,
                                                                         columns, count, padded);
  check_launch("lltm");
}

}  // namespace torchgraft::lltm::cuda
