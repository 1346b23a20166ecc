// The functions of cuBLAS that host functions call, on the CPU: products in true float32, or of factors that
// are rounded to tf32.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#include "../emulation.h"

namespace torchgraft {

struct Cublas {
  enum Operation { plain = 0, transposed = 1 };
  enum MathMode { float32 = 0, tf32 = 3 };

  // As PyTorch's switch of matrix products would have set it; and what the handle says.
  static inline thread_local int math_mode = float32;

  static float rounded(float value, int mode) {
    if (mode != tf32 || !std::isfinite(value)) return value;
    uint32_t bits;
    std::memcpy(&bits, &value, sizeof(bits));
    bits = (bits + 0x0fff + (bits >> 13 & 1)) & ~uint32_t{0x1fff};
    std::memcpy(&value, &bits, sizeof(bits));
    return value;
  }

  // Columns of every matrix lie one after the other.
  static int sgemm(void*, int left, int right, int rows, int columns, int depth, const float* alpha,
                   const float* a, int a_pitch, const float* b, int b_pitch, const float* beta, float* c,
                   int c_pitch) {
    const auto is_too_small = [](int pitch, int height) { return pitch < (height > 1 ? height : 1); };
    if (is_too_small(a_pitch, left == plain ? rows : depth) ||
        is_too_small(b_pitch, right == plain ? depth : columns) || is_too_small(c_pitch, rows)) {
      return 7;  // CUBLAS_STATUS_INVALID_VALUE
    }
    if (!::emulation::runs_launches()) return 0;
    for (int64_t column = 0; column < columns; ++column) {
      for (int64_t row = 0; row < rows; ++row) {
        double sum = 0;
        for (int64_t k = 0; k < depth; ++k) {
          const float one = left == plain ? a[k * a_pitch + row] : a[row * a_pitch + k];
          const float other = right == plain ? b[column * b_pitch + k] : b[k * b_pitch + column];
          sum += static_cast<double>(rounded(one, math_mode)) * rounded(other, math_mode);
        }
        float& result = c[column * c_pitch + row];
        // A beta of zero does not read what is there.
        result = static_cast<float>(*alpha * sum) + (*beta == 0 ? 0 : *beta * result);
      }
    }
    return 0;
  }
  static int get_math_mode(void*, int* mode) {
    *mode = math_mode;
    return 0;
  }
  static int set_math_mode(void*, int mode) {
    math_mode = mode;
    return 0;
  }

  bool is_found() const { return true; }
};

inline const Cublas& cublas() {
  static const Cublas found;
  return found;
}

inline void* cublas_handle() { return nullptr; }

}  // namespace torchgraft
