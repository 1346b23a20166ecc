// Registers a host function as a kernel of an operator that Python has declared.
#pragma once

#include <torch/csrc/stable/library.h>

#include "last_error.h"
#include "measured.h"
#include "signature.h"

// What compiled a library stands in it as text, where `graft bench` finds it: a result names its compiler.
#define TORCHGRAFT_QUOTED(TEXT) TORCHGRAFT_QUOTED_(TEXT)
#define TORCHGRAFT_QUOTED_(TEXT) #TEXT
#if defined(__CUDACC_VER_MAJOR__)
#define TORCHGRAFT_COMPILER                                              \
  "nvcc " TORCHGRAFT_QUOTED(__CUDACC_VER_MAJOR__) "." TORCHGRAFT_QUOTED( \
      __CUDACC_VER_MINOR__) "." TORCHGRAFT_QUOTED(__CUDACC_VER_BUILD__)
#elif defined(__clang__)
#define TORCHGRAFT_COMPILER "clang " __clang_version__
#else
#define TORCHGRAFT_COMPILER "gcc " __VERSION__
#endif

namespace torchgraft {
[[maybe_unused]] __attribute__((used)) static const char compiled_by[] =
    "torchgraft: compiled by " TORCHGRAFT_COMPILER;
}  // namespace torchgraft

// TORCHGRAFT_KERNEL(mypackage, CPU, softplus, softplus_cpu) registers the function `softplus_cpu` as the CPU
// kernel of `mypackage::softplus`. An operator has a public name, which autograd knows, and a raw name with
// an underscore, which it does not (see torchgraft/operator/call.py); the kernel is registered for both. The
// function must have the types of the schema: loading the library compares them. Where the library lists
// kernels for the operator (choice.h), the raw name can take the fastest of them (measured.h).
#define TORCHGRAFT_KERNEL(NAMESPACE, DEVICE, OPERATOR, FUNCTION) \
  TORCHGRAFT_KERNEL_BESIDE(NAMESPACE, DEVICE, OPERATOR, FUNCTION, nullptr)

// The same beside an operator of PyTorch that computes the same: RIVAL, a function of the same type, calls
// it, and throws where PyTorch cannot compute what it is given. It is one of the candidates that are timed.
#define TORCHGRAFT_MEASURED(OPERATOR, FUNCTION, RIVAL)                                               \
  TORCHGRAFT_BOX((&::torchgraft::internal::Measured<torchgraft_name_##OPERATOR, decltype(&FUNCTION), \
                                                    &FUNCTION, RIVAL>::call))
#ifdef TORCHGRAFT_REGISTERED_WHEN_TOLD
#include "registered_when_told.h"
#define TORCHGRAFT_KERNEL_BESIDE(NAMESPACE, DEVICE, OPERATOR, FUNCTION, RIVAL)                        \
  static constexpr char torchgraft_name_##OPERATOR[] = #OPERATOR;                                     \
  [[maybe_unused]] static const bool torchgraft_takes_##OPERATOR =                                    \
      ::torchgraft::internal::list_signature(#OPERATOR, #FUNCTION, &FUNCTION) &&                      \
      ::torchgraft::internal::list_kernel({#NAMESPACE, #DEVICE, #OPERATOR, TORCHGRAFT_BOX(&FUNCTION), \
                                           TORCHGRAFT_MEASURED(OPERATOR, FUNCTION, RIVAL)});
#else
#define TORCHGRAFT_KERNEL_BESIDE(NAMESPACE, DEVICE, OPERATOR, FUNCTION, RIVAL)   \
  static constexpr char torchgraft_name_##OPERATOR[] = #OPERATOR;                \
  [[maybe_unused]] static const bool torchgraft_takes_##OPERATOR =               \
      ::torchgraft::internal::list_signature(#OPERATOR, #FUNCTION, &FUNCTION);   \
  STABLE_TORCH_LIBRARY_IMPL(NAMESPACE, DEVICE, library) {                        \
    library.impl(#OPERATOR, TORCHGRAFT_BOX(&FUNCTION));                          \
    library.impl("_" #OPERATOR, TORCHGRAFT_MEASURED(OPERATOR, FUNCTION, RIVAL)); \
  }
#endif
