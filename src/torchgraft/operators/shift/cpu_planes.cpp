// shift and its gradients on CPU, contiguous images. A unit of work is a plane, which lies in memory as one
// piece, and whose offset is one.
//
// Each row of the source is brought once into a row with zeros on either side, in `accumulate_t<T>`, and
// blended with itself a column further; the last two rows so blended are kept, and two of them blended make a
// row of results. So an element costs a load, four multiplications and a store, all in vectors, and two reads
// from first-level cache; what bounds it is memory. Rows that fill no whole number of vectors end in a vector
// that overlaps the one before.
//
// The gradient of the input is the same, turned around. Those of the offsets keep, besides, the difference of
// each column to the next; their sums stay in a vector a plane, and the planes of a channel are added up in
// order (cpu.cpp).

#include <torchgraft/cpu.h>
#include <torchgraft/cpu_convert.h>

#include <algorithm>
#include <type_traits>
#include <vector>

#include "cpu_kernels.h"

namespace torchgraft::shift::cpu {
namespace {

constexpr int64_t kMostLanes = 16;
constexpr int64_t kNone = -1;

// Where the source's rows and columns lie that a row of results is made of. The transpose takes from where the
// other one puts.
template <typename A>
struct Taps {
  int64_t columns[2];
  int64_t row;  // of the first tap; the second lies one on
  A column_weights[2];
  A row_weights[2];
  int64_t stride;
  int64_t source_rows;
  bool transposed;

  Taps(const Sampling<A>& sampling, const Geometry& geometry, bool transposed)
      : row(sampling.y), stride(geometry.stride), transposed(transposed) {
    source_rows = transposed ? geometry.steps : geometry.height;
    for (int i = 0; i < 2; ++i) {
      columns[i] = transposed ? -sampling.x - i : sampling.x + i;
      column_weights[i] = sampling.column_weights[i];
      row_weights[i] = sampling.row_weights[i];
    }
  }

  // The source's row under tap `i` of a row of results, or kNone.
  int64_t source_row(int64_t result_row, int i) const {
    int64_t found = result_row * stride + row + i;
    if (transposed) {
      const int64_t distance = result_row - row - i;
      if (stride > 1 && distance % stride != 0) return kNone;
      found = distance / stride;
      if (distance < 0) return kNone;
    }
    return found >= 0 && found < source_rows ? found : kNone;
  }
};

// Scratch of a thread.
template <typename A>
class Rows {
 public:
  explicit Rows(int64_t width)
      : margin_(width + 2),
        length_((width + kMostLanes - 1) / kMostLanes * kMostLanes),
        elements_(2 * margin_ + 7 * length_ + kMostLanes, A(0)) {}

  // A row of the source, zeros as wide as itself on both sides.
  A* padded() { return elements_.data() + margin_; }
  // One of two rows after blending with the next column, and after taking differences from it.
  A* blended(int64_t slot) { return rest() + slot * length_; }
  A* differences(int64_t slot) { return rest() + (2 + slot) * length_; }
  const A* zeros() { return rest() + 4 * length_; }
  // Results, or the gradient of a row of them, with zeros up to a whole vector.
  A* row() { return rest() + 5 * length_; }

 private:
  A* rest() { return elements_.data() + 2 * margin_ + length_ + kMostLanes; }

  int64_t margin_;
  int64_t length_;
  std::vector<A> elements_;
};

template <int kBytes, typename T, typename A>
TORCHGRAFT_INLINE void widen_row(const T* from, A* to, int64_t width) {
  constexpr int64_t kLanes = kBytes / sizeof(A);
  if (width < kLanes) {
    for (int64_t v = 0; v < width; ++v) to[v] = static_cast<A>(from[v]);
    return;
  }
  for (int64_t v = 0; v < width; v += kLanes) {
    const int64_t at = std::min(v, width - kLanes);
    Vector<A, kBytes> values;
    load_converted<Vector<A, kBytes>, A>(values, from + at);
    store(values, to + at);
  }
}

template <int kBytes, typename T, typename A>
TORCHGRAFT_INLINE void narrow_row(const A* from, T* to, int64_t width) {
  constexpr int64_t kLanes = kBytes / sizeof(A);
  if (width < kLanes) {
    for (int64_t v = 0; v < width; ++v) to[v] = static_cast<T>(from[v]);
    return;
  }
  for (int64_t v = 0; v < width; v += kLanes) {
    const int64_t at = std::min(v, width - kLanes);
    Vector<A, kBytes> values;
    load(values, from + at);
    store_converted<A>(values, to + at);
  }
}

// to = weights[0] * left + weights[1] * right, in whole vectors. What weighs nothing is not read.
template <int kBytes, typename A>
TORCHGRAFT_INLINE void blend_row(const A* left, const A* right, const A (&weights)[2], A* to, int64_t width) {
  using V = Vector<A, kBytes>;
  constexpr int64_t kLanes = kBytes / sizeof(A);
  const bool both = weights[0] != 0 && weights[1] != 0;
  const A* one = weights[0] != 0 ? left : right;
  if (!both) {
    for (int64_t v = 0; v < width; v += kLanes) {
      V value;
      load(value, one + v);
      store(value, to + v);
    }
    return;
  }
  for (int64_t v = 0; v < width; v += kLanes) {
    V first, second;
    load(first, left + v);
    load(second, right + v);
    store(V(first * weights[0] + second * weights[1]), to + v);
  }
}

// Rows of results of one plane. Source and results are whole planes.
template <int kBytes, typename T>
TORCHGRAFT_INLINE void resample_plane(const T* source, T* result, int64_t result_rows, int64_t width,
                                      const Taps<accumulate_t<T>>& taps, Rows<accumulate_t<T>>& rows) {
  using A = accumulate_t<T>;
  int64_t held[2] = {kNone, kNone};
  const auto row_of = [&](int64_t position) TORCHGRAFT_INLINE_LAMBDA {
    const int64_t slot = position & 1;
    if (held[slot] != position) {
      widen_row<kBytes>(source + position * width, rows.padded(), width);
      blend_row<kBytes>(rows.padded() + taps.columns[0], rows.padded() + taps.columns[1], taps.column_weights,
                        rows.blended(slot), width);
      held[slot] = position;
    }
    return static_cast<const A*>(rows.blended(slot));
  };
  for (int64_t r = 0; r < result_rows; ++r) {
    const A* under[2];
    bool any = false;
    for (int i = 0; i < 2; ++i) {
      const int64_t position = taps.row_weights[i] != 0 ? taps.source_row(r, i) : kNone;
      under[i] = position == kNone ? rows.zeros() : row_of(position);
      any = any || position != kNone;
    }
    if (any) {
      blend_row<kBytes>(under[0], under[1], taps.row_weights, rows.row(), width);
      narrow_row<kBytes>(rows.row(), result + r * width, width);
    } else {
      std::fill_n(result + r * width, width, T(0));
    }
  }
}

// The sums of the plane's gradients along x and y.
template <int kBytes, typename T>
TORCHGRAFT_INLINE void sum_plane(const T* output_grad, const T* input, const Geometry& geometry,
                                 const Taps<accumulate_t<T>>& taps, Rows<accumulate_t<T>>& rows,
                                 accumulate_t<T>& x_sum, accumulate_t<T>& y_sum) {
  using A = accumulate_t<T>;
  using V = Vector<A, kBytes>;
  constexpr int64_t kLanes = kBytes / sizeof(A);
  const int64_t width = geometry.width;
  int64_t held[2] = {kNone, kNone};
  V sums[2] = {};
  std::fill_n(rows.row(), (width + kLanes - 1) / kLanes * kLanes, A(0));
  for (int64_t t = 0; t < geometry.steps; ++t) {
    const A* blended[2];
    const A* differences[2];
    for (int i = 0; i < 2; ++i) {
      const int64_t position = taps.source_row(t, i);
      blended[i] = differences[i] = rows.zeros();
      if (position == kNone) continue;
      const int64_t slot = position & 1;
      if (held[slot] != position) {
        widen_row<kBytes>(input + position * width, rows.padded(), width);
        const A* left = rows.padded() + taps.columns[0];
        const A* right = rows.padded() + taps.columns[1];
        for (int64_t v = 0; v < width; v += kLanes) {
          V first, second;
          load(first, left + v);
          load(second, right + v);
          store(V(first * taps.column_weights[0] + second * taps.column_weights[1]), rows.blended(slot) + v);
          store(V(second - first), rows.differences(slot) + v);
        }
        held[slot] = position;
      }
      blended[i] = rows.blended(slot);
      differences[i] = rows.differences(slot);
    }
    widen_row<kBytes>(output_grad + t * width, rows.row(), width);
    for (int64_t v = 0; v < width; v += kLanes) {
      V grad, upper, lower;
      load(grad, rows.row() + v);
      load(upper, differences[0] + v);
      load(lower, differences[1] + v);
      sums[0] += grad * (upper * taps.row_weights[0] + lower * taps.row_weights[1]);
      load(upper, blended[0] + v);
      load(lower, blended[1] + v);
      sums[1] += grad * (lower - upper);
    }
  }
  x_sum = y_sum = 0;
  for (int64_t l = 0; l < kLanes; ++l) {
    x_sum += sums[0][l];
    y_sum += sums[1][l];
  }
}

template <int kBytes, typename T>
TORCHGRAFT_INLINE void forward_plane(const Forward<T>& pass, int64_t plane, Rows<accumulate_t<T>>& rows) {
  const Geometry& geometry = pass.geometry;
  const auto sampling = sampling_of(pass.x_offset, pass.y_offset, plane % geometry.channels, geometry);
  T* output = pass.output + plane * geometry.output_pixels();
  if (!sampling.is_finite) {
    std::fill_n(output, geometry.output_pixels(), static_cast<T>(sampling.row_weights[0]));
    return;
  }
  const Taps<accumulate_t<T>> taps(sampling, geometry, false);
  resample_plane<kBytes>(pass.input + plane * geometry.input_pixels(), output, geometry.steps, geometry.width,
                         taps, rows);
}

template <int kBytes, typename T>
TORCHGRAFT_INLINE void backward_plane(const Backward<T>& pass, int64_t plane, Rows<accumulate_t<T>>& rows) {
  const Geometry& geometry = pass.geometry;
  const int64_t channel = plane % geometry.channels;
  const auto sampling = sampling_of(pass.x_offset, pass.y_offset, channel, geometry);
  const T* output_grad = pass.output_grad + plane * geometry.output_pixels();
  if (pass.input_grad != nullptr) {
    T* input_grad = pass.input_grad + plane * geometry.input_pixels();
    if (sampling.is_finite) {
      const Taps<accumulate_t<T>> taps(sampling, geometry, true);
      resample_plane<kBytes>(output_grad, input_grad, geometry.height, geometry.width, taps, rows);
    } else {
      std::fill_n(input_grad, geometry.input_pixels(), static_cast<T>(sampling.row_weights[0]));
    }
  }
  if (pass.partial_sums != nullptr) {
    const Taps<accumulate_t<T>> taps(sampling, geometry, false);
    auto* sums = pass.partial_sums + plane / geometry.channels * 2 * geometry.channels + channel;
    sum_plane<kBytes>(output_grad, pass.input + plane * geometry.input_pixels(), geometry, taps, rows, sums[0],
                      sums[geometry.channels]);
  }
}

#define SHIFT_PLANES(T)                                                                                  \
  TORCHGRAFT_VECTOR_CLONES(                                                                              \
      void run_forward(const Forward<T>& pass, int64_t plane, Rows<accumulate_t<T>>& rows),              \
      forward_plane<kVectorBytes>(pass, plane, rows);)                                                   \
  TORCHGRAFT_VECTOR_CLONES(                                                                              \
      void run_backward(const Backward<T>& pass, int64_t plane, Rows<accumulate_t<T>>& rows),            \
      backward_plane<kVectorBytes>(pass, plane, rows);)
SHIFT_PLANES(double)
SHIFT_PLANES(float)
SHIFT_PLANES(Half)
SHIFT_PLANES(BFloat16)
#undef SHIFT_PLANES

}  // namespace

template <typename T>
void forward_planes(const Forward<T>& pass) {
  const Geometry& geometry = pass.geometry;
  parallel_for(0, geometry.planes(), units_of_grain(geometry.input_pixels()), [&](int64_t begin, int64_t end) {
    Rows<accumulate_t<T>> rows(geometry.width);
    for (int64_t plane = begin; plane < end; ++plane) run_forward(pass, plane, rows);
  });
}

template <typename T>
void backward_planes(const Backward<T>& pass) {
  const Geometry& geometry = pass.geometry;
  parallel_for(0, geometry.planes(), units_of_grain(geometry.input_pixels()), [&](int64_t begin, int64_t end) {
    Rows<accumulate_t<T>> rows(geometry.width);
    for (int64_t plane = begin; plane < end; ++plane) run_backward(pass, plane, rows);
  });
}

template void forward_planes(const Forward<double>&);
template void forward_planes(const Forward<float>&);
template void forward_planes(const Forward<Half>&);
template void forward_planes(const Forward<BFloat16>&);
template void backward_planes(const Backward<double>&);
template void backward_planes(const Backward<float>&);
template void backward_planes(const Backward<Half>&);
template void backward_planes(const Backward<BFloat16>&);

}  // namespace torchgraft::shift::cpu
