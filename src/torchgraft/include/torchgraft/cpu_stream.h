// CPU kernels: stores that bypass the caches, for results so large that no cache would keep them until they
// are read. The memory is not read before it is written.
#pragma once

#include "cpu_convert.h"

namespace torchgraft {

// So many bytes of results or more go past the caches: more than a second-level cache has. Instrumented
// libraries send less there too, so that small tensors show what goes wrong.
#ifdef TORCHGRAFT_STREAMED_BYTES
inline constexpr int64_t kStreamedBytes = TORCHGRAFT_STREAMED_BYTES;
#else
inline constexpr int64_t kStreamedBytes = 4 << 20;
#endif

// Converts a vector of A and stores it past the caches. `to` must be aligned to the bytes of the result. What
// follows may overtake it until end_streams(). Worth it where neighbours fill whole cache lines one after the
// other.
template <typename A, typename V, typename T>
TORCHGRAFT_INLINE void stream_converted(const V& vector, T* to) {
#if defined(__x86_64__)
  constexpr int kBytes = sizeof(V) / sizeof(A) * sizeof(T);
  if constexpr (kBytes >= 16) {
    T elements[sizeof(V) / sizeof(A)];
    store_converted<A>(vector, elements);
    Vector<uint32_t, kBytes> converted;
    load(converted, elements);
#if defined(__clang__)
    __builtin_nontemporal_store(converted, reinterpret_cast<Vector<uint32_t, kBytes>*>(to));
#else
    if constexpr (sizeof(V) > 16) {
      asm("vmovntps %1, %0" : "=m"(*reinterpret_cast<Vector<uint32_t, kBytes>*>(to)) : "v"(converted));
    } else {
      asm("movntps %1, %0" : "=m"(*reinterpret_cast<Vector<uint32_t, kBytes>*>(to)) : "x"(converted));
    }
#endif
    return;
  }
#endif
  store_converted<A>(vector, to);
}

// Makes the streamed stores of this thread visible before its later stores. Each thread must call it at the
// end of its share.
inline void end_streams() {
#if defined(__x86_64__)
  asm volatile("sfence" ::: "memory");
#endif
}

}  // namespace torchgraft
