// A recurrence on CPU: threads share out the rows of a step, and the compiler vectorizes over the units.
#pragma once

#include <algorithm>
#include <cmath>

#include "../cpu.h"
#include "../elementwise.h"
#include "../vector_math.h"

#define TORCHGRAFT_CELL_FUNCTION TORCHGRAFT_INLINE
#include "recurrence_passes.h"

namespace torchgraft::recurrence {

// The functions that a printed cell calls. The last four are calls for each number.
struct CpuMath {
  template <typename T>
  static TORCHGRAFT_INLINE T exp(T x) {
    return vector_math::exp(x);
  }
  template <typename T>
  static TORCHGRAFT_INLINE T expm1(T x) {
    return vector_math::expm1(x);
  }
  template <typename T>
  static TORCHGRAFT_INLINE T log(T x) {
    return vector_math::log(x);
  }
  template <typename T>
  static TORCHGRAFT_INLINE T log1p(T x) {
    return vector_math::log1p(x);
  }
  template <typename T>
  static TORCHGRAFT_INLINE T tanh(T x) {
    return vector_math::tanh(x);
  }
  template <typename T>
  static TORCHGRAFT_INLINE T sigmoid(T x) {
    return vector_math::sigmoid(x);
  }
  template <typename T>
  static TORCHGRAFT_INLINE T reciprocal(T x) {
    return T(1) / x;
  }
  template <typename T>
  static TORCHGRAFT_INLINE T erf(T x) {
    return vector_math::erf(x);
  }
  template <typename T>
  static TORCHGRAFT_INLINE T abs(T x) {
    return std::fabs(x);
  }
  template <typename T>
  static TORCHGRAFT_INLINE T sqrt(T x) {
    return std::sqrt(x);
  }
  template <typename T>
  static TORCHGRAFT_INLINE T sin(T x) {
    return std::sin(x);
  }
  template <typename T>
  static TORCHGRAFT_INLINE T cos(T x) {
    return std::cos(x);
  }
  template <typename T>
  static TORCHGRAFT_INLINE T atan(T x) {
    return std::atan(x);
  }
  template <typename T>
  static TORCHGRAFT_INLINE T pow(T x, T y) {
    return std::pow(x, y);
  }
};

// The units of one row, from `first_unit` on.
template <typename Pass, typename T, size_t... kRead, size_t... kWritten>
void run_units(const Step<Pass, T>& step, int64_t row, int64_t first_unit, int64_t count,
               std::index_sequence<kRead...>, std::index_sequence<kWritten...>) {
  for_each_element(
      count,
      [](auto&... values) {
        const auto all = std::tie(values...);
        const T read[] = {std::get<kRead>(all)...};
        T written[Pass::kWrites];
        Pass::template unit<CpuMath>(read, written);
        ((std::get<Pass::kReads + kWritten>(all) = written[kWritten]), ...);
      },
      (step.read[kRead].first + row * step.read[kRead].stride + first_unit)...,
      (step.written[kWritten].first + row * step.written[kWritten].stride + first_unit)...);
}

struct OnCpu {
  template <typename Pass, typename T>
  void operator()(const Step<Pass, T>& step) const {
    // Few rows of many units are shared out too. A piece is whole vectors.
    constexpr int64_t kPiece = 1024;
    // So many units take some microseconds, as long as to wake a thread.
    constexpr int64_t kGrain = 4096;
    const int64_t pieces = (step.units + kPiece - 1) / kPiece;
    const int64_t grain = std::max<int64_t>(1, kGrain / std::min(step.units, kPiece));
    parallel_for(0, step.rows * pieces, grain, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const int64_t first = i % pieces * kPiece;
        run_units(step, i / pieces, first, std::min(kPiece, step.units - first),
                  std::make_index_sequence<Pass::kReads>(), std::make_index_sequence<Pass::kWrites>());
      }
    });
  }

  // result = input @ weight.T, and left @ right of factors that are one matrix.
  void multiply_inputs(const Tensor& input, const Tensor& weight, Tensor& result) const {
    multiply_converted(input, weight, result);
  }
  void multiply_factors(const Factor& left, const Factor& right, Tensor& result) const {
    multiply(left.matrix, right.matrix, result);
  }
  // A tensor of a call as the factor that multiplies one in the type that is computed in.
  Factor factor_beside(const Factor&, const Tensor& tensor, ScalarType computed) const {
    return {converted(tensor, computed)};
  }

  // Steps are run one by one.
  template <typename Cell, typename T, typename Steps>
  bool at_once(const Steps&) const {
    return false;
  }
};

}  // namespace torchgraft::recurrence
