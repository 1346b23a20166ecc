// Pixels of an image to and from vectors of channels. Planes (contiguous) are transposed in registers, a
// square of lanes by lanes at a time: a load, a store and log2(lanes) shuffles a vector. Pixels
// (channels_last) are copied. Two-byte types are converted on the way, a vector at a time. Every byte of the
// tensor is touched once.

#include "cpu_rows.h"

#include <torchgraft/cpu.h>

#include <utility>

namespace torchgraft::depthwise::cpu {
namespace {

template <typename V, int... kLane>
TORCHGRAFT_INLINE void interleave(const V& left, const V& right, V& low, V& high,
                                  std::integer_sequence<int, kLane...>) {
  constexpr int kLanes = sizeof...(kLane);
  low = __builtin_shufflevector(left, right, (kLane / 2 + kLane % 2 * kLanes)...);
  high = __builtin_shufflevector(left, right, (kLanes / 2 + kLane / 2 + kLane % 2 * kLanes)...);
}

template <int kLanes, typename V>
TORCHGRAFT_INLINE void transpose(V (&square)[kLanes]) {
  TORCHGRAFT_UNROLL for (int stage = 1; stage < kLanes; stage *= 2) {
    V next[kLanes];
    TORCHGRAFT_UNROLL for (int i = 0; i < kLanes / 2; ++i) {
      interleave(square[i], square[i + kLanes / 2], next[2 * i], next[2 * i + 1],
                 std::make_integer_sequence<int, kLanes>());
    }
    TORCHGRAFT_UNROLL for (int i = 0; i < kLanes; ++i) square[i] = next[i];
  }
}

// Between float and the bits of two-byte types in whole vectors, as the conversions of PyTorch's scalar types
// do not become vectors. `U` holds 32 bits a lane.
template <typename To, typename From>
TORCHGRAFT_INLINE void reinterpret(To& to, const From& from) {
  static_assert(sizeof(To) == sizeof(From));
  std::memcpy(&to, &from, sizeof(To));
}

template <typename V, typename U>
TORCHGRAFT_INLINE void widen(V& value, const U& bits, Tag<BFloat16>) {
  reinterpret(value, U(bits << 16));
}

template <typename V, typename U>
TORCHGRAFT_INLINE void widen(V& value, const U& bits, Tag<Half>) {
  const U magnitude = bits & 0x7fff;
  // The exponent's bias is 127 and not 15; above the largest exponent lie infinity and NaN.
  const U rebased = (magnitude << 13) + (112u << 23);
  V subnormal = __builtin_convertvector(magnitude, V) * 0x1p-24f;
  U result;
  reinterpret(result, subnormal);
  result = magnitude < 0x400 ? result : (magnitude < 0x7c00 ? rebased : rebased + (112u << 23));
  reinterpret(value, U(result | (bits & 0x8000) << 16));
}

// Rounds to nearest, ties to even.
template <typename V, typename U>
TORCHGRAFT_INLINE void narrow(const V& value, U& bits, Tag<BFloat16>) {
  reinterpret(bits, value);
  const U rounded = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
  bits = (bits & 0x7fffffff) > 0x7f800000 ? U{} + 0x7fc0 : rounded;
}

template <typename V, typename U>
TORCHGRAFT_INLINE void narrow(const V& value, U& bits, Tag<Half>) {
  reinterpret(bits, value);
  const U magnitude = bits & 0x7fffffff;
  const U sign = bits >> 16 & 0x8000;
  // Adding a power of two whose last bit is the result's rounds it; what is too large becomes infinity on the
  // way.
  V scaled;
  reinterpret(scaled, magnitude);
  scaled = scaled * 0x1p112f * 0x1p-110f;
  const U exponent = magnitude & 0x7f800000;
  V power;
  reinterpret(power, U((exponent > 0x38800000 ? exponent : U{} + 0x38800000) + 0x07800000));
  U sum;
  reinterpret(sum, V(power + scaled));
  const U rounded = (sum >> 13 & 0x7c00) + (sum & 0xfff);
  bits = sign | (magnitude > 0x7f800000 ? U{} + 0x7e00 : rounded);
}

// Processors with AVX2 have instructions for float16, which compilers do not choose for vectors.
#if defined(__x86_64__)
template <typename T, typename V>
inline constexpr bool kConverts = std::is_same_v<T, Half> && sizeof(V) >= 32;
#else
template <typename T, typename V>
inline constexpr bool kConverts = false;
#endif

template <typename V, typename A, typename T>
TORCHGRAFT_INLINE void load_converted(V& vector, const T* from) {
  if constexpr (std::is_same_v<T, A>) {
    load(vector, from);
  } else {
    Vector<uint16_t, sizeof(V) / 2> bits;
    load(bits, from);
    if constexpr (kConverts<T, V>) {
      asm("vcvtph2ps %1, %0" : "=v"(vector) : "v"(bits));
      return;
    }
    widen(vector, __builtin_convertvector(bits, Vector<uint32_t, sizeof(V)>), Tag<T>{});
  }
}

template <typename A, typename V, typename T>
TORCHGRAFT_INLINE void store_converted(const V& vector, T* to) {
  if constexpr (std::is_same_v<T, A>) {
    store(vector, to);
  } else if constexpr (kConverts<T, V>) {
    Vector<uint16_t, sizeof(V) / 2> bits;
    asm("vcvtps2ph $0, %1, %0" : "=v"(bits) : "v"(vector));
    store(bits, to);
  } else {
    Vector<uint32_t, sizeof(V)> bits;
    narrow(vector, bits, Tag<T>{});
    store(__builtin_convertvector(bits, Vector<uint16_t, sizeof(V) / 2>), to);
  }
}

// Any step, any number of lanes: what no loop below is made for.
template <typename T, typename A>
TORCHGRAFT_INLINE void gather_any(const Channels<const T>& channels, const T* image, A* to, int64_t lanes,
                                  int64_t pixels) {
  for (int64_t p = 0; p < pixels; ++p) {
    for (int64_t l = 0; l < channels.count; ++l) {
      to[p * lanes + l] = static_cast<A>(image[channels.offsets[l] + p * channels.pixel_step]);
    }
    for (int64_t l = channels.count; l < lanes; ++l) to[p * lanes + l] = 0;
  }
}

template <typename T, typename A>
TORCHGRAFT_INLINE void scatter_any(const A* from, int64_t lanes, const Channels<T>& channels, T* image,
                                   int64_t pixels) {
  for (int64_t p = 0; p < pixels; ++p) {
    for (int64_t l = 0; l < channels.count; ++l) {
      image[channels.offsets[l] + p * channels.pixel_step] = static_cast<T>(from[p * lanes + l]);
    }
  }
}

// A few planes, for which a square of a vector each would be mostly empty.
template <typename V, typename T, typename A>
TORCHGRAFT_INLINE void gather_few_planes(const Channels<const T>& channels, const T* image, A* to,
                                         int64_t pixels) {
  constexpr int64_t kLanes = sizeof(V) / sizeof(A);
  for (int64_t p = 0; p < pixels; ++p) store(V{}, to + p * kLanes);
  for (int64_t l = 0; l < channels.count; ++l) {
    const T* plane = image + channels.offsets[l];
    for (int64_t p = 0; p < pixels; ++p) to[p * kLanes + l] = static_cast<A>(plane[p]);
  }
}

template <typename V, typename T, typename A>
TORCHGRAFT_INLINE void scatter_few_planes(const A* from, const Channels<T>& channels, T* image, int64_t pixels) {
  constexpr int64_t kLanes = sizeof(V) / sizeof(A);
  for (int64_t l = 0; l < channels.count; ++l) {
    T* plane = image + channels.offsets[l];
    for (int64_t p = 0; p < pixels; ++p) plane[p] = static_cast<T>(from[p * kLanes + l]);
  }
}

// The last square overlaps the one before where pixels are no multiple of it.
template <typename V, typename T, typename A>
TORCHGRAFT_INLINE void gather_planes(const Channels<const T>& channels, const T* image, A* to,
                                     int64_t pixels) {
  constexpr int kLanes = sizeof(V) / sizeof(A);
  for (int64_t pixel = 0; pixel < pixels; pixel += kLanes) {
    const int64_t begin = std::min(pixel, pixels - kLanes);
    V square[kLanes];
    TORCHGRAFT_UNROLL for (int l = 0; l < kLanes; ++l) {
      square[l] = V{};
      if (l < channels.count) load_converted<V, A>(square[l], image + channels.offsets[l] + begin);
    }
    transpose(square);
    TORCHGRAFT_UNROLL for (int p = 0; p < kLanes; ++p) store(square[p], to + (begin + p) * kLanes);
  }
}

template <typename V, typename T, typename A>
TORCHGRAFT_INLINE void scatter_planes(const A* from, const Channels<T>& channels, T* image, int64_t pixels) {
  constexpr int kLanes = sizeof(V) / sizeof(A);
  for (int64_t pixel = 0; pixel < pixels; pixel += kLanes) {
    const int64_t begin = std::min(pixel, pixels - kLanes);
    V square[kLanes];
    TORCHGRAFT_UNROLL for (int p = 0; p < kLanes; ++p) load(square[p], from + (begin + p) * kLanes);
    transpose(square);
    TORCHGRAFT_UNROLL for (int l = 0; l < kLanes; ++l) {
      if (l < channels.count) store_converted<A>(square[l], image + channels.offsets[l] + begin);
    }
  }
}

// Where channels do not fill a vector its other lanes hold those that follow, which nobody looks at; the last
// pixels, where nothing may follow, come one element at a time.
template <typename V, typename T, typename A>
TORCHGRAFT_INLINE void gather_pixels(const Channels<const T>& channels, const T* image, A* to,
                                     int64_t pixels) {
  constexpr int64_t kLanes = sizeof(V) / sizeof(A);
  const int64_t room = (pixels - 1) * channels.pixel_step + channels.count - kLanes;
  const int64_t whole = room < 0 ? 0 : room / channels.pixel_step + 1;
  for (int64_t p = 0; p < whole; ++p) {
    V pixel;
    load_converted<V, A>(pixel, image + channels.offsets[0] + p * channels.pixel_step);
    store(pixel, to + p * kLanes);
  }
  gather_any(channels, image + whole * channels.pixel_step, to + whole * kLanes, kLanes, pixels - whole);
}

template <typename V, typename T, typename A>
TORCHGRAFT_INLINE void scatter_pixels(const A* from, const Channels<T>& channels, T* image, int64_t pixels) {
  for (int64_t p = 0; p < pixels; ++p) {
    V pixel;
    load(pixel, from + p * static_cast<int64_t>(sizeof(V) / sizeof(A)));
    store_converted<A>(pixel, image + channels.offsets[0] + p * channels.pixel_step);
  }
}

// Of each pixel kPiece to 2 * kPiece channels, in two pieces that may overlap.
template <int kPiece, typename V, typename T, typename A>
TORCHGRAFT_INLINE void scatter_pieces(const A* from, const Channels<T>& channels, T* image, int64_t pixels) {
  constexpr int64_t kLanes = sizeof(V) / sizeof(A);
  const int64_t last = channels.count - kPiece;
  T* to = image + channels.offsets[0];
  for (int64_t p = 0; p < pixels; ++p, from += kLanes, to += channels.pixel_step) {
    T converted[kLanes];
    const T* pixel = converted;
    if constexpr (std::is_same_v<T, A>) {
      pixel = from;
    } else {
      V vector;
      load(vector, from);
      store_converted<A>(vector, converted);
    }
    std::memcpy(to, pixel, kPiece * sizeof(T));
    std::memcpy(to + last, pixel + last, kPiece * sizeof(T));
  }
}

template <typename V, typename T, typename A>
TORCHGRAFT_INLINE void scatter_some(const A* from, const Channels<T>& channels, T* image, int64_t pixels) {
  constexpr int64_t kLanes = sizeof(V) / sizeof(A);
  if (channels.count == kLanes) {
    scatter_pixels<V>(from, channels, image, pixels);
  } else if (kLanes > 8 && channels.count >= 8) {
    scatter_pieces<8, V>(from, channels, image, pixels);
  } else if (kLanes > 4 && channels.count >= 4) {
    scatter_pieces<4, V>(from, channels, image, pixels);
  } else if (kLanes > 2 && channels.count >= 2) {
    scatter_pieces<2, V>(from, channels, image, pixels);
  } else {
    scatter_any(from, kLanes, channels, image, pixels);
  }
}

// Which loop serves which channels.
constexpr int64_t kFewPlanes = 2;

template <int kBytes, typename T, typename A>
TORCHGRAFT_INLINE void dispatch_gather(const Channels<const T>& channels, int64_t pixel, A* to, int64_t lanes,
                                       int64_t pixels) {
  using V = Vector<A, kBytes>;
  constexpr int64_t kLanes = kBytes / sizeof(A);
  const T* image = channels.image + pixel * channels.pixel_step;
  if (lanes == kLanes && channels.pixel_step == 1 && pixels >= kLanes) {
    if (std::is_same_v<T, A> && channels.count <= kFewPlanes) {
      gather_few_planes<V>(channels, image, to, pixels);
    } else {
      gather_planes<V>(channels, image, to, pixels);
    }
  } else if (lanes == kLanes && channels.consecutive()) {
    gather_pixels<V>(channels, image, to, pixels);
  } else if (lanes == kLanes / 2 && channels.consecutive()) {
    gather_pixels<Vector<A, kBytes / 2>>(channels, image, to, pixels);
  } else {
    gather_any(channels, image, to, lanes, pixels);
  }
}

template <int kBytes, typename T, typename A>
TORCHGRAFT_INLINE void dispatch_scatter(const A* from, int64_t lanes, const Channels<T>& channels,
                                        int64_t pixel, int64_t pixels) {
  using V = Vector<A, kBytes>;
  constexpr int64_t kLanes = kBytes / sizeof(A);
  T* image = channels.image + pixel * channels.pixel_step;
  if (lanes == kLanes && channels.pixel_step == 1 && pixels >= kLanes) {
    if (std::is_same_v<T, A> && channels.count <= kFewPlanes) {
      scatter_few_planes<V>(from, channels, image, pixels);
    } else {
      scatter_planes<V>(from, channels, image, pixels);
    }
  } else if (lanes == kLanes && channels.consecutive()) {
    scatter_some<V>(from, channels, image, pixels);
  } else if (lanes == kLanes / 2 && channels.consecutive()) {
    scatter_some<Vector<A, kBytes / 2>>(from, channels, image, pixels);
  } else {
    scatter_any(from, lanes, channels, image, pixels);
  }
}

TORCHGRAFT_VECTOR_CLONES(int64_t register_bytes(), return kVectorBytes;)

#define TORCHGRAFT_RUN_ROWS(T)                                                                           \
  TORCHGRAFT_VECTOR_CLONES(void run_gather(const Channels<const T>& channels, int64_t pixel,             \
                                           accumulate_t<T>* to, int64_t lanes, int64_t pixels),          \
                           dispatch_gather<kVectorBytes>(channels, pixel, to, lanes, pixels);)           \
  TORCHGRAFT_VECTOR_CLONES(void run_scatter(const accumulate_t<T>* from, int64_t lanes,                  \
                                            const Channels<T>& channels, int64_t pixel, int64_t pixels), \
                           dispatch_scatter<kVectorBytes>(from, lanes, channels, pixel, pixels);)
TORCHGRAFT_RUN_ROWS(double)
TORCHGRAFT_RUN_ROWS(float)
TORCHGRAFT_RUN_ROWS(Half)
TORCHGRAFT_RUN_ROWS(BFloat16)
#undef TORCHGRAFT_RUN_ROWS

}  // namespace

int64_t vector_bytes() { return register_bytes(); }

#define TORCHGRAFT_DEFINE_ROWS(T)                                                                      \
  void gather(const Channels<const T>& channels, int64_t pixel, accumulate_t<T>* to, int64_t lanes,    \
              int64_t pixels) {                                                                        \
    run_gather(channels, pixel, to, lanes, pixels);                                                    \
  }                                                                                                    \
  void scatter(const accumulate_t<T>* from, int64_t lanes, const Channels<T>& channels, int64_t pixel, \
               int64_t pixels) {                                                                       \
    run_scatter(from, lanes, channels, pixel, pixels);                                                 \
  }
TORCHGRAFT_DEFINE_ROWS(double)
TORCHGRAFT_DEFINE_ROWS(float)
TORCHGRAFT_DEFINE_ROWS(Half)
TORCHGRAFT_DEFINE_ROWS(BFloat16)
#undef TORCHGRAFT_DEFINE_ROWS

}  // namespace torchgraft::depthwise::cpu
