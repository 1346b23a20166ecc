// Pixels of an image to and from vectors of channels. Planes (contiguous) are transposed in registers, a
// square of lanes by lanes at a time: a load, a store and log2(lanes) shuffles a vector. Pixels
// (channels_last) are copied. Two-byte types are converted on the way, a vector at a time. Every byte of the
// tensor is touched once.

#include "rows.h"

#include <torchgraft/cpu.h>
#include <torchgraft/cpu_convert.h>
#include <torchgraft/cpu_transpose.h>

namespace torchgraft::depthwise::cpu {
namespace {

// Any step, any number of lanes: what no loop below is made for.
template <typename T, typename A>
void gather_any(const Channels<const T>& channels, const T* image, A* to, int64_t lanes, int64_t pixels) {
  const Channels<const T> local = channels;
  for (int64_t p = 0; p < pixels; ++p, image += local.pixel_step, to += lanes) {
    for (int64_t l = 0; l < local.count; ++l) to[l] = static_cast<A>(image[local.offsets[l]]);
    for (int64_t l = local.count; l < lanes; ++l) to[l] = 0;
  }
}

template <typename T, typename A>
void scatter_any(const A* from, int64_t lanes, const Channels<T>& channels, T* image, int64_t pixels) {
  const Channels<T> local = channels;
  for (int64_t p = 0; p < pixels; ++p, image += local.pixel_step, from += lanes) {
    for (int64_t l = 0; l < local.count; ++l) image[local.offsets[l]] = static_cast<T>(from[l]);
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
TORCHGRAFT_INLINE void scatter_few_planes(const A* from, const Channels<T>& channels, T* image,
                                          int64_t pixels) {
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

// Planes of fewer pixels than a square has. What is read behind one is the next one's, or its own next row;
// behind the last there may be nothing.
template <typename V, typename T, typename A>
TORCHGRAFT_INLINE void gather_short_planes(const Channels<const T>& channels, const T* image, A* to,
                                           int64_t pixels) {
  constexpr int kLanes = sizeof(V) / sizeof(A);
  const T* const end = image + channels.offsets[channels.count - 1] + pixels;
  V square[kLanes];
  TORCHGRAFT_UNROLL for (int l = 0; l < kLanes; ++l) {
    square[l] = V{};
    if (l < channels.count) {
      const T* plane = image + channels.offsets[l];
      T last[kLanes] = {};
      if (end - plane < kLanes) plane = std::copy_n(plane, pixels, last) - pixels;
      load_converted<V, A>(square[l], plane);
    }
  }
  transpose(square);
  TORCHGRAFT_UNROLL for (int p = 0; p < kLanes; ++p) {
    if (p < pixels) store(square[p], to + p * kLanes);
  }
}

// What is written behind a plane is put right by the next one.
template <typename V, typename T, typename A>
TORCHGRAFT_INLINE void scatter_short_planes(const A* from, const Channels<T>& channels, T* image,
                                            int64_t pixels) {
  constexpr int kLanes = sizeof(V) / sizeof(A);
  T* const end = image + channels.offsets[channels.count - 1] + pixels;
  V square[kLanes];
  TORCHGRAFT_UNROLL for (int p = 0; p < kLanes; ++p) {
    square[p] = V{};
    if (p < pixels) load(square[p], from + p * kLanes);
  }
  transpose(square);
  TORCHGRAFT_UNROLL for (int l = 0; l < kLanes; ++l) {
    if (l < channels.count) {
      T* plane = image + channels.offsets[l];
      if (end - plane >= kLanes) {
        store_converted<A>(square[l], plane);
      } else {
        T last[kLanes];
        store_converted<A>(square[l], last);
        std::copy_n(last, pixels, plane);
      }
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

// Two to four channels of each of several images, in pieces of four: what a piece has too much lies in the
// next image, and the next piece puts it right. Nothing may lie behind the last one, which has no more than
// its channels.
template <int kRun, typename V, typename T>
TORCHGRAFT_INLINE void gather_runs(const Channels<const T>& channels, const T* image, T* to, int64_t pixels) {
  constexpr int64_t kLanes = sizeof(V) / sizeof(T);
  const int64_t last = channels.count / kRun - 1;
  const T* from[kMostLanes / kRun] = {};
  for (int64_t run = 0; run <= last; ++run) from[run] = image + channels.offsets[run * kRun];
  for (int64_t p = 0; p < pixels; ++p) {
    T* at = to + p * kLanes;
    store(V{}, at);
    for (int64_t run = 0; run < last; ++run)
      std::memcpy(at + run * kRun, from[run] + p * kRun, 4 * sizeof(T));
    std::memcpy(at + last * kRun, from[last] + p * kRun, kRun * sizeof(T));
  }
}

template <int kRun, typename T>
TORCHGRAFT_INLINE void scatter_runs(const T* from, int64_t lanes, const Channels<T>& channels, T* image,
                                    int64_t pixels) {
  for (int64_t run = 0; run < channels.count / kRun; ++run) {
    T* to = image + channels.offsets[run * kRun];
    for (int64_t p = 0; p < pixels; ++p) {
      std::memcpy(to + p * kRun, from + p * lanes + run * kRun, kRun * sizeof(T));
    }
  }
}

template <typename V, typename T, typename A>
TORCHGRAFT_INLINE void scatter_some(const A* from, const Channels<T>& channels, T* image, int64_t pixels) {
  constexpr int64_t kLanes = sizeof(V) / sizeof(A);
  if (channels.count == kLanes) {
    scatter_pixels<V>(from, channels, image, pixels);
  } else if constexpr (kLanes == kMostLanes) {
    // More than half of the lanes are channels: up to eight take a vector of half as many lanes.
    scatter_pieces<8, V>(from, channels, image, pixels);
  } else if (kLanes > 4 && channels.count >= 4) {
    scatter_pieces<4, V>(from, channels, image, pixels);
  } else if constexpr (kLanes > 2) {
    // Two channels or three: one alone is a plane.
    scatter_pieces<2, V>(from, channels, image, pixels);
  }
}

// Which loop serves which channels.
constexpr int64_t kFewPlanes = 2;

// Whether planes of fewer pixels than lanes are turned sooner than they are copied by elements.
template <typename T>
bool are_turned(const Channels<T>& channels, int64_t lanes, int64_t pixels) {
  return channels.pixel_step == 1 && channels.count > kFewPlanes && 4 * pixels >= lanes;
}

template <typename V>
TORCHGRAFT_INLINE void dispatch_gather_runs(const Channels<const float>& channels, const float* image,
                                            float* to, int64_t pixels) {
  if (channels.pixel_step == 2) return gather_runs<2, V>(channels, image, to, pixels);
  if (channels.pixel_step == 3) return gather_runs<3, V>(channels, image, to, pixels);
  gather_runs<4, V>(channels, image, to, pixels);
}

TORCHGRAFT_INLINE void dispatch_scatter_runs(const float* from, int64_t lanes,
                                             const Channels<float>& channels, float* image, int64_t pixels) {
  if (channels.pixel_step == 2) return scatter_runs<2>(from, lanes, channels, image, pixels);
  if (channels.pixel_step == 3) return scatter_runs<3>(from, lanes, channels, image, pixels);
  scatter_runs<4>(from, lanes, channels, image, pixels);
}

template <int kBytes, typename T, typename A>
TORCHGRAFT_INLINE void dispatch_gather(const Channels<const T>& channels, int64_t pixel, A* to, int64_t lanes,
                                       int64_t pixels) {
  // Padding alone is read where no tap meets the image.
  if (pixels == 0) return;
  using V = Vector<A, kBytes>;
  constexpr int64_t kLanes = kBytes / sizeof(A);
  const T* image = channels.image + pixel * channels.pixel_step;
  if constexpr (std::is_same_v<T, float>) {
    if (channels.in_runs()) {
      if (lanes == kLanes) return dispatch_gather_runs<V>(channels, image, to, pixels);
      if constexpr (kLanes == kMostLanes) {
        return dispatch_gather_runs<Vector<A, kBytes / 2>>(channels, image, to, pixels);
      }
    }
  }
  const bool is_whole = kLanes < kMostLanes || lanes == kLanes;
  if (is_whole && channels.pixel_step == 1 && pixels >= kLanes) {
    if (std::is_same_v<T, A> && channels.count <= kFewPlanes) {
      return gather_few_planes<V>(channels, image, to, pixels);
    }
    return gather_planes<V>(channels, image, to, pixels);
  }
  if (is_whole && are_turned(channels, kLanes, pixels)) {
    return gather_short_planes<V>(channels, image, to, pixels);
  }
  if (channels.consecutive()) {
    if (is_whole) return gather_pixels<V>(channels, image, to, pixels);
    if constexpr (kLanes == kMostLanes) {
      return gather_pixels<Vector<A, kBytes / 2>>(channels, image, to, pixels);
    }
  }
  gather_any(channels, image, to, lanes, pixels);
}

template <int kBytes, typename T, typename A>
TORCHGRAFT_INLINE void dispatch_scatter(const A* from, int64_t lanes, const Channels<T>& channels,
                                        int64_t pixel, int64_t pixels) {
  using V = Vector<A, kBytes>;
  constexpr int64_t kLanes = kBytes / sizeof(A);
  T* image = channels.image + pixel * channels.pixel_step;
  if constexpr (std::is_same_v<T, float>) {
    if (channels.in_runs()) return dispatch_scatter_runs(from, lanes, channels, image, pixels);
  }
  const bool is_whole = kLanes < kMostLanes || lanes == kLanes;
  if (is_whole && channels.pixel_step == 1 && pixels >= kLanes) {
    if (std::is_same_v<T, A> && channels.count <= kFewPlanes) {
      return scatter_few_planes<V>(from, channels, image, pixels);
    }
    return scatter_planes<V>(from, channels, image, pixels);
  }
  // Only whole planes that lie one behind the other: what is written behind one is the next one's.
  const int64_t last = channels.count - 1;
  if (is_whole && are_turned(channels, kLanes, pixels) &&
      channels.offsets[last] - channels.offsets[0] == last * pixels) {
    return scatter_short_planes<V>(from, channels, image, pixels);
  }
  if (channels.consecutive()) {
    if (is_whole) return scatter_some<V>(from, channels, image, pixels);
    if constexpr (kLanes == kMostLanes) {
      return scatter_some<Vector<A, kBytes / 2>>(from, channels, image, pixels);
    }
  }
  scatter_any(from, lanes, channels, image, pixels);
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
