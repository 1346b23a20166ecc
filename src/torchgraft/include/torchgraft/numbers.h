// Whole numbers, on hosts and devices.
#pragma once

namespace torchgraft {

// The quotient rounded up, of numbers that are not negative.
template <typename Numerator, typename Divisor>
constexpr auto ceil_divide(Numerator numerator, Divisor divisor) {
  return (numerator + divisor - 1) / divisor;
}

// The quotient rounded down, of a numerator of either sign.
template <typename Numerator, typename Divisor>
constexpr auto floor_divide(Numerator numerator, Divisor divisor) {
  return numerator / divisor - (numerator % divisor < 0 ? 1 : 0);
}

// The least multiple of `step` that is no less than `number`.
template <typename Number, typename Step>
constexpr auto round_up(Number number, Step step) {
  return ceil_divide(number, step) * step;
}

}  // namespace torchgraft
