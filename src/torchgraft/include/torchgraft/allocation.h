// Where kernels get the memory of results and workspaces: `make_empty`, through one pointer.
//
// `graft check` turns it to a function of its own, for memory of which it knows every byte: PyTorch's
// function for CPU cannot be reached in any other way. A call into another library goes through a pointer
// anyhow, so this one is free.
#pragma once

#include <torch/csrc/inductor/aoti_torch/c/shim.h>

#include "checks.h"
#include "quiet_allocation.h"

namespace torchgraft {

using Allocate = decltype(&aoti_torch_empty_strided);

// PyTorch's function. Before 2.13 it prints a stack trace where memory runs out; there, what it calls itself
// is called, and the exception that comes of that is PyTorch's own.
inline AOTITorchError allocate_from_pytorch(int64_t dim, const int64_t* sizes, const int64_t* strides,
                                            int32_t dtype, int32_t device_type, int32_t device_index,
                                            AtenTensorHandle* tensor) {
  static const bool is_quiet = aoti_torch_abi_version() >= (uint64_t{2} << 56 | uint64_t{13} << 48);
  if (!is_quiet && quiet::allocate(dim, sizes, strides, dtype, device_type, device_index, tensor)) {
    return AOTI_TORCH_SUCCESS;
  }
  const Allocate stable = &aoti_torch_empty_strided;
  return stable(dim, sizes, strides, dtype, device_type, device_index, tensor);
}

inline Allocate allocate = &allocate_from_pytorch;

// Throws an error that says how many bytes could not be allocated, in the words of PyTorch's allocators.
// Python recognizes them and raises torch.OutOfMemoryError: `out_of_memory` in
// torchgraft/declaration/bad_arguments.py.
[[noreturn]] inline void fail_to_allocate(int64_t dim, const int64_t* sizes, const int64_t* strides,
                                          int64_t bytes, bool on_cpu) {
  if (const char* const reason = what_pytorch_says(); reason != nullptr && *reason != 0) fail(reason);
  int64_t elements = 1;
  for (int64_t d = 0; d < dim; ++d) elements = sizes[d] == 0 ? 0 : elements + (sizes[d] - 1) * strides[d];
  bytes *= elements;
  if (on_cpu) fail("DefaultCPUAllocator: can't allocate memory: you tried to allocate ", bytes, " bytes");
  fail("CUDA out of memory. Tried to allocate ", bytes, " bytes");
}

// An uninitialised tensor. Throws where there is not enough memory, with the number of bytes.
inline Tensor make_empty(int64_t dim, const int64_t* sizes, const int64_t* strides, int32_t dtype,
                         int32_t device_type, int32_t device_index) {
  AtenTensorHandle handle = nullptr;
  if (allocate(dim, sizes, strides, dtype, device_type, device_index, &handle) != AOTI_TORCH_SUCCESS)
      [[unlikely]] {
    fail_to_allocate(dim, sizes, strides, static_cast<int64_t>(aoti_torch_dtype_element_size(dtype)),
                     device_type == aoti_torch_device_type_cpu());
  }
  return Tensor(handle);
}

}  // namespace torchgraft

// Exported from a library of kernels. Null is for PyTorch's own function.
extern "C" __attribute__((weak, visibility("default"))) void torchgraft_set_allocate(
    torchgraft::Allocate function) {
  torchgraft::allocate = function != nullptr ? function : &torchgraft::allocate_from_pytorch;
}
