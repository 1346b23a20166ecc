// Limits of a choice between kernels, each with its name. A size is compared with a threshold by <, <=, > and
// >=.
//
// A program that defines TORCHGRAFT_TRACE_THRESHOLDS learns of each comparison, so that a test can ask for
// problems on both sides of each threshold: it defines `torchgraft::on_comparison`. Otherwise a threshold
// costs nothing.
#pragma once

#include <cstdint>

namespace torchgraft {

struct Threshold {
  const char* name;
  int64_t value;

  // The same threshold for a size that is so many times larger, or smaller.
  constexpr Threshold times(int64_t factor) const { return {name, value * factor}; }
  constexpr Threshold per(int64_t divisor) const { return {name, value / divisor}; }
};

#ifdef TORCHGRAFT_TRACE_THRESHOLDS
// `is_above`: on which side of the threshold the size lies.
void on_comparison(const Threshold& threshold, int64_t size, bool is_above);
#else
constexpr void on_comparison(const Threshold&, int64_t, bool) {}
#endif

constexpr bool operator>=(int64_t size, const Threshold& threshold) {
  const bool is_above = size >= threshold.value;
  on_comparison(threshold, size, is_above);
  return is_above;
}
constexpr bool operator>(int64_t size, const Threshold& threshold) {
  const bool is_above = size > threshold.value;
  on_comparison(threshold, size, is_above);
  return is_above;
}
constexpr bool operator<(int64_t size, const Threshold& threshold) { return !(size >= threshold); }
constexpr bool operator<=(int64_t size, const Threshold& threshold) { return !(size > threshold); }

}  // namespace torchgraft

// TORCHGRAFT_THRESHOLD(kFewRows, 16); declares a threshold under its own name.
#define TORCHGRAFT_THRESHOLD(NAME, VALUE) \
  inline constexpr ::torchgraft::Threshold NAME { #NAME, VALUE }
