// No planted operator: memory as PyTorch before 2.13 is asked for it, for a test of the function that does.

#include <torchgraft/layout.h>

#include <torch/csrc/stable/library.h>

namespace planted {
namespace {

using torchgraft::Tensor;

// (count, 2), dense.
Tensor empty_quietly_cpu(Tensor like, int64_t count) {
  const int64_t sizes[] = {count, 2};
  const int64_t strides[] = {2, 1};
  int32_t dtype = 0;
  TORCH_ERROR_CODE_CHECK(aoti_torch_get_dtype(like.get(), &dtype));
  AtenTensorHandle handle = nullptr;
  const bool found =
      torchgraft::quiet::allocate(2, sizes, strides, dtype, aoti_torch_device_type_cpu(), -1, &handle);
  TORCHGRAFT_CHECK(found, "PyTorch's function has another name");
  return Tensor(handle);
}

}  // namespace

STABLE_TORCH_LIBRARY_FRAGMENT(planted, library) {
  library.def("empty_quietly(Tensor like, int count) -> Tensor");
}
STABLE_TORCH_LIBRARY_IMPL(planted, CPU, library) {
  library.impl("empty_quietly", TORCH_BOX(&empty_quietly_cpu));
}

}  // namespace planted
