// What the C++ function of a kernel takes and returns, in the words of a schema: Python compares it with the
// schema when a library is loaded, as a dispatcher passes every argument as 64 bits and asks no types.
#pragma once

#include <torch/csrc/stable/device.h>
#include <torch/csrc/stable/tensor.h>

#include <cstdint>
#include <optional>
#include <string>
#include <tuple>
#include <type_traits>
#include <vector>

namespace torchgraft::internal {

// The word for a type. A type that has none cannot be an argument or a result of a kernel.
template <typename T>
struct Word {
  static constexpr bool is_known = false;
  static std::string text() { return "?"; }
};

#define TORCHGRAFT_WORD(TYPE, TEXT)            \
  template <>                                  \
  struct Word<TYPE> {                          \
    static constexpr bool is_known = true;     \
    static std::string text() { return TEXT; } \
  };

TORCHGRAFT_WORD(torch::stable::Tensor, "Tensor")
TORCHGRAFT_WORD(int64_t, "int")
TORCHGRAFT_WORD(double, "float")
TORCHGRAFT_WORD(bool, "bool")
TORCHGRAFT_WORD(torch::headeronly::ScalarType, "ScalarType")
TORCHGRAFT_WORD(torch::headeronly::Layout, "Layout")
TORCHGRAFT_WORD(torch::headeronly::MemoryFormat, "MemoryFormat")
TORCHGRAFT_WORD(torch::stable::Device, "Device")
TORCHGRAFT_WORD(void, "")
#undef TORCHGRAFT_WORD

template <typename T>
struct Word<std::optional<T>> {
  static constexpr bool is_known = Word<T>::is_known;
  static std::string text() { return Word<T>::text() + "?"; }
};

template <typename T>
struct Word<std::vector<T>> {
  static constexpr bool is_known = Word<T>::is_known;
  static std::string text() { return Word<T>::text() + "[]"; }
};

template <typename... T>
struct Word<std::tuple<T...>> {
  static constexpr bool is_known = (Word<T>::is_known && ...);
  static std::string text() {
    std::string joined;
    ((joined += (joined.empty() ? "" : ", ") + Word<T>::text()), ...);
    return joined;
  }
};

// A line for each kernel: the operator, the function, what it takes, what it returns, with tabs between them.
inline std::string& listed_signatures() {
  static std::string lines;
  return lines;
}

template <typename Result, typename... Arguments>
bool list_signature(const char* operator_name, const char* function, Result (*)(Arguments...)) {
  static_assert(
      (Word<std::decay_t<Arguments>>::is_known && ...),
      "a kernel takes Tensor, int64_t, double, bool, ScalarType, Layout, MemoryFormat, Device, Text of "
      "torchgraft/text.h, and std::optional and std::vector of these: write int64_t for int, double for "
      "float, Text for std::string");
  static_assert(Word<Result>::is_known,
                "a kernel returns Tensor, std::vector<Tensor>, a std::tuple of these, or void");
  listed_signatures() += std::string(operator_name) + '\t' + function + '\t' +
                         Word<std::tuple<std::decay_t<Arguments>...>>::text() + '\t' + Word<Result>::text() +
                         '\n';
  return true;
}

}  // namespace torchgraft::internal

extern "C" __attribute__((weak, visibility("default"))) const char* torchgraft_signatures() {
  return torchgraft::internal::listed_signatures().c_str();
}
