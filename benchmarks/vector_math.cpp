// Computes, for benchmarks/vector_math.py and tests/test_vector_math.py, each function of
// torchgraft/vector_math.h on each instruction set, beside the standard library's.

#include <torchgraft/elementwise.h>
#include <torchgraft/vector_math.h>

#include <cmath>
#include <limits>

// The functions, with what they should give in a type with more digits, W.
#define EACH_FUNCTION(DO)                                                       \
  DO(exp, std::exp(x))                                                          \
  DO(expm1, std::expm1(x))                                                      \
  DO(log, std::log(x))                                                          \
  DO(log1p, std::log1p(x))                                                      \
  DO(tanh, std::tanh(x))                                                        \
  DO(sigmoid, x < 0 ? std::exp(x) / (1 + std::exp(x)) : 1 / (1 + std::exp(-x))) \
  DO(erf, std::erf(x))

#define EXACT(NAME, VALUE)     \
  template <typename W>        \
  inline W exact_##NAME(W x) { \
    return VALUE;              \
  }
EACH_FUNCTION(EXACT)

template <typename T>
struct Row {
  const T* from;
  T* to;
  int64_t count;
};

#define LOOP(LEVEL, TARGET, NAME, T, VALUE)                 \
  TARGET static void NAME##_at_##LEVEL(const Row<T>& row) { \
    for (int64_t i = 0; i < row.count; ++i) {               \
      const T x = row.from[i];                              \
      row.to[i] = VALUE;                                    \
    }                                                       \
  }
#ifdef TORCHGRAFT_HAS_TARGETS
#define V3 __attribute__((target("arch=x86-64-v3")))
#define V4 __attribute__((target("arch=x86-64-v4")))
#else
#define V3
#define V4
#endif
#define LOOPS_OF(NAME, T)                                                             \
  __attribute__((noinline)) static T one_##NAME(T x) { return vector_math::NAME(x); } \
  LOOP(v4, V4, NAME, T, vector_math::NAME(x))                                         \
  LOOP(v3, V3, NAME, T, vector_math::NAME(x))                                         \
  LOOP(baseline, , NAME, T, vector_math::NAME(x))                                     \
  LOOP(scalar, , NAME, T, one_##NAME(x))                                              \
  LOOP(standard, , NAME, T, exact_##NAME(x))
#define LOOPS(NAME, VALUE) LOOPS_OF(NAME, float) LOOPS_OF(NAME, double)
EACH_FUNCTION(LOOPS)

template <typename T>
void run(const Text& name, const Text& level, const Row<T>& row) {
#define RUN(NAME, VALUE)                                     \
  if (name == #NAME) {                                       \
    if (level == "v4") return NAME##_at_v4(row);             \
    if (level == "v3") return NAME##_at_v3(row);             \
    if (level == "baseline") return NAME##_at_baseline(row); \
    if (level == "scalar") return NAME##_at_scalar(row);     \
    if (level == "standard") return NAME##_at_standard(row); \
  }
  if constexpr (sizeof(T) >= 4) {
    EACH_FUNCTION(RUN)
  }
#define EACH_ELEMENT(NAME, VALUE)                                                                            \
  if (name == #NAME && level == "elements") {                                                                \
    return for_each_element(row.count, [](auto x, auto& y) { y = vector_math::NAME(x); }, row.from, row.to); \
  }
  EACH_FUNCTION(EACH_ELEMENT)
  fail("there is no function ", name, " at level ", level, " for this dtype");
}

inline bool has_level(const Text& level) {
#ifdef TORCHGRAFT_HAS_TARGETS
  if (level == "v4") return __builtin_cpu_supports("x86-64-v4");
  if (level == "v3") return __builtin_cpu_supports("x86-64-v3");
  return true;
#else
  return level != "v4" && level != "v3";
#endif
}

// In units in the last place of the exact result; infinite where NaN or an infinity is missing or is too
// much.
template <typename T, typename W>
double error_of(T found, W exact) {
  using Limits = std::numeric_limits<T>;
  if (std::isnan(exact) || std::isnan(found)) return std::isnan(exact) && std::isnan(found) ? 0 : INFINITY;
  if (std::isinf(exact)) return found == exact ? 0 : INFINITY;
  const W top = std::ldexp(W(1), Limits::max_exponent);
  const W given = std::isinf(found) ? std::copysign(top, W(found)) : W(found);
  exact = std::min(std::max(exact, -top), top);
  const int exponent = exact == 0 ? Limits::min_exponent : std::ilogb(exact);
  const int last = std::max(exponent, Limits::min_exponent - 1) - (Limits::digits - 1);
  return static_cast<double>(std::ldexp(std::abs(given - exact), -last));
}

// The expected values of a function: for floats its own values in double, which the errors of doubles vouch
// for, and for doubles the standard library's values in long double.
inline std::vector<double> exact_values(const Text& name, const float* from, int64_t count) {
  const std::vector<double> wide(from, from + count);
  std::vector<double> exact(wide.size());
  run<double>(name,
              has_level("v4")   ? "v4"
              : has_level("v3") ? "v3"
                                : "baseline",
              {wide.data(), exact.data(), count});
  return exact;
}

inline std::vector<long double> exact_values(const Text& name, const double* from, int64_t count) {
  long double (*exact_of)(long double) = nullptr;
#define PICK(NAME, VALUE) \
  if (name == #NAME) exact_of = exact_##NAME<long double>;
  EACH_FUNCTION(PICK)
  TORCHGRAFT_CHECK(exact_of != nullptr, "there is no function ", name);
  std::vector<long double> exact(static_cast<size_t>(count));
  std::transform(from, from + count, exact.begin(), exact_of);
  return exact;
}

// Whether an error may be larger than `most`, or not a number.
TORCHGRAFT_CLONES static bool may_exceed(const float* found, const double* exact, int64_t count,
                                         double most) {
  using Limits = std::numeric_limits<float>;
  int may = 0;
  for (int64_t i = 0; i < count; ++i) {
    const double value = found[i], want = exact[i];
    const bool is_alike = (value == want) | ((value != value) & (want != want));
    uint64_t bits;
    double power;
    reinterpret(bits, want);
    reinterpret(power, bits & 0x7ff0000000000000);
    const double unit = std::max<double>(power * Limits::epsilon(), Limits::denorm_min());
    may |= !is_alike & !(std::abs(value - want) <= most * unit);
  }
  return may != 0;
}

static bool may_exceed(const double*, const long double*, int64_t, double) { return true; }

// For each of several rows of values the largest error, and the number that it belongs to.
template <typename T>
void find_errors(const Text& name, const Tensor& input, const std::vector<Tensor>& found, double* worst) {
  constexpr int64_t kPiece = 1024;
  const T* const from = data_of<T>(input);
  for (int64_t first = 0; first < input.numel(); first += kPiece) {
    const int64_t count = std::min(kPiece, input.numel() - first);
    const auto exact = exact_values(name, from + first, count);
    for (size_t k = 0; k < found.size(); ++k) {
      const T* const values = data_of<T>(found[k]) + first;
      double &most = worst[2 * k], &at = worst[2 * k + 1];
      if (!may_exceed(values, exact.data(), count, most)) continue;
      for (int64_t i = 0; i < count; ++i) {
        const double error = error_of(values[i], exact[i]);
        if (error > most) most = error, at = static_cast<double>(from[first + i]);
      }
    }
  }
}

// `what` is "has level", "values" or "errors": whether this machine has a level, the values of a function, or
// for each of several tensors of values the largest error and where it is.
Tensor vector_math_cpu(Tensor input, std::vector<Tensor> found, Text what, Text name, Text level) {
  if (what == "has level") return empty_contiguous({has_level(level) ? 1 : 0}, input);
  const Tensor source = to_contiguous(input, "input");
  if (what == "values") {
    Tensor output = empty_as(source);
    dispatch_floating(input.scalar_type(), "vector_math", [&](auto tag) {
      using T = typename decltype(tag)::type;
      const T* from = data_of<T>(source);
      T* to = mutable_data_of<T>(output);
      parallel_for(0, source.numel(), 16384, [&](int64_t first, int64_t last) {
        run<T>(name, level, {from + first, to + first, last - first});
      });
    });
    return output;
  }
  Tensor worst = empty_contiguous({static_cast<int64_t>(found.size()), 2}, input, aoti_torch_dtype_float64());
  double* const to = mutable_data_of<double>(worst);
  std::fill_n(to, worst.numel(), 0.0);
  if (input.scalar_type() == ScalarType::Float) {
    find_errors<float>(name, source, found, to);
  } else {
    find_errors<double>(name, source, found, to);
  }
  return worst;
}
