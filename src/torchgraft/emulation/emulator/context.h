// A context is a stack, and the place where the function on this stack has stopped.
//
// Every emulated thread is a function that runs on a stack of its own. `switch_context` saves the registers
// that a function must preserve on the stack that is left, and continues the function on the other stack. On
// x86-64 these are fifteen instructions; on other processors the C library does it.
#pragma once

#include <cstddef>

#ifndef __x86_64__
#include <ucontext.h>
#endif

#include "sanitizer.h"

namespace emulation {

// AddressSanitizer puts space around every variable.
constexpr size_t kStackBytes = (sanitizer::kIsOn ? 1024 : 256) * 1024;

#ifdef __x86_64__
// The stack pointer.
using Context = void*;

extern "C" void emulation_switch(Context* from, Context* to);

inline void switch_context(Context& from, Context& to) { emulation_switch(&from, &to); }
#else
using Context = ucontext_t;

inline void switch_context(Context& from, Context& to) { swapcontext(&from, &to); }
#endif

// Makes a context that calls `entry` when it is switched to. `entry` must not return.
void prepare_context(Context& context, char* stack, void (*entry)());

// Maps memory that reads as zero and takes no space before it is written.
void* map_memory(size_t bytes);

// The stack of the thread of this number, counted over all threads that are alive at once.
struct Stack {
  char* memory;

  explicit Stack(size_t number);
};

}  // namespace emulation
