// Where kernels get the memory of results and workspaces: through one pointer.
//
// `graft check` turns it to a function of its own, for memory of which it knows every byte: PyTorch's
// function for CPU cannot be reached in any other way. A call into another library goes through a pointer
// anyhow, so this one is free.
#pragma once

#include <torch/csrc/inductor/aoti_torch/c/shim.h>

namespace torchgraft {

using Allocate = decltype(&aoti_torch_empty_strided);

inline Allocate allocate = &aoti_torch_empty_strided;

}  // namespace torchgraft

// The only name that a library of kernels exports. Null is for PyTorch's own function.
extern "C" __attribute__((weak, visibility("default"))) void torchgraft_set_allocate(
    torchgraft::Allocate function) {
  torchgraft::allocate = function != nullptr ? function : &aoti_torch_empty_strided;
}
