// Text: what a kernel takes for a `str` of its schema.
//
// PyTorch's own conversion to std::string, as of 2.11 to 2.13, copies the text into memory that is never
// freed: some hundred bytes at each call. A kernel that takes `torchgraft::Text`, or `std::optional<Text>`
// for a `str?`, gets the same text and leaks nothing.
#pragma once

#include <torch/csrc/stable/library.h>

#include <string>

#include "checks.h"
#include "signature.h"

namespace torchgraft {

// What a kernel takes for a `str`: a std::string.
struct Text : std::string {
  using std::string::string;
};

template <>
struct internal::Word<Text> {
  static constexpr bool is_known = true;
  static std::string text() { return "str"; }
};

}  // namespace torchgraft

namespace torch::stable::detail {

template <>
struct ToImpl<torchgraft::Text> {
  static torchgraft::Text call(StableIValue value, uint64_t /*extension_build_version*/,
                               bool /*is_internal*/) {
    // The string is the kernel's to delete.
    struct Owned {
      StringHandle handle;
      ~Owned() { torch_delete_string(handle); }
    };
    const Owned owned{to<StringHandle>(value)};
    const char* characters = nullptr;
    size_t length = 0;
    torchgraft::check_call(torch_string_length(owned.handle, &length), "the length of a str");
    torchgraft::check_call(torch_string_c_str(owned.handle, &characters), "the text of a str");
    return {characters, length};
  }
};

}  // namespace torch::stable::detail
