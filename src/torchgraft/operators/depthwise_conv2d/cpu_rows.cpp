// Rows between tensors and scratch. Plain loops over independent elements, which the compiler turns into
// vectors; the steps and widths that are common are constants in a copy of the loop of their own.

#include "cpu_rows.h"

#include <torchgraft/cpu.h>

namespace torchgraft::depthwise::cpu {
namespace {

TORCHGRAFT_VECTOR_CLONES(int64_t register_bytes(), return kVectorBytes;)

template <typename From, typename To>
TORCHGRAFT_INLINE void copy_strided(const From* from, int64_t from_step, To* to, int64_t to_step,
                                    int64_t count) {
  for (int64_t i = 0; i < count; ++i) to[i * to_step] = static_cast<To>(from[i * from_step]);
}

template <int kLanes, typename From, typename To>
TORCHGRAFT_INLINE void copy_lanes(const From* from, int64_t from_step, To* to, int64_t to_step,
                                  int64_t pixels) {
  for (int64_t p = 0; p < pixels; ++p) {
    for (int l = 0; l < kLanes; ++l) to[p * to_step + l] = static_cast<To>(from[p * from_step + l]);
  }
}

template <typename From, typename To>
TORCHGRAFT_INLINE void copy_pixels(const From* from, int64_t from_step, To* to, int64_t to_step,
                                   int64_t channels, int64_t pixels) {
  switch (channels) {
    case 16:
      return copy_lanes<16>(from, from_step, to, to_step, pixels);
    case 8:
      return copy_lanes<8>(from, from_step, to, to_step, pixels);
    case 4:
      return copy_lanes<4>(from, from_step, to, to_step, pixels);
  }
  for (int64_t p = 0; p < pixels; ++p) {
    for (int64_t l = 0; l < channels; ++l) to[p * to_step + l] = static_cast<To>(from[p * from_step + l]);
  }
}

template <typename A>
TORCHGRAFT_INLINE void clear_lanes(A* to, int64_t begin, int64_t lanes, int64_t pixels) {
  if (begin == lanes) return;
  for (int64_t p = 0; p < pixels; ++p) {
    for (int64_t l = begin; l < lanes; ++l) to[p * lanes + l] = 0;
  }
}

}  // namespace

int64_t vector_bytes() { return register_bytes(); }

#define TORCHGRAFT_DEFINE_ROWS(T)                                                                          \
  TORCHGRAFT_CLONES void gather_row(const T* from, int64_t step, accumulate_t<T>* to, int64_t count) {     \
    if (step == 1) {                                                                                       \
      copy_strided(from, 1, to, 1, count);                                                                 \
    } else if (step == 2) {                                                                                \
      copy_strided(from, 2, to, 1, count);                                                                 \
    } else {                                                                                               \
      copy_strided(from, step, to, 1, count);                                                              \
    }                                                                                                      \
  }                                                                                                        \
  TORCHGRAFT_CLONES void scatter_row(const accumulate_t<T>* from, T* to, int64_t step, int64_t count) {    \
    if (step == 1) {                                                                                       \
      copy_strided(from, 1, to, 1, count);                                                                 \
    } else if (step == 2) {                                                                                \
      copy_strided(from, 1, to, 2, count);                                                                 \
    } else {                                                                                               \
      copy_strided(from, 1, to, step, count);                                                              \
    }                                                                                                      \
  }                                                                                                        \
  TORCHGRAFT_CLONES void gather_pixels(const T* from, int64_t step, int64_t channels, accumulate_t<T>* to, \
                                       int64_t lanes, int64_t pixels) {                                    \
    copy_pixels(from, step, to, lanes, channels, pixels);                                                  \
    clear_lanes(to, channels, lanes, pixels);                                                              \
  }                                                                                                        \
  TORCHGRAFT_CLONES void gather_pixels(const T* from, int64_t step, const int64_t* indices,                \
                                       int64_t channels, accumulate_t<T>* to, int64_t lanes,               \
                                       int64_t pixels) {                                                   \
    for (int64_t p = 0; p < pixels; ++p) {                                                                 \
      for (int64_t l = 0; l < channels; ++l) {                                                             \
        to[p * lanes + l] = static_cast<accumulate_t<T>>(from[p * step + indices[l]]);                     \
      }                                                                                                    \
    }                                                                                                      \
    clear_lanes(to, channels, lanes, pixels);                                                              \
  }                                                                                                        \
  TORCHGRAFT_CLONES void scatter_pixels(const accumulate_t<T>* from, int64_t lanes, T* to, int64_t step,   \
                                        int64_t channels, int64_t pixels) {                                \
    copy_pixels(from, lanes, to, step, channels, pixels);                                                  \
  }
TORCHGRAFT_DEFINE_ROWS(double)
TORCHGRAFT_DEFINE_ROWS(float)
TORCHGRAFT_DEFINE_ROWS(Half)
TORCHGRAFT_DEFINE_ROWS(BFloat16)
#undef TORCHGRAFT_DEFINE_ROWS

PaddedRow::PaddedRow(int64_t first, int64_t step, int64_t taps, int64_t tap_step, int64_t outputs)
    : step_(step) {
  const int64_t reach = taps > 0 ? (taps - 1) * tap_step / step : 0;
  const bool shared = step * (outputs + reach) <= taps * outputs;
  segment_length_ = shared ? outputs + reach : outputs;
  const int64_t segments = shared ? step : taps;
  for (int64_t s = 0; s < segments; ++s) segment_starts_.push_back(first + s * (shared ? 1 : tap_step));
  for (int64_t t = 0; t < taps; ++t) {
    const int64_t distance = t * tap_step;
    offsets_.push_back(shared ? distance % step * segment_length_ + distance / step : t * segment_length_);
  }
}

}  // namespace torchgraft::depthwise::cpu
