// The taps of a line of channels in channels_last.cpp: their weights in registers, and a vector of sources
// column after column.
#pragma once

#include <torchgraft/cpu_convert.h>

#include <cstdint>
#include <limits>
#include <type_traits>
#include <utility>

#include "channels_last_ring.h"

namespace torchgraft::shift::cpu {

// The vector types of a line: as many channels as a vector has lanes, and numbers of rows, columns and
// elements for each.
template <int kBytes, typename A>
struct Lanes {
  static constexpr int kCount = kBytes / sizeof(A);
  using Number = std::conditional_t<sizeof(A) == 8 || kCount == 1, int64_t, int32_t>;
  using Bits = std::conditional_t<sizeof(A) == 8, uint64_t, uint32_t>;
  using Values = Vector<A, kBytes>;
  using Numbers = Vector<Number, kCount * sizeof(Number)>;
  using Mask = Vector<Bits, kBytes>;
};

template <typename V, typename M>
TORCHGRAFT_INLINE void mask(V& values, const M& bits) {
  M all;
  reinterpret(all, values);
  reinterpret(values, M(all & bits));
}

template <typename Number>
inline constexpr Number kLanesInOrder[] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};

// The taps of a line's channels.
template <int kBytes, typename A>
struct LineTaps {
  using L = Lanes<kBytes, A>;
  alignas(kAlignment) typename L::Number row[L::kCount];
  alignas(kAlignment) typename L::Number column[L::kCount];
  const A* row_weights[2];
  const A* column_weights[2];
  bool is_whole = false;

  TORCHGRAFT_INLINE LineTaps(const AllTaps<A>& taps, int64_t channel) {
    for (int l = 0; l < L::kCount; ++l) {
      row[l] = static_cast<typename L::Number>(taps.row[channel + l]);
      column[l] = static_cast<typename L::Number>(taps.column[channel + l]);
      is_whole |= taps.is_whole[channel + l] != 0;
    }
    for (int i = 0; i < 2; ++i) {
      row_weights[i] = taps.row_weights[i].data() + channel;
      column_weights[i] = taps.column_weights[i].data() + channel;
    }
  }
};

// A pair of weights in registers, and which of them are not zero: a source whose weight is zero may be NaN,
// and takes no part.
template <int kBytes, typename A>
struct Weights {
  using L = Lanes<kBytes, A>;
  typename L::Values values[2];
  typename L::Mask counts[2];

  TORCHGRAFT_INLINE explicit Weights(const A* const (&weights)[2]) {
    for (int i = 0; i < 2; ++i) {
      load(values[i], weights[i]);
      typename L::Bits bits[L::kCount];
      for (int l = 0; l < L::kCount; ++l) bits[l] = weights[i][l] != 0 ? ~typename L::Bits{0} : 0;
      load(counts[i], bits);
      keep(values[i]);
    }
  }

  template <bool kWhole, typename V>
  TORCHGRAFT_INLINE void blend(V& sum, const V& near, const V& far) const {
    if constexpr (kWhole) {
      V left = near, right = far;
      mask(left, counts[0]);
      mask(right, counts[1]);
      sum = left * values[0] + right * values[1];
    } else {
      sum = near * values[0] + far * values[1];
    }
  }
};

// One tap of a line's channels, column after column.
template <int kBytes, typename A>
class Reader {
 public:
  using L = Lanes<kBytes, A>;
  using V = typename L::Values;
  using Number = typename L::Number;
#if defined(__x86_64__)
  static constexpr bool kGathers = kBytes == 64;
#else
  static constexpr bool kGathers = false;
#endif

  // Begins in rows `row` + `further`, at column `column`.
  template <typename T>
  TORCHGRAFT_INLINE void open(Ring<T>& ring, int64_t line, const Number* row, int64_t further,
                              const Number* column) {
    // Compilers take comparisons lane by lane here; the sign of a number, in all its bits, takes their place.
    constexpr int kSign = 8 * sizeof(Number) - 1;
    const Number source_rows = ring.taps().source_rows, slots = ring.slots(), pitch = ring.pitch();
    typename L::Numbers rows, lanes;
    load(rows, row);
    load(column_, column);
    load(lanes, kLanesInOrder<Number>);
    rows += static_cast<Number>(further);
    const typename L::Numbers is_none = (rows | (source_rows - 1 - rows)) >> kSign;
    const typename L::Numbers beyond =
        rows - static_cast<Number>(ring.source_first() - ring.first_slot() + slots);
    const typename L::Numbers slot = (beyond + (slots & (beyond >> kSign))) & ~is_none;
    const typename L::Numbers places = slot * pitch + column_ * L::kCount + lanes;
    // The column of a row that does not exist lies so far outside that no number of steps leads into the
    // image, and so that differences do not overflow.
    column_ = (column_ & ~is_none) | (std::numeric_limits<Number>::min() / 2 & is_none);
    from_ = ring.line(line);
    width_ = static_cast<Number>(ring.width());
    if constexpr (kGathers) {
      places_ = places;
    } else {
      store(places, places_of_lanes_);
    }
  }

  // Reads the next column; zero outside the image.
  TORCHGRAFT_INLINE void next(V& values) {
    if constexpr (kGathers) {
      const typename L::Numbers width = typename L::Numbers{} + width_;
      if constexpr (sizeof(A) == 4) {
        asm("vpcmpltud %[width], %[column], %%k1\n\t"
            "vpxord %[values], %[values], %[values]\n\t"
            "vgatherdps (%[from],%[places],4), %[values]%{%%k1%}"
            : [values] "=&v"(values)
            : [width] "v"(width), [column] "v"(column_), [places] "v"(places_), [from] "r"(from_),
              "m"(*reinterpret_cast<const A(*)[]>(from_))
            : "k1");
      } else {
        asm("vpcmpltuq %[width], %[column], %%k1\n\t"
            "vpxorq %[values], %[values], %[values]\n\t"
            "vgatherqpd (%[from],%[places],8), %[values]%{%%k1%}"
            : [values] "=&v"(values)
            : [width] "v"(width), [column] "v"(column_), [places] "v"(places_), [from] "r"(from_),
              "m"(*reinterpret_cast<const A(*)[]>(from_))
            : "k1");
      }
    } else {
      V found;
      pick(found, std::make_integer_sequence<int, L::kCount>());
      constexpr int kSign = 8 * sizeof(Number) - 1;
      const typename L::Numbers is_none = (column_ | (width_ - 1 - column_)) >> kSign;
      mask(found, __builtin_convertvector(~is_none, typename L::Mask));
      values = found;
    }
    from_ += L::kCount;
    column_ += 1;
  }

 private:
  template <int... kLane>
  TORCHGRAFT_INLINE void pick(V& values, std::integer_sequence<int, kLane...>) const {
    values = V{from_[places_of_lanes_[kLane]]...};
  }

  const A* from_;  // the line at the current column
  Number width_;
  typename L::Numbers column_;
  typename L::Numbers places_;
  Number places_of_lanes_[L::kCount];
};

}  // namespace torchgraft::shift::cpu
