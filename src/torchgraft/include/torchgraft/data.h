// Typed pointers to the elements of a tensor. A pointer to another type than the tensor's is an error,
// because the kernel would read wrong numbers.
#pragma once

#include <torch/csrc/inductor/aoti_torch/c/shim.h>
#include <torch/csrc/stable/tensor.h>
#include <torch/headeronly/core/ScalarType.h>

#include <cstdint>

#include "checks.h"

namespace torchgraft {

// The dtype whose elements are of the type T, as ScalarType::Float for float.
template <typename T>
inline constexpr ScalarType kDtypeOf = torch::headeronly::CppTypeToScalarType<T>::value;

// The name of a dtype in Python, as float32; where it is rare, PyTorch's name of it in C++.
inline const char* name_of(ScalarType dtype) {
  switch (dtype) {
    case ScalarType::Double:
      return "float64";
    case ScalarType::Float:
      return "float32";
    case ScalarType::Half:
      return "float16";
    case ScalarType::BFloat16:
      return "bfloat16";
    case ScalarType::Long:
      return "int64";
    case ScalarType::Int:
      return "int32";
    case ScalarType::Short:
      return "int16";
    case ScalarType::Char:
      return "int8";
    case ScalarType::Byte:
      return "uint8";
    case ScalarType::Bool:
      return "bool";
    case ScalarType::ComplexFloat:
      return "complex64";
    case ScalarType::ComplexDouble:
      return "complex128";
    default:
      return torch::headeronly::toString(dtype);
  }
}

// Throws if the elements of a tensor have another type than T.
template <typename T>
void check_elements(const Tensor& tensor, const char* name) {
  int32_t code = 0;
  TORCH_ERROR_CODE_CHECK(aoti_torch_get_dtype(tensor.get(), &code));
  // PyTorch's codes are those of ScalarType. To ask for the ScalarType itself takes a call for each that
  // there is.
  if (code == static_cast<int32_t>(kDtypeOf<T>)) [[likely]]
    return;
  const ScalarType dtype = tensor.scalar_type();
  // A mistake of the kernel's author, and none of the caller's.
  if (dtype != kDtypeOf<T>)
    fail(name, " is ", name_of(dtype), ", but the kernel reads it as ", name_of(kDtypeOf<T>));
}

// The elements of a tensor that a kernel reads, in the order of memory. Throws if the tensor has another
// dtype than T.
template <typename T>
const T* data_of(const Tensor& tensor, const char* name = "a tensor") {
  check_elements<T>(tensor, name);
  return static_cast<const T*>(tensor.const_data_ptr());
}

// The same for a tensor that a kernel writes.
template <typename T>
T* mutable_data_of(const Tensor& tensor, const char* name = "a result") {
  check_elements<T>(tensor, name);
  return static_cast<T*>(tensor.mutable_data_ptr());
}

}  // namespace torchgraft
