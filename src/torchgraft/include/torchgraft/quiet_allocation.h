// Memory from PyTorch 2.11 and 2.12 without a stack trace on stderr where there is none left.
//
// The C interface of those two prints what goes wrong, with a trace of the stack, and no program can have it
// not to without changing what is printed of everything else. What it calls to get memory are two functions
// of libtorch that throw PyTorch's own torch.OutOfMemoryError. They are looked up by name, so that nothing is
// linked that a later PyTorch may not have: where one is not found, the C interface is called. From 2.13 on,
// which prints nothing, they are not asked for at all: this is of two versions that do not change any more.
#pragma once

#include <torch/csrc/inductor/aoti_torch/c/shim.h>

#include <cstdint>
#include <new>
#include <optional>

#if defined(__linux__)
#include <dlfcn.h>
#endif

namespace torchgraft::quiet {

// PyTorch's types as they lie in memory. at::Tensor is one pointer, which its function returns in memory of
// the caller's, as it has a destructor.
struct Sizes {
  const int64_t* data;
  size_t length;
};
struct Device {
  int8_t type;
  int8_t index;
};
struct Returned {
  void* tensor;
  Returned(const Returned&) = delete;
  ~Returned() {}
};

using AllocateOnCpu = Returned (*)(Sizes, Sizes, int8_t dtype, bool is_pinned);
using AllocateOnCuda = Returned (*)(Sizes, Sizes, int8_t dtype, std::optional<Device>);

// A function of a library that PyTorch has loaded, or null.
template <typename Function>
Function find([[maybe_unused]] const char* library, [[maybe_unused]] const char* name) {
#if defined(__linux__)
  if (void* const loaded = dlopen(library, RTLD_LAZY | RTLD_NOLOAD)) {
    return reinterpret_cast<Function>(dlsym(loaded, name));
  }
#endif
  return nullptr;
}

// As aoti_torch_empty_strided; false where the function was not found. Throws what PyTorch throws.
inline bool allocate(int64_t dim, const int64_t* sizes, const int64_t* strides, int32_t dtype,
                     int32_t device_type, int32_t device_index, AtenTensorHandle* tensor) {
  const Sizes extent = {sizes, static_cast<size_t>(dim)};
  const Sizes steps = {strides, static_cast<size_t>(dim)};
  const auto type = static_cast<int8_t>(dtype);
  const auto give = [&](const auto& call) {
    // What the handle stands for is a tensor from `new`, and is deleted so.
    void* const place = ::operator new(sizeof(Returned));
    try {
      new (place) Returned(call());
    } catch (...) {
      ::operator delete(place);
      throw;
    }
    *tensor = static_cast<AtenTensorHandle>(place);
    return true;
  };
  if (device_type == aoti_torch_device_type_cpu()) {
    static const auto function = find<AllocateOnCpu>(
        "libtorch_cpu.so", "_ZN2at6detail17empty_strided_cpuEN3c108ArrayRefIlEES3_NS1_10ScalarTypeEb");
    return function != nullptr && give([&] { return function(extent, steps, type, false); });
  }
  if (device_type == aoti_torch_device_type_cuda()) {
    static const auto function = find<AllocateOnCuda>(
        "libtorch_cuda.so",
        "_ZN2at6detail18empty_strided_cudaEN3c108ArrayRefIlEES3_NS1_10ScalarTypeESt8optionalINS1_6DeviceEE");
    const Device device = {static_cast<int8_t>(device_type), static_cast<int8_t>(device_index)};
    return function != nullptr &&
           give([&] { return function(extent, steps, type, std::optional<Device>(device)); });
  }
  return false;
}

}  // namespace torchgraft::quiet
