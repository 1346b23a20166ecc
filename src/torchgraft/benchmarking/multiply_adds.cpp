// Chains of multiply-adds in vector registers: how many operations a second the CPU can do.
//
// A chunk is ten vectors of 64 bytes, each a chain of its own: two units that take four cycles for one result
// are kept busy by eight. Nothing is read or written but once at the end.

#include <torchgraft/cpu.h>
#include <torchgraft/dispatch.h>
#include <torchgraft/layout.h>

#include <torch/csrc/stable/library.h>

namespace torchgraft {
namespace {

constexpr int kChains = 10;
constexpr int kChainBytes = 64;
constexpr int kChunks = 256;

#define MULTIPLY_ADDS_CHUNK(T)                                                                    \
  TORCHGRAFT_VECTOR_CLONES(static void multiply_adds_chunk(T factor, T* result, int64_t steps), { \
    using Lanes = Vector<T, kVectorBytes>;                                                        \
    constexpr int kLanes = kVectorBytes / static_cast<int>(sizeof(T));                            \
    const Lanes factors = Lanes{} + factor;                                                       \
    for (int part = 0; part < kChainBytes / kVectorBytes; ++part) {                               \
      Lanes sums[kChains];                                                                        \
      TORCHGRAFT_UNROLL                                                                           \
      for (int i = 0; i < kChains; ++i) sums[i] = factors * static_cast<T>(i);                    \
      for (int64_t step = 0; step < steps; ++step) {                                              \
        TORCHGRAFT_UNROLL                                                                         \
        for (int i = 0; i < kChains; ++i) sums[i] = sums[i] * factors + factors;                  \
      }                                                                                           \
      TORCHGRAFT_UNROLL                                                                           \
      for (int i = 0; i < kChains; ++i) store(sums[i], result + (part * kChains + i) * kLanes);   \
    }                                                                                             \
  })
MULTIPLY_ADDS_CHUNK(double)
MULTIPLY_ADDS_CHUNK(float)
#undef MULTIPLY_ADDS_CHUNK

template <typename T>
void multiply_adds(Tensor& result, int64_t steps) {
  constexpr int64_t kChunk = kChains * kChainBytes / sizeof(T);
  T* to = static_cast<T*>(result.mutable_data_ptr());
  parallel_for(0, kChunks, 1, [&](int64_t begin, int64_t end) {
    // Below one, so that no chain grows beyond what a float holds.
    for (int64_t i = begin; i < end; ++i) multiply_adds_chunk(T(0.5), to + i * kChunk, steps);
  });
}

Tensor multiply_adds_cpu(Tensor like, int64_t steps) {
  const bool is_double = like.scalar_type() == ScalarType::Double;
  TORCHGRAFT_CHECK(is_double || like.scalar_type() == ScalarType::Float,
                   "multiply_adds: like must be float64 or float32");
  const int64_t size = int64_t{kChunks} * kChains * kChainBytes / (is_double ? 8 : 4);
  const int64_t stride = 1;
  Tensor result = empty_strided(&size, &stride, 1, like);
  is_double ? multiply_adds<double>(result, steps) : multiply_adds<float>(result, steps);
  return result;
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(torchgraft, CPU, library) {
  library.impl("multiply_adds", TORCH_BOX(&multiply_adds_cpu));
}

}  // namespace torchgraft
