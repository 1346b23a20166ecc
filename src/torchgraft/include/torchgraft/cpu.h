// CPU kernels: threads, vectors, and code that is compiled for several instruction sets. The best one is
// chosen when the library loads.
#pragma once

#include <torch/csrc/stable/ops.h>

#include <cstdint>
#include <cstring>

#ifdef TORCHGRAFT_STD_THREADS
#include <algorithm>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>
#endif

// The instruction sets that kernels are compiled for. A library for any x86-64 machine holds every kernel
// three times and picks the best when it loads; TORCHGRAFT_X86_64_LEVEL (4 or 3) leaves the one that a
// machine which builds for itself would pick, the same code in a third of the time. Clang compiles functions
// for such a level, but knows no way to pick one by it: without TORCHGRAFT_X86_64_LEVEL it compiles for the
// least of processors alone.
#if defined(__x86_64__) && defined(__linux__) && defined(__GLIBC__) && defined(__GNUC__) && \
    (!defined(__clang__) || defined(TORCHGRAFT_X86_64_LEVEL)) && !defined(TORCHGRAFT_NO_CLONES)
#define TORCHGRAFT_HAS_TARGETS
#endif

// A function with this mark is compiled for each instruction set, and the dynamic linker picks one. The hot
// loop must be in the function itself: a function that it calls is compiled so only if it is inlined
// (TORCHGRAFT_INLINE).
#if !defined(TORCHGRAFT_HAS_TARGETS)
#define TORCHGRAFT_CLONES
#elif !defined(TORCHGRAFT_X86_64_LEVEL)
#define TORCHGRAFT_CLONES __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#elif TORCHGRAFT_X86_64_LEVEL == 4
#define TORCHGRAFT_CLONES __attribute__((target("arch=x86-64-v4")))
#elif TORCHGRAFT_X86_64_LEVEL == 3
#define TORCHGRAFT_CLONES __attribute__((target("arch=x86-64-v3")))
#else
#error "TORCHGRAFT_X86_64_LEVEL must be 3 or 4"
#endif

// Marks a function that is always inlined. A build that counts lines defines it differently.
#ifndef TORCHGRAFT_INLINE
#define TORCHGRAFT_INLINE inline __attribute__((always_inline))
#endif

// Defines SIGNATURE once for each instruction set, as above, with the bytes of its vector registers known in
// the body as the constant `kVectorBytes`: for kernels that block for registers, which `target_clones` cannot
// tell them. The name is bound to the best one inside its own file only, so give it internal linkage.
#define TORCHGRAFT_VECTOR_CLONE(BYTES, SIGNATURE, ...) \
  SIGNATURE {                                          \
    constexpr int kVectorBytes = BYTES;                \
    __VA_ARGS__                                        \
  }
#if !defined(TORCHGRAFT_HAS_TARGETS)
#define TORCHGRAFT_VECTOR_CLONES(SIGNATURE, ...) TORCHGRAFT_VECTOR_CLONE(16, SIGNATURE, __VA_ARGS__)
#elif !defined(TORCHGRAFT_X86_64_LEVEL)
#define TORCHGRAFT_VECTOR_CLONES(SIGNATURE, ...)                                                \
  TORCHGRAFT_VECTOR_CLONE(64, __attribute__((target("arch=x86-64-v4"))) SIGNATURE, __VA_ARGS__) \
  TORCHGRAFT_VECTOR_CLONE(32, __attribute__((target("arch=x86-64-v3"))) SIGNATURE, __VA_ARGS__) \
  TORCHGRAFT_VECTOR_CLONE(16, __attribute__((target("default"))) SIGNATURE, __VA_ARGS__)
#elif TORCHGRAFT_X86_64_LEVEL == 4
#define TORCHGRAFT_VECTOR_CLONES(SIGNATURE, ...) \
  TORCHGRAFT_VECTOR_CLONE(64, TORCHGRAFT_CLONES SIGNATURE, __VA_ARGS__)
#else
#define TORCHGRAFT_VECTOR_CLONES(SIGNATURE, ...) \
  TORCHGRAFT_VECTOR_CLONE(32, TORCHGRAFT_CLONES SIGNATURE, __VA_ARGS__)
#endif

// Put it in front of a loop over the elements of a register tile. The loop is unrolled, so its indices are
// constants and the tile stays in registers.
#if defined(__clang__)
#define TORCHGRAFT_UNROLL _Pragma("unroll")
#else
#define TORCHGRAFT_UNROLL _Pragma("GCC unroll 64")
#endif

namespace torchgraft {

// A vector register of T, with the arithmetic of the language.
template <typename T, int kBytes>
struct VectorOf {
  typedef T type __attribute__((vector_size(kBytes)));
};
template <typename T, int kBytes>
using Vector = typename VectorOf<T, kBytes>::type;

#ifdef TORCHGRAFT_HAS_TARGETS
#define TORCHGRAFT_TARGET(NAME) __attribute__((noinline, target(NAME)))
#else
#define TORCHGRAFT_TARGET(NAME) __attribute__((noinline))
#endif

// Calls `Function::run(arguments...)` as a function of its own, compiled for the instruction set whose
// registers have kVectorBytes: for the many loops of a kernel that TORCHGRAFT_VECTOR_CLONES would otherwise
// inline into one function, too large for a compiler to keep its addresses in registers. To be called from
// such a function.
template <int kVectorBytes>
struct Compiled;

template <>
struct Compiled<64> {
  template <typename Function, typename... Arguments>
  TORCHGRAFT_TARGET("arch=x86-64-v4")
  static void call(const Arguments&... arguments) {
    Function::run(arguments...);
  }
};

template <>
struct Compiled<32> {
  template <typename Function, typename... Arguments>
  TORCHGRAFT_TARGET("arch=x86-64-v3")
  static void call(const Arguments&... arguments) {
    Function::run(arguments...);
  }
};

template <>
struct Compiled<16> {
  template <typename Function, typename... Arguments>
  __attribute__((noinline)) static void call(const Arguments&... arguments) {
    Function::run(arguments...);
  }
};
#undef TORCHGRAFT_TARGET

// Loads a vector from any address. The result is an argument, because compilers do not agree on how a
// function returns a vector wider than those of the baseline.
template <typename V, typename T>
TORCHGRAFT_INLINE void load(V& vector, const T* from) {
  std::memcpy(&vector, from, sizeof(V));
}

// Stores a vector at any address.
template <typename V, typename T>
TORCHGRAFT_INLINE void store(const V& vector, T* to) {
  std::memcpy(to, &vector, sizeof(V));
}

// Moves on by `step` elements, in a way that the compiler cannot see through: of an unrolled loop it would
// compute all addresses beforehand, more than there are registers for.
template <typename At>
TORCHGRAFT_INLINE void advance(At& at, int64_t step) {
  at += step;
  asm("" : "+r"(at));
}

// Has a vector loaded once, into a register if there are such: GCC would load it once for each use.
template <typename V>
TORCHGRAFT_INLINE void keep(V& vector) {
#if defined(__clang__)
  static_cast<void>(vector);
#elif defined(__x86_64__)
  if constexpr (sizeof(V) >= 16 && sizeof(V) <= 64) asm("" : "+v"(vector));
#elif defined(__aarch64__)
  if constexpr (sizeof(V) == 16) asm("" : "+w"(vector));
#else
  static_cast<void>(vector);
#endif
}

#ifdef TORCHGRAFT_STD_THREADS

// For ThreadSanitizer, which knows std::thread and not the OpenMP runtime that PyTorch's loop stands on, and
// would report races where there are none. Four threads whatever `grain` is: so that a race shows on small
// tensors too, and a kernel whose pieces may be larger must bear smaller ones.
template <typename Function>
void parallel_for(int64_t begin, int64_t end, int64_t /*grain*/, const Function& function) {
  if (begin >= end) return;
  const int64_t pieces = std::min<int64_t>(4, end - begin);
  const int64_t length = (end - begin + pieces - 1) / pieces;
  std::exception_ptr error;
  std::mutex error_mutex;
  std::vector<std::thread> threads;
  for (int64_t first = begin; first < end; first += length) {
    threads.emplace_back([&, first] {
      try {
        function(first, std::min(first + length, end));
      } catch (...) {
        const std::lock_guard<std::mutex> lock(error_mutex);
        error = std::current_exception();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  if (error) std::rethrow_exception(error);
}

#else

// Calls `function(begin, end)` for pieces of [begin, end), on the threads of `torch.set_num_threads`. With
// fewer than `grain` iterations it runs on the calling thread.
template <typename Function>
void parallel_for(int64_t begin, int64_t end, int64_t grain, const Function& function) {
  if (begin >= end) return;
  if (end - begin <= grain) {
    function(begin, end);
    return;
  }
  torch::stable::parallel_for(begin, end, grain, function);
}

#endif

}  // namespace torchgraft
