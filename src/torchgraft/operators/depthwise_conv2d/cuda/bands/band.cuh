// What bands_small is made of: the band matrix of one channel's taps in the registers of a warp, its products
// with sources in shared memory, and the repair of results that came out NaN.
//
// The product m16n8k16 of source row r gives
//   A[(my, g)][k] = tap[r - 2 p - my][k - g]   B[k][n] = source row r of unit n, column k
// 2 x 8 results of row pair p in each of 8 units; a unit is 8 columns of a band of 2 * kPairs rows of a
// plane. Units are counted over columns, bands and images of one channel, so that 14 x 14 and 7 x 7 planes
// fill all eight. A source row of eight units comes by half an ldmatrix.x4 and feeds up to (kTapRows + 1) / 2
// row pairs.
#pragma once

#include "../half_window.cuh"
#include "small_plan.h"

namespace torchgraft::depthwise::cuda {

// The pass, for kernels. The input gradient of stride 1 is the forward pass with the kernel turned around.
struct BandPass : HalfWindow {
  int lead;  // column 0 of a tile is this many columns in front of its first result's

  __host__ __device__ int taps() const { return kernel_height * kernel_width; }
};

// How a warp gets the taps of a channel: every lane brings two.
class BandTaps {
 public:
  // `band`: kBandElements of shared memory of the warp, cleared.
  __device__ BandTaps(const BandPass& pass, HalfBits* band) : band_(band), taps_(pass.taps()) {
    const int lane = threadIdx.x % kWarp;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int index = lane + i * kWarp;
      const int tap = pass.flipped ? taps_ - 1 - index : index;
      const int row = tap / pass.kernel_width;
      place_[i] =
          kBandFirst + row * kBandPitch + (tap - row * pass.kernel_width) + pass.lead - pass.padding_x;
    }
  }

  // From device memory.
  template <typename T>
  __device__ void bring(const Rounded<T>& channel_weight) {
    const int lane = threadIdx.x % kWarp;
    channel_weight.with_numbers([&](const auto* numbers) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        if (lane + i * kWarp < taps_) brought_[i] = bits_of(read_rounded<T>(numbers + lane + i * kWarp));
      }
    });
  }

  // To shared memory. The warp must meet before, if it read the last band, and after.
  __device__ void put() const {
    const int lane = threadIdx.x % kWarp;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      if (lane + i * kWarp >= taps_) continue;
      band_[place_[i]] = brought_[i];
      band_[place_[i] + kBandCopy + 1] = brought_[i];
    }
  }

 private:
  HalfBits* band_;
  int taps_;
  int place_[2];
  HalfBits brought_[2];
};

// The band as products take it: of row r, taps of row r and of row r - 1, both of source columns 2q and 2q +
// 1, and both of the two eight further on.
template <int kTapRows>
struct Band {
  uint32_t rows[kTapRows + 1][4];

  // Each is loaded by itself, zeros and equal ones too: the four operands of a product must be neighbours in
  // the register file, and the compiler would move equal ones there each time.
  __device__ void load(const HalfBits* band) {
    const int g = threadIdx.x % kWarp / 4;  // as the layout of a product's operands names them
    const int q = threadIdx.x % 4;
    const uint32_t zero = shared_address(band);
    const uint32_t first = shared_address(band + g % 2 * (kBandCopy + 1) + kBandFirst + 2 * q - g);
#pragma unroll
    for (int row = 0; row <= kTapRows; ++row) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int tap_row = row - i % 2;
        const bool is_zero = tap_row < 0 || tap_row >= kTapRows;
        const int offset = (tap_row * kBandPitch + i / 2 * 8) * static_cast<int>(sizeof(HalfBits));
        rows[row][i] = ptx::load_shared_volatile(is_zero ? zero : first + offset);
      }
    }
  }
};

// The sums of kPairs row pairs of eight units. `address` is that of the first source row of unit lane % 8,
// plus eight columns in lanes 8 to 15 and 24 to 31, plus a row in lanes 16 and on; pitch in elements.
template <typename T, int kTapRows, int kPairs>
__device__ void band_products(const Band<kTapRows>& band, uint32_t address, int pitch, float start,
                              float (&sums)[kPairs][4]) {
  const float starts[4] = {start, start, start, start};
#pragma unroll
  for (int row = 0; row < kTapRows - 1 + 2 * kPairs; row += 2) {
    uint32_t sources[4];
    ptx::ldmatrix(sources, address);
    address += 2 * sizeof(HalfBits) * pitch;
#pragma unroll
    for (int next = 0; next < 2; ++next) {
#pragma unroll
      for (int pair = 0; pair < kPairs; ++pair) {
        const int tap_row = row + next - 2 * pair;
        if (tap_row < 0 || tap_row > kTapRows) continue;
        multiply_add<T>(sums[pair], band.rows[tap_row], sources[2 * next], sources[2 * next + 1],
                        tap_row == 0 ? starts : sums[pair]);
      }
    }
  }
}

// Rounds the sums and stores them to shared memory as rows of eight columns. `address` is that of row lane /
// 8 of unit lane % 8; `step` bytes lead four rows further. Returns whether a result of the lane is NaN.
template <typename T, int kPairs>
__device__ bool store_band_results(const float (&sums)[kPairs][4], uint32_t address, uint32_t step) {
  using Math = HalfMath<T>;
  uint32_t largest = 0;
#pragma unroll
  for (int pair = 0; pair < kPairs; pair += 2) {
    uint32_t matrices[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (pair + i / 2 == kPairs) break;
      const float* values = sums[pair + i / 2] + i % 2 * 2;
      matrices[i] = Math::pack(values[0], values[1]);
      largest = Math::max_nan(largest, matrices[i]);
    }
    if (pair + 1 < kPairs) {
      store_transposed<4>(matrices, address);
    } else {
      store_transposed<2>(matrices, address);
    }
    address += step;
  }
  return Math::is_nan(largest & 0xffff) || Math::is_nan(largest >> 16);
}

// A product multiplies the zeros of the band with what lies outside a result's window: where that is not
// finite the result comes out NaN. Computes again those of rows x 2 results from (y, x) on that are NaN.
template <typename T>
__device__ __noinline__ void repair_results(HalfBits* results, int pitch, int rows, const HalfBits* source,
                                            Rounded<T> weight, float start, const BandPass& pass, int y,
                                            int x) {
  for (int i = 0; i < 2 * rows; ++i) {
    HalfBits& value = results[i / 2 * pitch + i % 2];
    if (!HalfMath<T>::is_nan(value)) continue;
    value = HalfMath<T>::from_float(sum_inside_window<T>(source, weight, start, y + i / 2, x + i % 2, pass));
  }
}

// Calls `function` with the rows of taps and the row pairs of a band as compile-time constants.
template <typename Function>
void with_band(int tap_rows, int pairs, Function&& function) {
  const auto with_pairs = [&](auto constant_tap_rows) {
    if (pairs == 7) {
      function(constant_tap_rows, std::integral_constant<int, 7>{});
    } else {
      function(constant_tap_rows, std::integral_constant<int, 4>{});
    }
  };
  switch (tap_rows) {
    case 3:
      return with_pairs(std::integral_constant<int, 3>{});
    case 5:
      return with_pairs(std::integral_constant<int, 5>{});
    default:
      return with_pairs(std::integral_constant<int, 7>{});
  }
}

}  // namespace torchgraft::depthwise::cuda
