// Weight gradient of float16 and bfloat16 images on tensor cores: stride 1, dilation 1, multiplier 1.
//
// For one kernel row r and eight neighbouring columns of the output gradient, a product of matrices
//   D[j][i] = sum over positions (image, y) of input[y][first + j] * output_grad[y - r + padding][i]
// holds every product that the taps of row r need: tap t is the sum of the diagonal j = i + shift + t. D
// stays in registers for all columns, rows and images of a block's chunk, and its diagonals are summed once,
// at the end. Both operands lie in shared memory in octets, eight neighbouring columns of one row, sixteen
// bytes; all rows of an octet column lie one after another. ldmatrix (transposed) reads one octet from each
// of eight rows: a slice. The eight rows of a slice are not neighbours. They belong to eight segments, runs
// of kSegment rows of any plane; slice number c holds row c of each. So the output gradient's slice c - r is
// a register that another kernel row has read before: of eight segments and one octet column, kSegment + rows
// - 1 slices serve all rows x kSegment products. Segments of seven rows fit planes of 112, 56, 28, 14 and 7
// rows.
//
// For k = 7 and 8 x 7 x 8 output gradients: 27 slices of 128 bytes from shared memory (27 cycles of a
// multiprocessor), 21 m16n8k16 and 7 m16n8k8 products (about 47 cycles at the rate of mma.sync on an H200);
// 100 cycles is the time that device memory takes for them. On CUDA cores it is 172 cycles.
//
// A NaN or an infinity in a channel may make any gradient of that channel NaN, but none of another channel.
#pragma once

#include <torchgraft/async_copy.cuh>
#include <torchgraft/mma.cuh>

#include "../chunks.cuh"
#include "segments.h"

namespace torchgraft::depthwise::cuda {

// D of a warp. Octets of input go in pairs, sixteen rows of an mma; a last odd one is the columns of an mma
// whose rows are two kernel rows.
template <typename Block>
struct DiagonalSums {
  float pairs[Block::kPairs][Block::kTapRows][4];
  float last[Block::kOdd ? Block::kRowPairs : 1][4];
};

// Loads kCount slices, one a register; lane l gives the address of row l % 8 of slice l / 8.
template <int kCount>
__device__ inline void load_slices(uint32_t address, uint32_t* slices) {
  ptx::ldmatrix_trans<kCount>(slices, address);
}

// kCount slices of neighbouring rows, in as few loads as possible.
template <int kCount>
__device__ inline void load_neighbour_slices(uint32_t address, uint32_t* slices) {
  constexpr int kNow = kCount >= 4 ? 4 : kCount >= 2 ? 2 : 1;
  load_slices<kNow>(address, slices);
  if constexpr (kCount > kNow) {
    load_neighbour_slices<kCount - kNow>(address + kNow * kOctetBytes, slices + kNow);
  }
}

// Adds the products of eight segments and one octet column of the output gradient. Lane l reads row l % 8,
// the segment, of each slice.
//   pair_address: input, row 0 of the segment, + octet l / 8 % 2 and row l / 16; further pairs of octets
//                 follow every `pair_step` bytes
//   last_address: input, the last octet if their number is odd, + row l / 8
//   grad_address: output gradient, the row that meets row 0 of the segment in the last tap row, + row l / 8
template <typename T, typename Block>
__device__ inline void add_products(DiagonalSums<Block>& sums, uint32_t pair_address, uint32_t pair_step,
                                    uint32_t last_address, uint32_t grad_address) {
  constexpr int kTapRows = Block::kTapRows;
  uint32_t grads[Block::kGradSlices];
  load_neighbour_slices<Block::kGradSlices>(grad_address, grads);
  // The slice that slice `row` of input meets in tap row `tap`.
  const auto grad = [&](int row, int tap) { return grads[row - tap + kTapRows - 1]; };
#pragma unroll
  for (int pair = 0; pair < Block::kPairs; ++pair) {
#pragma unroll
    for (int row = 0; row + 1 < kSegment; row += 2) {
      uint32_t input[4];
      load_slices<4>(pair_address + pair * pair_step + row * kOctetBytes, input);
#pragma unroll
      for (int tap = 0; tap < kTapRows; ++tap) {
        multiply_add<T>(sums.pairs[pair][tap], input[0], input[1], input[2], input[3], grad(row, tap),
                        grad(row + 1, tap));
      }
    }
    uint32_t input[2];
    load_slices<2>(pair_address + pair * pair_step + (kSegment - 1) * kOctetBytes, input);
#pragma unroll
    for (int tap = 0; tap < kTapRows; ++tap) {
      multiply_add<T>(sums.pairs[pair][tap], input[0], input[1], grad(kSegment - 1, tap));
    }
  }
  if constexpr (Block::kOdd) {
    uint32_t input[kSegment];
    load_neighbour_slices<kSegment>(last_address, input);
    const auto second = [&](int row, int tap) { return tap + 1 < kTapRows ? grad(row, tap + 1) : 0u; };
#pragma unroll
    for (int row = 0; row + 1 < kSegment; row += 2) {
#pragma unroll
      for (int tap = 0; tap < kTapRows; tap += 2) {
        multiply_add<T>(sums.last[tap / 2], grad(row, tap), second(row, tap), grad(row + 1, tap),
                        second(row + 1, tap), input[row], input[row + 1]);
      }
    }
#pragma unroll
    for (int tap = 0; tap < kTapRows; tap += 2) {
      multiply_add<T>(sums.last[tap / 2], grad(kSegment - 1, tap), second(kSegment - 1, tap),
                      input[kSegment - 1]);
    }
  }
}

// Writes a warp's D to shared memory as [tap row][column of input][column of the output gradient].
template <typename Block>
__device__ inline void store_sums(const DiagonalSums<Block>& sums, float* shared) {
  constexpr int kRowFloats = Block::kOctets * kOctet * kOctet;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int row = lane / 4;         // of an mma's result
  const int column = lane % 4 * 2;  // and the next
#pragma unroll
  for (int tap = 0; tap < Block::kTapRows; ++tap) {
#pragma unroll
    for (int pair = 0; pair < Block::kPairs; ++pair) {
#pragma unroll
      for (int octet = 0; octet < 2; ++octet) {
        float* target = shared + tap * kRowFloats + ((pair * 2 + octet) * kOctet + row) * kOctet + column;
        target[0] = sums.pairs[pair][tap][octet * 2];
        target[1] = sums.pairs[pair][tap][octet * 2 + 1];
      }
    }
    if constexpr (Block::kOdd) {
      float* target = shared + tap * kRowFloats + ((Block::kOctets - 1) * kOctet + column) * kOctet + row;
      target[0] = sums.last[tap / 2][tap % 2 * 2];
      target[kOctet] = sums.last[tap / 2][tap % 2 * 2 + 1];
    }
  }
}

// The sum of one diagonal of the D that store_sums wrote; `column` is shift + tap column.
template <typename Block>
__device__ inline float diagonal_sum(const float* shared, int tap_row, int column) {
  const float* first = shared + (tap_row * Block::kOctets * kOctet + column) * kOctet;
  float sum = 0;
#pragma unroll
  for (int i = 0; i < kOctet; ++i) sum += first[i * (kOctet + 1)];
  return sum;
}

__device__ inline void clear_octets(uint32_t address, int bytes) {
  for (int i = static_cast<int>(threadIdx.x) * kOctetBytes; i < bytes;
       i += static_cast<int>(blockDim.x) * kOctetBytes) {
    ptx::store_shared(address + i, make_uint4(0, 0, 0, 0));
  }
}

}  // namespace torchgraft::depthwise::cuda
