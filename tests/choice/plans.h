// Reads and writes what programs that ask plans share: an extent of a geometry, and names with their numbers.
#pragma once

#include <iostream>

#include "sizes.h"

namespace torchgraft::depthwise {

inline std::istream& operator>>(std::istream& in, Extent& extent) {
  return in >> extent.input >> extent.output >> extent.kernel >> extent.stride >> extent.padding >>
         extent.dilation;
}

// Writes `name=number name=number ` and ends the line.
template <typename... Values>
void write(const Values&... values) {
  bool is_name = true;
  ((std::cout << values << (is_name ? '=' : ' '), is_name = !is_name), ...);
  std::cout << '\n';
}

}  // namespace torchgraft::depthwise
