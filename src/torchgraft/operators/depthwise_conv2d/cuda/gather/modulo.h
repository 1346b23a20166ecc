// Inverses modulo a number, of which the phases of an input gradient are made.
#pragma once

#include <cstdint>
#include <utility>

namespace torchgraft::depthwise::cuda {

// x such that value * x = 1 modulo `modulus`; value and modulus have no common divisor.
inline int64_t inverse_modulo(int64_t value, int64_t modulus) {
  int64_t remainder = modulus, next_remainder = value % modulus;
  int64_t inverse = 0, next_inverse = 1;
  while (next_remainder != 0) {
    const int64_t quotient = remainder / next_remainder;
    remainder = std::exchange(next_remainder, remainder - quotient * next_remainder);
    inverse = std::exchange(next_inverse, inverse - quotient * next_inverse);
  }
  return inverse < 0 ? inverse + modulus : inverse;
}

}  // namespace torchgraft::depthwise::cuda
