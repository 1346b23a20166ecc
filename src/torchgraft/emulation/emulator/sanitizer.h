// The calls by which AddressSanitizer learns of stacks and of memory; without it they do nothing.
#pragma once

#include <cstddef>

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

namespace emulation::sanitizer {

#ifdef __SANITIZE_ADDRESS__
constexpr bool kIsOn = true;

// To be called before the stack changes. `saved` keeps the state of the stack that is left; null: it never
// runs again.
inline void before_switch(void** saved, const void* stack, size_t bytes) {
  __sanitizer_start_switch_fiber(saved, stack, bytes);
}
// To be called on the new stack, with the state that was saved when it was left. Gives the stack that was
// left.
inline void after_switch(void* saved, const void** left = nullptr, size_t* left_bytes = nullptr) {
  __sanitizer_finish_switch_fiber(saved, left, left_bytes);
}
// Makes every access of some memory an error, or allows it again.
inline void forbid(const void* memory, size_t bytes) { ASAN_POISON_MEMORY_REGION(memory, bytes); }
inline void allow(const void* memory, size_t bytes) { ASAN_UNPOISON_MEMORY_REGION(memory, bytes); }
#else
constexpr bool kIsOn = false;

inline void before_switch(void**, const void*, size_t) {}
inline void after_switch(void*, const void** = nullptr, size_t* = nullptr) {}
inline void forbid(const void*, size_t) {}
inline void allow(const void*, size_t) {}
#endif

}  // namespace emulation::sanitizer
