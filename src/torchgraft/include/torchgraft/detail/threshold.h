// Limits of a choice between kernels, each with its name. A size is compared with a threshold by <, <=, > and
// >=.
//
// A program that defines TORCHGRAFT_TRACE_THRESHOLDS learns of each comparison and may turn its answer
// around, so that a test can ask for problems on both sides of each threshold, which it decides: the program
// defines `torchgraft::on_comparison`. Otherwise a threshold costs nothing.
#pragma once

#include <cstdint>
#include <type_traits>

namespace torchgraft {

struct Threshold {
  const char* name;
  int64_t value;

  // The same threshold for a size that is so many times larger, or smaller.
  constexpr Threshold times(int64_t factor) const { return {name, value * factor}; }
  constexpr Threshold per(int64_t divisor) const { return {name, value / divisor}; }
};

#ifdef TORCHGRAFT_TRACE_THRESHOLDS
// Given on which side of a threshold a size lies, says on which side the choice takes it to lie.
bool on_comparison(const Threshold& threshold, bool is_above);
#else
constexpr bool on_comparison(const Threshold&, bool is_above) { return is_above; }
#endif

constexpr bool operator>=(int64_t size, const Threshold& threshold) {
  const bool is_above = size >= threshold.value;
  return std::is_constant_evaluated() ? is_above : on_comparison(threshold, is_above);
}
constexpr bool operator>(int64_t size, const Threshold& threshold) {
  const bool is_above = size > threshold.value;
  return std::is_constant_evaluated() ? is_above : on_comparison(threshold, is_above);
}
constexpr bool operator<(int64_t size, const Threshold& threshold) { return !(size >= threshold); }
constexpr bool operator<=(int64_t size, const Threshold& threshold) { return !(size > threshold); }

}  // namespace torchgraft

// TORCHGRAFT_THRESHOLD(kFewRows, 16); declares a threshold under its own name.
#define TORCHGRAFT_THRESHOLD(NAME, VALUE) \
  inline constexpr ::torchgraft::Threshold NAME { #NAME, VALUE }
