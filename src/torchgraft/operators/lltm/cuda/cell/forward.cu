// A cell's whole step as one kernel: both products, and what a unit makes of them.
//
// A block owns eight units, whose gates are 24 rows of weights, and sixteen rows of the batch. Those of the
// inputs and then of the states come through shared memory, kDepth columns at a time. In a warp a lane owns a
// unit and four rows, 12 sums that seven accesses of sixteen bytes feed with 48 products; the eight warps
// share out the columns, and add up in the end, in their order.
//
// B16, I32, S128: 1 million products in 16 blocks, bound by latency: a launch, a load, some 200 accesses to
// shared memory, a barrier or two, some 4 us. B64, I512, S512: 100 million in 256 blocks, four rounds of
// loads of 80 KB a multiprocessor, some 12 us, where three launches took 31.

#include <torchgraft/cuda.cuh>

#include "../kernels.h"
#include "../unit.cuh"

namespace torchgraft::lltm::cuda {
namespace {

constexpr int kUnits = 8;
constexpr int kRows = 16;
constexpr int kRowsOfLane = 4;
constexpr int kGroups = kRows / kRowsOfLane;  // of rows: lanes side by side
constexpr int kWarps = 8;
constexpr int kCellThreads = kWarps * 32;
constexpr int kDepth = 256;
// Rows begin four banks apart, so that accesses to eight of them meet no bank twice.
constexpr int kPitch = kDepth + 4;
static_assert(kUnits * kGroups == 32, "a warp is all units and rows of the block");
static_assert(kUnits * kRows <= kCellThreads, "a thread makes one result");

// Rows `first` to `first + kCount` of a matrix, columns `column` to `column + kDepth`; zeros where there are
// none.
template <int kCount, typename Row>
__device__ __forceinline__ void load_tile(float* shared, const float* matrix, int64_t columns, int64_t column,
                                          const Row& row_of) {
  constexpr int kStep = kCellThreads / kDepth;
  static_assert(kStep * kDepth == kCellThreads && kCount % kStep == 0, "a thread brings one column");
  const int64_t at = column + threadIdx.x % kDepth;
  float values[kCount / kStep];
#pragma unroll
  for (int i = 0; i < kCount / kStep; ++i) {
    const int64_t row = row_of(i * kStep + static_cast<int>(threadIdx.x) / kDepth);
    values[i] = row >= 0 && at < columns ? matrix[row * columns + at] : 0.f;
  }
#pragma unroll
  for (int i = 0; i < kCount / kStep; ++i) {
    shared[(i * kStep + threadIdx.x / kDepth) * kPitch + threadIdx.x % kDepth] = values[i];
  }
}

// The sums of a lane: of four rows and the three gates of a unit.
using Sums = float[kRowsOfLane][3];

// A thread's part in the sums of a block. Shared memory holds 3 * kUnits rows of weights, and kRows rows of
// the batch.
struct CellThread {
  const CellPass& pass;
  float* const weights;
  float* const rows;
  const int64_t first_unit = static_cast<int64_t>(blockIdx.x) * kUnits;
  const int64_t first_row = static_cast<int64_t>(blockIdx.y) * kRows;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int unit = lane % kUnits;
  const int group = lane / kUnits;

  // Adds the products of vectors, one for each row of the batch, with the rows of a matrix.
  __device__ __forceinline__ void multiply(Sums& sums, const float* vectors, const float* matrix,
                                           int64_t depth) const {
    for (int64_t column = 0; column < depth; column += kDepth) {
      __syncthreads();
      load_tile<3 * kUnits>(weights, matrix, depth, column, [&](int index) {
        const int64_t of = first_unit + index % kUnits;
        return of < pass.units ? index / kUnits * pass.units + of : int64_t{-1};
      });
      load_tile<kRows>(rows, vectors, depth, column, [&](int index) {
        const int64_t of = first_row + index;
        return of < pass.batch ? of : int64_t{-1};
      });
      __syncthreads();
      const int64_t left = depth - column;
      const int columns = left < kDepth ? static_cast<int>(left) : kDepth;
      for (int k = 4 * warp; k < columns; k += 4 * kWarps) add_products(sums, k);
    }
  }

  // Adds the products of four columns.
  __device__ __forceinline__ void add_products(Sums& sums, int k) const {
    float4 of_gates[3];
    float4 of_rows[kRowsOfLane];
#pragma unroll
    for (int g = 0; g < 3; ++g) {
      of_gates[g] = *reinterpret_cast<const float4*>(weights + (g * kUnits + unit) * kPitch + k);
    }
#pragma unroll
    for (int r = 0; r < kRowsOfLane; ++r) {
      of_rows[r] = *reinterpret_cast<const float4*>(rows + (r * kGroups + group) * kPitch + k);
    }
#pragma unroll
    for (int r = 0; r < kRowsOfLane; ++r) {
#pragma unroll
      for (int g = 0; g < 3; ++g) {
        float& sum = sums[r][g];
        sum = fmaf(of_rows[r].x, of_gates[g].x, sum);
        sum = fmaf(of_rows[r].y, of_gates[g].y, sum);
        sum = fmaf(of_rows[r].z, of_gates[g].z, sum);
        sum = fmaf(of_rows[r].w, of_gates[g].w, sum);
      }
    }
  }

  // Leaves the sums of the warps in shared memory, as [warp][row][gate][unit], over what the rows of weights
  // took.
  __device__ __forceinline__ const float* share_sums(const Sums& sums) const {
    float* parts = weights;
    static_assert(kWarps * kRows * 3 * kUnits <= 3 * kUnits * kPitch, "the parts fit");
    __syncthreads();
#pragma unroll
    for (int r = 0; r < kRowsOfLane; ++r) {
#pragma unroll
      for (int g = 0; g < 3; ++g) {
        parts[((warp * kRows + r * kGroups + group) * 3 + g) * kUnits + unit] = sums[r][g];
      }
    }
    __syncthreads();
    return parts;
  }

  // Adds up the sums of one row and unit, and makes its step.
  __device__ __forceinline__ void step(const float* parts) const {
    const int index = static_cast<int>(threadIdx.x);
    const int64_t row = first_row + index / kUnits;
    const int64_t own_unit = first_unit + index % kUnits;
    if (index >= kUnits * kRows || row >= pass.batch || own_unit >= pass.units) return;
    float gates[3];
#pragma unroll
    for (int g = 0; g < 3; ++g) {
      gates[g] = pass.bias != nullptr ? pass.bias[g * pass.units + own_unit] : 0.f;
#pragma unroll
      for (int w = 0; w < kWarps; ++w) {
        gates[g] += parts[((w * kRows + index / kUnits) * 3 + g) * kUnits + index % kUnits];
      }
    }
    const int64_t place = row * pass.units + own_unit;
    float c = pass.c[place];
    const float h = step_forward(gates[0], gates[1], gates[2], c);
#pragma unroll
    for (int g = 0; g < 3; ++g) pass.activations[(row * 3 + g) * pass.units + own_unit] = gates[g];
    pass.h_after[place] = h;
    pass.c_after[place] = c;
  }
};

__global__ void __launch_bounds__(kCellThreads) cell_forward(CellPass pass) {
  __shared__ __align__(16) float weights[3 * kUnits * kPitch];
  __shared__ __align__(16) float rows[kRows * kPitch];
  const CellThread thread = {pass, weights, rows};
  Sums sums = {};
  thread.multiply(sums, pass.input, pass.weight_ih, pass.features);
  thread.multiply(sums, pass.h, pass.weight_hh, pass.units);
  thread.step(thread.share_sums(sums));
}

}  // namespace

void launch_cell_forward(const CellPass& pass, cudaStream_t stream) {
  const dim3 grid(grid_of(ceil_divide<int64_t>(pass.units, kUnits), "lltm_cell"),
                  static_cast<unsigned>(ceil_divide<int64_t>(pass.batch, kRows)));
  cell_forward<<<grid, kCellThreads, 0, stream>>>(pass);
  check_launch("lltm_cell");
}

}  // namespace torchgraft::lltm::cuda
