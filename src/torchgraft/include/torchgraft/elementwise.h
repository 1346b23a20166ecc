// CPU kernels: a function of numbers, called for each element of rows in memory of any floating dtype.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <tuple>
#include <utility>

#include "cpu_convert.h"

namespace torchgraft {

namespace internal {

// The next kCount elements of a row, converted to the type in which they are computed: kCount of the widest
// of these types fill a vector register. A row of const elements is read, any other is written.
template <typename Pointer, int kCount>
struct Piece;

template <FloatingType T, int kCount>
struct Piece<const T*, kCount> {
  using Value = accumulate_t<T>;
  Value values[kCount];

  // What is behind the last element becomes a copy of it, so that the function gets no number that is not
  // there.
  TORCHGRAFT_INLINE void read(const T* from, int64_t count) {
    T padded[kCount];
    if (count < kCount) {
      for (int64_t i = 0; i < kCount; ++i) padded[i] = from[std::min(i, count - 1)];
      from = padded;
    }
    Vector<Value, kCount * sizeof(Value)> vector;
    load_converted<decltype(vector), Value>(vector, from);
    store(vector, values);
  }

  TORCHGRAFT_INLINE void write(const T*, int64_t) const {}
};

template <FloatingType T, int kCount>
struct Piece<T*, kCount> {
  using Value = accumulate_t<T>;
  Value values[kCount];

  TORCHGRAFT_INLINE void read(const T*, int64_t) { std::fill_n(values, kCount, Value(0)); }

  TORCHGRAFT_INLINE void write(T* to, int64_t count) const {
    T padded[kCount];
    Vector<Value, kCount * sizeof(Value)> vector;
    load(vector, values);
    store_converted<Value>(vector, count < kCount ? padded : to);
    if (count < kCount) std::copy_n(padded, count, to);
  }
};

template <int kVectorBytes>
struct Elements;

// flatten: the function is inlined however long it is, as only then it is compiled for the instruction set. A
// last piece that is not whole goes the same way as all others, so that each element gets the same bits
// wherever it lies.
#define TORCHGRAFT_ELEMENTS(BYTES, ...)                                                                     \
  template <>                                                                                               \
  struct Elements<BYTES> {                                                                                  \
    template <size_t... kRows, typename Function, typename... Pointers>                                     \
    __attribute__((noinline, flatten __VA_ARGS__)) static void run(std::index_sequence<kRows...>,           \
                                                                   int64_t count, const Function& function, \
                                                                   Pointers... rows) {                      \
      constexpr int kCount = BYTES / std::max({sizeof(typename Piece<Pointers, 1>::Value)...});             \
      std::tuple<Piece<Pointers, kCount>...> pieces;                                                        \
      for (int64_t first = 0; first < count; first += kCount) {                                             \
        (std::get<kRows>(pieces).read(rows + first, count - first), ...);                                   \
        for (int i = 0; i < kCount; ++i) function(std::get<kRows>(pieces).values[i]...);                    \
        (std::get<kRows>(pieces).write(rows + first, count - first), ...);                                  \
      }                                                                                                     \
    }                                                                                                       \
  };
TORCHGRAFT_ELEMENTS(16)
#ifdef TORCHGRAFT_HAS_TARGETS
TORCHGRAFT_ELEMENTS(32, , target("arch=x86-64-v3"))
TORCHGRAFT_ELEMENTS(64, , target("arch=x86-64-v4"))
#endif
#undef TORCHGRAFT_ELEMENTS

}  // namespace internal

// Calls `function` for each of `count` elements, with one number of each row. A pointer to const elements is
// a row to read: it gives a number in accumulate_t of its type. Any other pointer is a row to write: it gives
// a reference to such a number, which is zero before the call. The function must depend on these numbers and
// on what it captured alone, and change nothing but the numbers to write: it may be called again for the last
// element. Rows may be the same, and must not overlap otherwise.
//
// The loop is vectorized if the compiler can do so with the function, as with arithmetic, std::sqrt and the
// functions of vector_math.h, and compiled for each instruction set; the best one that the processor has
// runs. An element gets the same bits wherever it lies in a row.
template <typename Function, typename... Pointers>
void for_each_element(int64_t count, const Function& function, Pointers... rows) {
  constexpr std::index_sequence_for<Pointers...> places;
#if !defined(TORCHGRAFT_HAS_TARGETS)
  internal::Elements<16>::run(places, count, function, rows...);
#elif defined(TORCHGRAFT_X86_64_LEVEL)
  internal::Elements<TORCHGRAFT_X86_64_LEVEL == 4 ? 64 : 32>::run(places, count, function, rows...);
#else
  if (__builtin_cpu_supports("x86-64-v4")) {
    internal::Elements<64>::run(places, count, function, rows...);
  } else if (__builtin_cpu_supports("x86-64-v3")) {
    internal::Elements<32>::run(places, count, function, rows...);
  } else {
    internal::Elements<16>::run(places, count, function, rows...);
  }
#endif
}

}  // namespace torchgraft
