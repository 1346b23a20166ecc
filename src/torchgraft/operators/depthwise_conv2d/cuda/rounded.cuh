// Numbers of a weight or of a bias, as kernels for T read them: of T, or float where T is a half. Layers
// under autocast keep theirs in float32; each is rounded as it is read, to what a cast would have made of
// it, and no cast is launched.
#pragma once

#include <torchgraft/cuda.cuh>

namespace torchgraft::depthwise::cuda {

// A number of T, or a float rounded to T.
template <typename T, typename Number>
__device__ T read_rounded(const Number* place) {
  return static_cast<T>(*place);
}

// The same of neighbouring ones.
template <int kCount, typename T, typename Number>
__device__ __forceinline__ void read_neighbours(const Number* place, T (&read)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) read[i] = read_rounded<T>(place + i);
}

template <typename T>
class Rounded {
 public:
  Rounded() = default;  // of no numbers
  Rounded(const void* numbers, bool is_wide) : numbers_(numbers), wide_(is_wide ? 1 : 0) {}

  __host__ __device__ bool exists() const { return numbers_ != nullptr; }

  bool is_aligned_to(int bytes) const { return is_aligned(numbers_, bytes); }

  __device__ Rounded operator+(int64_t numbers) const {
    Rounded later = *this;
    const int64_t bytes = kMayBeWide ? int64_t{sizeof(T)} << wide_ : int64_t{sizeof(T)};
    later.numbers_ = static_cast<const char*>(numbers_) + numbers * bytes;
    return later;
  }

  // Calls use(pointer), with a pointer to T or to float, for read_rounded. So a kernel asks once which of
  // both it is, and not for each number. What it reads must leave `use` as T: if it were widened there,
  // nothing else could be loaded before it has come.
  template <typename Use>
  __host__ __device__ void with_numbers(Use&& use) const {
    if constexpr (kMayBeWide) {
      // One turn, or none. A loop remains a branch; of an `if` the compiler makes predicates, and then
      // numbers of T take the time of both.
#ifdef __CUDA_ARCH__
#pragma unroll 1
#endif
      for (int turn = 0; turn < wide_; ++turn) use(static_cast<const float*>(numbers_));
      if (wide_ != 0) return;
    }
    use(static_cast<const T*>(numbers_));
  }

  __device__ accumulate_t<T> operator[](int64_t place) const {
    T number;
    with_numbers([&](const auto* numbers) { number = read_rounded<T>(numbers + place); });
    return static_cast<accumulate_t<T>>(number);
  }

  // Widens neighbouring numbers; zeros, where they are not to be read or there are none.
  template <int kCount>
  __device__ void widen(bool is_read, int64_t place, accumulate_t<T> (&values)[kCount]) const {
    T read[kCount] = {};
    if (exists() && is_read) {
      with_numbers([&](const auto* numbers) { read_neighbours(numbers + place, read); });
    }
#pragma unroll
    for (int i = 0; i < kCount; ++i) values[i] = static_cast<accumulate_t<T>>(read[i]);
  }

  // The same of one.
  __device__ accumulate_t<T> or_zero(bool is_read, int64_t place) const {
    accumulate_t<T> value[1];
    widen(is_read, place, value);
    return value[0];
  }

 private:
  static constexpr bool kMayBeWide = sizeof(T) == 2;

  const void* numbers_ = nullptr;
  int wide_ = 0;  // 1 where the numbers are wider than T
};

}  // namespace torchgraft::depthwise::cuda
