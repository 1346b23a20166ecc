// The fibre that runs, as far as races.cpp must know it, and the calls that tell races.cpp of accesses that
// the compiler does not see.
#pragma once

#include <cstddef>
#include <cstdint>

namespace emulation {

struct Watched {
  bool on = false;                 // a fibre runs
  const void* together = nullptr;  // where in the program it executes an instruction for its whole warp
  const char* arena = nullptr;
  size_t arena_bytes = 0;
  const char* stack = nullptr;
  size_t stack_bytes = 0;
  const char* meetings = nullptr;
  size_t meeting_bytes = 0;
  uint32_t block = 0;
  uint32_t thread = 0;                   // of the block
  const uint32_t* epoch = nullptr;       // barriers of blocks so far
  const uint32_t* warp_epoch = nullptr;  // __syncwarps of the warp
  uint32_t grid_epoch = 0;               // launches, and barriers of several blocks
};

inline Watched watched;

#ifdef EMULATION_RACES
// An access that is about to be made, at a place in the program.
void watch_access(void* address, size_t bytes, bool writes, const void* place);
// Must be called before another thread runs: by then the last write has been made.
void settle_write();
#else
inline void watch_access(void*, size_t, bool, const void*) {}
inline void settle_write() {}
#endif

}  // namespace emulation
