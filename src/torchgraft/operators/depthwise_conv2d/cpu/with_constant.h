// Turns a number that is known at run time into an argument of a template.
#pragma once

#include <torchgraft/cpu.h>

#include <cstdint>
#include <type_traits>

namespace torchgraft::depthwise::cpu {

// Calls `function(std::integral_constant<int, value>{})` if `value` is one of kValues, and tells whether it
// is.
template <int... kValues, typename Function>
TORCHGRAFT_INLINE bool with_constant(int64_t value, const Function& function) {
  return ((value == kValues && (function(std::integral_constant<int, kValues>{}), true)) || ...);
}

}  // namespace torchgraft::depthwise::cpu
