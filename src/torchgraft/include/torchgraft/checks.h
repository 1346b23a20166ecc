// What a host function checks before it touches memory.
//
// Calls through `torch.ops`, exported programs and AOTInductor reach a host function without Python's checks,
// so the host function must check for itself. There a failed check is a RuntimeError. An Operator makes it a
// ValueError or TypeError: one that explains the argument if the declaration can, or else one with the text
// of the check, after the operator's name.
#pragma once

#include <torch/csrc/inductor/aoti_torch/c/shim.h>
#include <torch/csrc/stable/tensor.h>
#include <torch/headeronly/core/ScalarType.h>
#include <torch/headeronly/util/Exception.h>

#include <cstdint>
#include <sstream>
#include <stdexcept>
#include <string>

namespace torchgraft {

// PyTorch's types, as its stable ABI has them: a dtype, and a tensor.
using torch::headeronly::ScalarType;
using torch::stable::Tensor;

// Throws a std::runtime_error whose message is all parts, one after the other.
template <typename... Parts>
[[noreturn]] void fail(const Parts&... parts) {
  std::ostringstream message;
  (message << ... << parts);
  throw std::runtime_error(message.str());
}

// What TORCHGRAFT_CHECK throws: the kernel refuses what the caller passed. An Operator raises a ValueError
// for it, and a RuntimeError for what `fail` throws.
struct Refusal : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// Throws a Refusal whose message is all parts, one after the other.
template <typename... Parts>
[[noreturn]] void refuse(const Parts&... parts) {
  std::ostringstream message;
  (message << ... << parts);
  throw Refusal(message.str());
}

// What PyTorch says of the call across its C interface that has just failed in this thread. PyTorch tells it
// from 2.13 on; before, the name is missing and the pointer null.
extern "C" __attribute__((weak)) const char* torch_exception_get_what_without_backtrace();

inline const char* what_pytorch_says() {
  return torch_exception_get_what_without_backtrace == nullptr ? nullptr
                                                               : torch_exception_get_what_without_backtrace();
}

// Throws if a call of PyTorch's C interface has failed. The message is `what`, with PyTorch's reason if there
// is one.
inline void check_call(AOTITorchError error, const char* what) {
  if (error == AOTI_TORCH_SUCCESS) [[likely]]
    return;
  const char* const reason = what_pytorch_says();
  fail(what, reason == nullptr ? " failed in PyTorch" : ": ", reason == nullptr ? "" : reason);
}

// Throws a Refusal if the condition is false. The other arguments are its message, which is built only then:
// name the argument in it, and say what was expected.
#define TORCHGRAFT_CHECK(condition, ...) \
  do {                                   \
    if (!(condition)) [[unlikely]] {     \
      ::torchgraft::refuse(__VA_ARGS__); \
    }                                    \
  } while (false)

// Throws unless every element of a tensor lies in its storage. A program may free the storage of a tensor to
// save memory, with `tensor.untyped_storage().resize_(0)`. PyTorch does not check this again, and a kernel
// that reads freed memory ends the process.
inline void check_memory(const Tensor& tensor, const char* name) {
  int64_t stored = 0;
  TORCH_ERROR_CODE_CHECK(aoti_torch_get_storage_size(tensor.get(), &stored));
  const auto sizes = tensor.sizes();
  const auto strides = tensor.strides();
  int64_t last = tensor.storage_offset();
  for (size_t d = 0; d < sizes.size(); ++d) {
    if (sizes[d] == 0) return;
    last += (sizes[d] - 1) * strides[d];
  }
  const int64_t needed = (last + 1) * static_cast<int64_t>(tensor.element_size());
  TORCHGRAFT_CHECK(needed <= stored, name, " needs a storage of ", needed, " bytes, and its storage has ",
                   stored, ": its memory was freed");
}

// Throws unless a tensor has `dim` dimensions and memory for all of its elements. Call it for each argument
// that a kernel reads.
inline void check_dim(const Tensor& tensor, int64_t dim, const char* name) {
  TORCHGRAFT_CHECK(tensor.dim() == dim, name, " must have ", dim, " dimensions, got ", tensor.dim());
  check_memory(tensor, name);
}

namespace internal {

// The sizes of a tensor as Python writes them.
inline std::string shape_in_words(const Tensor& tensor) {
  const auto sizes = tensor.sizes();
  std::ostringstream shape;
  for (size_t i = 0; i < sizes.size(); ++i) shape << (i == 0 ? "" : ", ") << sizes[i];
  return "(" + shape.str() + (sizes.size() == 1 ? ",)" : ")");
}

// PyTorch's number for the kind of device that a tensor is on.
inline int32_t device_type_of(const Tensor& tensor) {
  int32_t type = 0;
  TORCH_ERROR_CODE_CHECK(aoti_torch_get_device_type(tensor.get(), &type));
  return type;
}

}  // namespace internal

// Whether both tensors are on the same device.
inline bool same_device(const Tensor& left, const Tensor& right) {
  return internal::device_type_of(left) == internal::device_type_of(right) &&
         left.get_device_index() == right.get_device_index();
}

// Throws unless two tensors have the same dtype and are on the same device. Call it for tensors that one
// kernel reads.
inline void check_same_kind(const Tensor& left, const char* left_name, const Tensor& right,
                            const char* right_name) {
  TORCHGRAFT_CHECK(left.scalar_type() == right.scalar_type(), left_name, " and ", right_name,
                   " must have the same dtype");
  TORCHGRAFT_CHECK(same_device(left, right), left_name, " and ", right_name, " must be on the same device");
}

// The product of two sizes. Throws if it overflows 64 bits. Use it for sizes that a caller chose: an overflow
// would allocate too little memory, without an error.
inline int64_t checked_product(int64_t left, int64_t right, const char* what) {
  int64_t product = 0;
  TORCHGRAFT_CHECK(!__builtin_mul_overflow(left, right, &product), what,
                   " is too large: it overflows 64 bits");
  return product;
}

}  // namespace torchgraft
