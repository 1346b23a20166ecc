// How kernels that keep weight_hh in registers, in float, read it.
#pragma once

#include <torchgraft/cuda.cuh>

#include <cstring>
#include <type_traits>

#include "dynamic_dtype.cuh"

namespace torchgraft::lltm::cuda {

__device__ __forceinline__ float element_of(const float4& four, int i) {
  return i == 0 ? four.x : i == 1 ? four.y : i == 2 ? four.z : four.w;
}

// Loads the bits of the first `count` of four numbers; where they are loaded at once, of all or none.
template <bool kAtOnce, typename Bits>
__device__ __forceinline__ void load_four(Bits (&four)[4], const Bits* from, int count) {
  if constexpr (kAtOnce) {
    if (count > 0) memcpy(four, __builtin_assume_aligned(from, sizeof(four)), sizeof(four));
  } else {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (i < count) four[i] = from[i];
    }
  }
}

// Calls `function` with a pointer to the bits of weight_hh and whether four are loaded at once, as a type.
template <typename Function>
__device__ __forceinline__ void visit_weight(const DynamicInput& weight, bool at_once,
                                             const Function& function) {
  weight.visit([&](const auto* bits) {
    if (at_once) {
      function(bits, std::true_type{});
    } else {
      function(bits, std::false_type{});
    }
  });
}

// Whether weight_hh is read four numbers at a time.
template <typename Pass>
bool reads_float4(const Pass& pass) {
  return pass.units % 4 == 0 && is_aligned(pass.weight.data(), pass.weight.is_float() ? 16 : 8);
}

}  // namespace torchgraft::lltm::cuda
