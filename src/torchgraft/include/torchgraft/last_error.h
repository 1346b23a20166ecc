// Keeps what a kernel said when it refused a call, for a C++ program to ask.
//
// PyTorch's C interface turns the exception of a kernel into an error code. Its text crosses from 2.13 on,
// and through a package of AOTInductor not even there.
#pragma once

#include <torch/csrc/stable/library.h>

#include <cstdint>
#include <cstdio>
#include <exception>

#include "checks.h"

namespace torchgraft::internal {

// No std::string: a library that is unloaded must leave no destructor behind in other threads.
inline char* kept_error() {
  constexpr int kLongest = 1024;
  static thread_local char text[kLongest] = "";
  return text;
}

inline void keep_error(const char* text) {
  constexpr int kLongest = 1024;
  std::snprintf(kept_error(), kLongest, "%s", text);
}

// Whether the text that is kept is that of a Refusal.
inline bool& kept_is_refusal() {
  static thread_local bool is_refusal = false;
  return is_refusal;
}

// A kernel as the dispatcher calls it; an exception passes on, and its text is kept.
template <typename Function, Function* function>
void boxed_kernel(StableIValue* stack, uint64_t arguments, uint64_t results) {
  try {
    torch::stable::detail::boxer<Function, function>::boxed_fn(stack, arguments, results);
  } catch (const std::exception& error) {
    keep_error(error.what());
    kept_is_refusal() = dynamic_cast<const Refusal*>(&error) != nullptr;
    throw;
  }
}

}  // namespace torchgraft::internal

#define TORCHGRAFT_BOX(FUNCTION)                                                                             \
  (&::torchgraft::internal::boxed_kernel<std::remove_pointer_t<std::remove_reference_t<decltype(FUNCTION)>>, \
                                         (FUNCTION)>)

// What the last kernel of this library that refused a call in this thread said; `forget` clears it.
extern "C" __attribute__((weak, visibility("default"))) const char* torchgraft_last_error(bool forget) {
  if (forget) torchgraft::internal::keep_error("");
  return torchgraft::internal::kept_error();
}

// The same text if the kernel threw a Refusal, and an empty text if it threw anything else.
extern "C" __attribute__((weak, visibility("default"))) const char* torchgraft_last_refusal() {
  return torchgraft::internal::kept_is_refusal() ? torchgraft::internal::kept_error() : "";
}
