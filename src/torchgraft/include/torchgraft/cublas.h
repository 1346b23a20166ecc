// cuBLAS as PyTorch calls it: its library, and the handle of the current thread, device and stream.
//
// Nothing is linked. The handle comes from PyTorch's C interface, with its stream and workspace set; the
// functions are those that PyTorch itself is linked with, looked up once in the libraries that it has loaded.
#pragma once

#include <torch/csrc/inductor/aoti_torch/c/shim.h>
#include <torch/csrc/stable/c/shim.h>

#include <dlfcn.h>

#include "checks.h"

namespace torchgraft {

// The part of cuBLAS' interface that is used, as cublas_api.h has it; both enumerations are plain numbers
// there.
struct Cublas {
  enum Operation { plain = 0, transposed = 1 };
  enum MathMode { float32 = 0, tf32 = 3 };

  int (*sgemm)(void* handle, int left, int right, int rows, int columns, int depth, const float* alpha,
               const float* a, int a_pitch, const float* b, int b_pitch, const float* beta, float* c,
               int c_pitch) = nullptr;
  int (*get_math_mode)(void* handle, int* mode) = nullptr;
  int (*set_math_mode)(void* handle, int mode) = nullptr;

  // Not where PyTorch was linked with cuBLAS statically.
  bool is_found() const { return sgemm != nullptr && get_math_mode != nullptr && set_math_mode != nullptr; }
};

// The functions of cuBLAS that PyTorch is linked with, looked up at the first call.
inline const Cublas& cublas() {
  static const Cublas found = [] {
    Cublas functions;
    // A library's handle finds what the libraries that it needs export.
    if (void* const pytorch = dlopen("libtorch_cuda.so", RTLD_LAZY | RTLD_NOLOAD)) {
      functions.sgemm = reinterpret_cast<decltype(functions.sgemm)>(dlsym(pytorch, "cublasSgemm_v2"));
      functions.get_math_mode =
          reinterpret_cast<decltype(functions.get_math_mode)>(dlsym(pytorch, "cublasGetMathMode"));
      functions.set_math_mode =
          reinterpret_cast<decltype(functions.set_math_mode)>(dlsym(pytorch, "cublasSetMathMode"));
    }
    return functions;
  }();
  return found;
}

// The handle of the current thread for the current device, set to its current stream. No other thread has it.
inline void* cublas_handle() {
  void* handle = nullptr;
  check_call(torch_get_current_cuda_blas_handle(&handle), "cuBLAS");
  return handle;
}

}  // namespace torchgraft
