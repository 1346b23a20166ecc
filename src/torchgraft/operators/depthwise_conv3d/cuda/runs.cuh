// Shared parts of the kernels of contiguous volumes by runs (runs_correlate.cu, runs_weight_grad.cu), which
// take kernels with sides up to kMostSide, and strides of 1 or 2, in any mixture.
//
// A run is four neighbouring outputs of a row. A thread has one at a time, and loads what its outputs are
// made of in a row of the input once, in pieces as wide as all rows are aligned. So that registers are known
// when this is compiled, every run begins at the same place of a piece: runs are shifted by a few outputs
// where the padding asks for it, and with a stride of 2 and an odd padding one element lies in front of the
// first piece.
//
// Planes and rows of padding are left out, columns of padding are added as zeros: a weight or a gradient that
// is infinite makes NaN of the latter, as PyTorch's convolution in float64 does.
#pragma once

#include <torchgraft/packed.cuh>

#include <bit>

#include "kernels.h"
#include "staging.cuh"
#include "widths.h"

namespace torchgraft::depthwise::volumes {

inline constexpr int kRunThreads = 128;
inline constexpr int kRun = 4;

// kLag elements lie in front of the first piece, which has kPiece of them.
template <typename T_, int kWide_, int kStride_, int kLag_, int kPiece_>
struct RunTraits {
  using T = T_;
  static constexpr int kWide = kWide_, kStride = kStride_, kLag = kLag_, kPiece = kPiece_;
  static constexpr int kStep = kRun * kStride;                   // from run to run
  static constexpr int kSources = (kRun - 1) * kStride + kWide;  // of a run
  // Rows of weights begin where four are read at once.
  static constexpr int kPitch = round_up(kWide, 4);

  // The tap by which an element counts for an output of the run; outside of the kernel there is none.
  static constexpr int tap(int source, int output) { return source - kStride * output; }
  static constexpr bool meets(int source, int output) {
    return tap(source, output) >= 0 && tap(source, output) < kWide;
  }
};

// Depth or height of the volumes. A forward pass turned around, which is an input gradient of stride 1, has
// outputs where the input gradient has inputs.
struct RunExtent {
  int inputs, outputs, kernel, stride, padding;

  RunExtent() = default;
  RunExtent(const Extent& extent, bool turned)
      : inputs(static_cast<int>(turned ? extent.output : extent.input)),
        outputs(static_cast<int>(turned ? extent.input : extent.output)),
        kernel(static_cast<int>(extent.kernel)),
        stride(static_cast<int>(extent.stride)),
        padding(padding_of(extent, turned)) {}
};

// Where runs lie along a row, and how they are loaded and stored.
struct RunRows {
  int inputs, outputs;
  int first_output;  // of the first run; at most three lie in front of the row
  int first_input;   // the column of the first run's first piece
  int runs;
  int output_piece;  // elements that are loaded or stored at once of a row of outputs

  RunRows() = default;
  template <typename Traits>
  static RunRows of(const Extent& extent, bool turned, const typename Traits::T* outputs, Traits) {
    const RunExtent width(extent, turned);
    RunRows rows = {};
    rows.inputs = width.inputs;
    rows.outputs = width.outputs;
    int shift = 0;
    while ((shift * Traits::kStride - width.padding + Traits::kLag) % Traits::kPiece != 0) ++shift;
    rows.first_output = shift > 0 ? shift - kRun : 0;
    rows.first_input = rows.first_output * Traits::kStride - width.padding + Traits::kLag;
    rows.runs = ceil_divide(width.outputs - rows.first_output, kRun);
    rows.output_piece = 1;
    for (const int piece : {4, 2}) {
      const bool is_whole = width.outputs % piece == 0 && rows.first_output % piece == 0;
      if (!is_whole || !is_aligned(outputs, piece * static_cast<int>(sizeof(typename Traits::T)))) continue;
      rows.output_piece = piece;
      break;
    }
    return rows;
  }
};

// A piece of one element.
template <typename T>
class SingleElement {
 public:
  __device__ void load(const T* from) { element_ = *from; }
  __device__ float operator[](int) const { return widened(element_); }

 private:
  T element_;
};
template <typename T, int kElements>
using RunPiece = std::conditional_t<kElements == 1, SingleElement<T>, Packed<T, kElements>>;

// What a run is made of in one row of the input, as it lies in memory: loads of several rows are in flight
// together. What lies outside of the row is zero.
template <typename Traits>
class RunSources {
 public:
  using T = typename Traits::T;

  // `row` is the first element of the row, `first` the column of the first piece.
  __device__ __forceinline__ void load(const T* row, int first, int columns, bool is_there) {
    const int end = is_there ? columns : 0;
    // One address for all pieces.
    const T* const from = row + first;
    lead_ = {};
    if constexpr (Traits::kLag > 0) {
      if (is_inside(first - 1, end)) lead_.load(from - 1);
    }
#pragma unroll
    for (int i = 0; i < kWhole; ++i) {
      pieces_[i] = {};
      // Rows are whole pieces, and all pieces begin at a multiple of their length.
      if (is_inside(first + i * kPiece, end)) pieces_[i].load(from + i * kPiece);
    }
    tail_ = {};
    if constexpr (kTail > 0) {
      if (is_inside(first + kWhole * kPiece, end)) tail_.load(from + kWhole * kPiece);
    }
  }

  __device__ __forceinline__ float operator[](int source) const {
    const int at = source - Traits::kLag;
    return at < 0 ? lead_[0] : at < kWhole * kPiece ? pieces_[at / kPiece][at % kPiece] : tail_[at % kPiece];
  }

 private:
  static constexpr int kPiece = Traits::kPiece;
  static constexpr int kWhole = (Traits::kSources - Traits::kLag) / kPiece;
  static constexpr int kTail = (Traits::kSources - Traits::kLag) % kPiece;

  SingleElement<T> lead_;
  RunPiece<T, kPiece> pieces_[std::max(kWhole, 1)];
  RunPiece<T, std::bit_ceil(static_cast<unsigned>(std::max(kTail, 1)))> tail_;
};

// Calls use(RunTraits) for the width of the kernel, its stride, and how rows are aligned.
template <typename T, typename Use>
void with_runs(const Extent& width, bool turned, const T* inputs, const char* name, const Use& use) {
  const int64_t columns = turned ? width.output : width.input;
  const auto has_pieces = [&](int elements) {
    return columns % elements == 0 && is_aligned(inputs, elements * static_cast<int>(sizeof(T)));
  };
  with_width(width, name, [&]<int kWide>() {
    const auto with_lag = [&]<int kStride, int kLag>() {
      if (has_pieces(4)) return use(RunTraits<T, kWide, kStride, kLag, 4>());
      // A row of halves that is not made of words is rare, and so is one of floats in pairs alone.
      if constexpr (sizeof(T) == 2) {
        if (has_pieces(2)) return use(RunTraits<T, kWide, kStride, kLag, 2>());
      }
      use(RunTraits<T, kWide, kStride, kLag, 1>());
    };
    if (width.stride == 1) return with_lag.template operator()<1, 0>();
    if (width.padding % 2 == 0) return with_lag.template operator()<2, 0>();
    with_lag.template operator()<2, 1>();
  });
}

}  // namespace torchgraft::depthwise::volumes
