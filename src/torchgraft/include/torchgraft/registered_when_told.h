// Kernels that are registered, and taken back, when Python says so, and not as their library is loaded: those
// of torchgraft.load_inline, in whose place a process may put others.
#pragma once

#include <torch/csrc/stable/library.h>

#include <cstdint>
#include <string>
#include <vector>

namespace torchgraft::internal {

struct ToldKernel {
  const char* package;
  const char* device;
  std::string name;
  void (*boxed)(StableIValue*, uint64_t, uint64_t);
  void (*boxed_raw)(StableIValue*, uint64_t, uint64_t);
};

inline std::vector<ToldKernel>& told_kernels() {
  static std::vector<ToldKernel> kernels;
  return kernels;
}

inline bool list_kernel(const ToldKernel& kernel) {
  told_kernels().push_back(kernel);
  return true;
}

// What PyTorch gave for what is registered now.
inline std::vector<TorchLibraryHandle>& told_libraries() {
  static std::vector<TorchLibraryHandle> libraries;
  return libraries;
}

inline bool register_kernel(const ToldKernel& kernel) {
  TorchLibraryHandle library = nullptr;
  if (aoti_torch_library_init_impl(kernel.package, kernel.device, __FILE__, __LINE__, &library) != 0)
    return false;
  told_libraries().push_back(library);
  const std::string raw = "_" + kernel.name;
  return torch_library_impl(library, kernel.name.c_str(), kernel.boxed, TORCH_ABI_VERSION) == 0 &&
         torch_library_impl(library, raw.c_str(), kernel.boxed_raw, TORCH_ABI_VERSION) == 0;
}

}  // namespace torchgraft::internal

// Registers all kernels of this library, or takes them back; whether that went well.
extern "C" __attribute__((weak, visibility("default"))) bool torchgraft_register(bool wanted) {
  using namespace torchgraft::internal;
  bool well = true;
  for (const TorchLibraryHandle library : told_libraries()) {
    well &= aoti_torch_delete_library_object(library) == 0;
  }
  told_libraries().clear();
  if (!wanted) return well;
  for (const ToldKernel& kernel : told_kernels()) well &= register_kernel(kernel);
  return well;
}
