// The products of the gradients of a small cell or a short sequence, all of them as one kernel.
//
// A block owns 32 x 32 results of one of the products, whose factors come through shared memory, kDepth at a
// time, while the next are on their way. The eight warps share out the depth; in a warp a lane owns 8 x 4
// sums, which three accesses of sixteen bytes feed with 32 products. In the end the warps' sums are added, in
// their order. Factors of two bytes are converted as they come, and results rounded once as they go.

#include <torchgraft/cuda.cuh>

#include <initializer_list>

#include "../kernels.h"
#include "rows.cuh"

namespace torchgraft::lltm::cuda {
namespace {

constexpr int kTile = 32;
constexpr int kDepth = 64;
constexpr int kWarps = 8;
constexpr int kThreadsOfTile = kWarps * 32;
constexpr int kRowsOfLane = 8;
constexpr int kColumnsOfLane = 4;
constexpr int kColumnGroups = kTile / kColumnsOfLane;
// Rows begin four banks apart: eight by four elements, whichever way they come, lie in as many banks.
constexpr int kPitch = kTile + 4;
constexpr int kLoaded = kDepth / kWarps;  // by a thread, of either factor
static_assert(kRowsOfLane * kColumnsOfLane * 32 == kTile * kTile, "a warp has all sums of a tile");

// result = left @ right.
template <typename T>
struct Product {
  const float* left;     // (rows, depth); its rows or its columns are contiguous
  int64_t row_stride;    // of left
  int64_t depth_stride;  // of left
  const T* right;        // (depth, columns), contiguous, or null for a column of ones
  const float* hidden;   // the same in float, and then instead of `right`; or null
  T* result;             // (rows, columns), contiguous
  int64_t rows;
  int64_t columns;
  int64_t depth;
  int64_t first_tile;
};

template <typename T>
struct Products {
  Product<T> each[5];
  int count;
};

// A thread's part in a tile of results of one product. Shared memory holds factors, [depth][row] and
// [depth][column], and then the warps' sums, [warp][row][column].
template <typename T>
struct TileThread {
  const Product<T>& product;
  float* const shared;
  int64_t first_row, column;  // column: that of the right factor which the thread brings
  int lane, warp;
  int left_row, left_depth;  // what the thread brings of the left factor
  const float* left_from;
  int row_of_lane, column_of_lane;  // where the thread's sums begin

  __device__ __forceinline__ TileThread(const Product<T>& product_of_tile, int64_t tile, float* shared_memory)
      : product(product_of_tile), shared(shared_memory) {
    const int64_t across = ceil_divide<int64_t>(product.columns, kTile);
    first_row = tile / across * kTile;
    lane = static_cast<int>(threadIdx.x) % 32;
    warp = static_cast<int>(threadIdx.x) / 32;
    column = tile % across * kTile + lane;
    // The left factor is read along its rows or along the depth, as it lies.
    const bool along_depth = product.depth_stride == 1;
    left_row = along_depth ? warp * 4 + lane / 8 : lane;
    left_depth = along_depth ? lane % 8 : warp;
    static_assert(kWarps == 8, "a thread brings every eighth of the depth, of either factor");
    left_from = product.left + (first_row + left_row) * product.row_stride;
    row_of_lane = lane / kColumnGroups * kRowsOfLane;
    column_of_lane = lane % kColumnGroups * kColumnsOfLane;
  }

  __device__ __forceinline__ float* lefts() const { return shared; }
  __device__ __forceinline__ float* rights() const { return shared + kDepth * kPitch; }

  // Loads factors from `depth` on; zeros where there are none.
  __device__ __forceinline__ void load(float (&left)[kLoaded], T (&right)[kLoaded], float (&hidden)[kLoaded],
                                       int64_t depth) const {
#pragma unroll
    for (int i = 0; i < kLoaded; ++i) {
      const int64_t of_left = depth + i * kWarps + left_depth;
      const int64_t of_right = depth + i * kWarps + warp;
      const bool has_left = first_row + left_row < product.rows && of_left < product.depth;
      const bool has_right = column < product.columns && of_right < product.depth;
      left[i] = has_left ? left_from[of_left * product.depth_stride] : 0.f;
      right[i] = T(0.f);
      hidden[i] = 0.f;
      if (!has_right) continue;
      if (product.hidden != nullptr) {
        hidden[i] = product.hidden[of_right * product.columns + column];
      } else {
        right[i] = product.right == nullptr ? T(1.f) : product.right[of_right * product.columns + column];
      }
    }
  }

  __device__ __forceinline__ void share(const float (&left)[kLoaded], const T (&right)[kLoaded],
                                        const float (&hidden)[kLoaded]) const {
#pragma unroll
    for (int i = 0; i < kLoaded; ++i) {
      lefts()[(i * kWarps + left_depth) * kPitch + left_row] = left[i];
      // Converted here: where it comes a conversion would wait for it, and all that come after it too.
      rights()[(i * kWarps + warp) * kPitch + lane] =
          product.hidden != nullptr ? hidden[i] : static_cast<float>(right[i]);
    }
  }

  // Adds the products of the factors in shared memory.
  __device__ __forceinline__ void multiply(float (&sums)[kRowsOfLane][kColumnsOfLane]) const {
#pragma unroll
    for (int i = 0; i < kLoaded; ++i) {
      const int place = (i * kWarps + warp) * kPitch;
      const float4 top = *reinterpret_cast<const float4*>(lefts() + place + row_of_lane);
      const float4 bottom = *reinterpret_cast<const float4*>(lefts() + place + row_of_lane + 4);
      const float4 across_lane = *reinterpret_cast<const float4*>(rights() + place + column_of_lane);
      const float rows[kRowsOfLane] = {top.x, top.y, top.z, top.w, bottom.x, bottom.y, bottom.z, bottom.w};
      const float columns[kColumnsOfLane] = {across_lane.x, across_lane.y, across_lane.z, across_lane.w};
#pragma unroll
      for (int r = 0; r < kRowsOfLane; ++r) {
#pragma unroll
        for (int c = 0; c < kColumnsOfLane; ++c) sums[r][c] = fmaf(rows[r], columns[c], sums[r][c]);
      }
    }
  }

  // Adds up the sums of the warps, in their order, and stores the results.
  __device__ __forceinline__ void store(const float (&sums)[kRowsOfLane][kColumnsOfLane]) const {
    __syncthreads();
#pragma unroll
    for (int r = 0; r < kRowsOfLane; ++r) {
      float* place = shared + (warp * kTile + row_of_lane + r) * kTile + column_of_lane;
      *reinterpret_cast<float4*>(place) = make_float4(sums[r][0], sums[r][1], sums[r][2], sums[r][3]);
    }
    __syncthreads();
#pragma unroll
    for (int first = 0; first < kTile; first += kWarps) {
      const int row = first + warp;
      float sum = 0.f;
#pragma unroll
      for (int w = 0; w < kWarps; ++w) sum += shared[(w * kTile + row) * kTile + lane];
      if (first_row + row < product.rows && column < product.columns) {
        product.result[(first_row + row) * product.columns + column] = static_cast<T>(sum);
      }
    }
  }
};

template <typename T>
__global__ void __launch_bounds__(kThreadsOfTile) products_together(Products<T> products) {
  __shared__ __align__(16) float shared[kWarps * kTile * kTile];
  static_assert(2 * kDepth * kPitch <= kWarps * kTile * kTile, "the factors fit");
  int which = products.count - 1;
  while (blockIdx.x < products.each[which].first_tile) --which;
  const Product<T>& product = products.each[which];
  const TileThread<T> thread(product, blockIdx.x - product.first_tile, shared);

  float left[kLoaded];
  T right[kLoaded];
  float hidden[kLoaded];  // in place of `right`
  float sums[kRowsOfLane][kColumnsOfLane] = {};
  thread.load(left, right, hidden, 0);
  for (int64_t depth = 0; depth < product.depth; depth += kDepth) {
    __syncthreads();
    thread.share(left, right, hidden);
    __syncthreads();
    thread.load(left, right, hidden, depth + kDepth);
    thread.multiply(sums);
  }
  thread.store(sums);
}

template <typename T>
void launch(Products<T>& products, const char* name, cudaStream_t stream) {
  int64_t tiles = 0;
  for (int i = 0; i < products.count; ++i) {
    Product<T>& product = products.each[i];
    product.first_tile = tiles;
    tiles += ceil_divide<int64_t>(product.rows, kTile) * ceil_divide<int64_t>(product.columns, kTile);
  }
  if (tiles == 0) return;
  products_together<T><<<grid_of(tiles, name), kThreadsOfTile, 0, stream>>>(products);
  check_launch(name);
}

}  // namespace

template <typename T>
Grads launch_products_together(const GradTensors& tensors) {
  const int64_t rows = tensors.sizes.rows();
  const int64_t features = tensors.sizes.features;
  const int64_t units = tensors.sizes.units;
  const int64_t width = 3 * units;
  const Wanted& wanted = tensors.wanted;
  const Tensor input = to_contiguous(tensors.input);
  const Tensor weight_ih = to_contiguous(tensors.weight_ih);
  const Tensor weight_hh = to_contiguous(tensors.weight_hh);
  const bool is_cell = tensors.h.has_value();
  // A sequence needs h for the gradient of weight_hh alone, and has that of h0 already.
  const Tensor h = is_cell ? to_contiguous(*tensors.h) : wanted.weight_hh ? hidden_before<T>(tensors) : input;
  const float* const gates = data<float>(tensors.gates_grad);
  Products<T> products = {};
  // gates @ right where there is a result for each row of the batch, or else gates.T @ right.
  const auto add = [&](bool is_wanted, std::initializer_list<int64_t> shape, const T* right, bool by_rows,
                       const float* hidden = nullptr) {
    if (!is_wanted) return empty_of({0}, dtype_of<T>(), input);
    Tensor result = empty_of(shape, dtype_of<T>(), input);
    const int64_t first = *shape.begin();
    const int64_t columns = shape.size() == 2 ? *(shape.begin() + 1) : 1;
    products.each[products.count++] = {gates,
                                       by_rows ? width : 1,
                                       by_rows ? 1 : width,
                                       right,
                                       hidden,
                                       mutable_data<T>(result),
                                       first,
                                       columns,
                                       by_rows ? width : rows,
                                       0};
    return result;
  };
  Grads grads = {add(wanted.input, {rows, features}, data<T>(weight_ih), true),
                 is_cell ? add(wanted.h, {rows, units}, data<T>(weight_hh), true)
                         : converted(wanted.h, *tensors.h_grad, dtype_of<T>()),
                 converted(tensors.c_grad, dtype_of<T>()),
                 add(wanted.weight_ih, {width, features}, data<T>(input), false),
                 is_cell ? add(wanted.weight_hh, {width, units}, data<T>(h), false)
                         : add(wanted.weight_hh, {width, units}, nullptr, false, data<float>(h)),
                 add(wanted.bias, {width}, nullptr, false)};
  launch(products, is_cell ? "lltm_cell_grads" : "lltm_grads", tensors.stream);
  return grads;
}

template Grads launch_products_together<float>(const GradTensors&);
template Grads launch_products_together<Half>(const GradTensors&);
template Grads launch_products_together<BFloat16>(const GradTensors&);

}  // namespace torchgraft::lltm::cuda
