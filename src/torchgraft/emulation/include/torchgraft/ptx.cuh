// The functions of torchgraft/ptx.cuh in C++: what each instruction does to all lanes of a warp.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cmath>
#include <cstdint>
#include <limits>

// Inlined, so that an error tells the line that the instruction is on.
#define EMULATED_INSTRUCTION inline __attribute__((always_inline))

namespace torchgraft::ptx {

namespace emulated {

using ::emulation::kWarp;
using ::emulation::Meeting;
using ::emulation::shared_pointer;
using ::emulation::together;

// An 8 x 8 matrix of halves: lane l has the elements (l / 4, 2 * (l % 4)) and the next one.
using Matrix = uint16_t[8][8];

inline void scatter(const Matrix& matrix, bool transposed, int lane, uint32_t& pair) {
  const int row = lane / 4, column = lane % 4 * 2;
  const uint16_t low = transposed ? matrix[column][row] : matrix[row][column];
  const uint16_t high = transposed ? matrix[column + 1][row] : matrix[row][column + 1];
  pair = uint32_t{high} << 16 | low;
}

inline void gather(uint32_t pair, bool transposed, int lane, Matrix& matrix) {
  const int row = lane / 4, column = lane % 4 * 2;
  (transposed ? matrix[column][row] : matrix[row][column]) = static_cast<uint16_t>(pair);
  (transposed ? matrix[column + 1][row] : matrix[row][column + 1]) = static_cast<uint16_t>(pair >> 16);
}

// The registers of one lane: its pairs of up to four matrices, and the address of the row that it names.
struct Matrices {
  uint32_t pairs[4];
  uint32_t address;
};

template <int kCount, bool kTransposed>
void load(Meeting& meeting) {
  Matrix matrices[kCount];
  for (int i = 0; i < kCount; ++i) {
    for (int row = 0; row < 8; ++row) {
      const uint32_t address = meeting.operand<Matrices>(8 * i + row).address;
      std::memcpy(matrices[i][row], shared_pointer(address, 16, 16), 16);
    }
  }
  for (int lane = 0; lane < kWarp; ++lane) {
    for (int i = 0; i < kCount; ++i) {
      scatter(matrices[i], kTransposed, lane, meeting.operand<Matrices>(lane).pairs[i]);
    }
  }
}

template <int kCount, bool kTransposed>
void store(Meeting& meeting) {
  Matrix matrices[kCount];
  for (int lane = 0; lane < kWarp; ++lane) {
    for (int i = 0; i < kCount; ++i) {
      gather(meeting.operand<Matrices>(lane).pairs[i], kTransposed, lane, matrices[i]);
    }
  }
  for (int i = 0; i < kCount; ++i) {
    for (int row = 0; row < 8; ++row) {
      const uint32_t address = meeting.operand<Matrices>(8 * i + row).address;
      std::memcpy(shared_pointer(address, 16, 16), matrices[i][row], 16);
    }
  }
}

inline void transpose(Meeting& meeting) {
  Matrix matrix;
  for (int lane = 0; lane < kWarp; ++lane) gather(meeting.operand<uint32_t>(lane), false, lane, matrix);
  for (int lane = 0; lane < kWarp; ++lane) scatter(matrix, true, lane, meeting.operand<uint32_t>(lane));
}

struct Product {
  float d[4];
  uint32_t a[4];
  uint32_t b[2];
};

// kDepth is 8 or 16; registers hold quarters of a, 8 x 8 each, halves of b, and halves of d.
template <typename Half, int kDepth>
void multiply(Meeting& meeting) {
  float a[16][kDepth], b[kDepth][8], d[16][8];
  for (int lane = 0; lane < kWarp; ++lane) {
    const Product& product = meeting.operand<Product>(lane);
    const int row = lane / 4, column = lane % 4 * 2;
    const auto half = [](uint32_t pair, int i) {
      return float(Half::from_bits(static_cast<uint16_t>(pair >> 16 * i)));
    };
    for (int i = 0; i < 2; ++i) {
      for (int quarter = 0; quarter < kDepth / 4; ++quarter) {
        a[row + quarter % 2 * 8][column + quarter / 2 * 8 + i] = half(product.a[quarter], i);
      }
      for (int part = 0; part < kDepth / 8; ++part) b[column + part * 8 + i][row] = half(product.b[part], i);
      for (int part = 0; part < 2; ++part) d[row + part * 8][column + i] = product.d[part * 2 + i];
    }
  }
  for (int row = 0; row < 16; ++row) {
    for (int k = 0; k < kDepth; ++k) {
      for (int column = 0; column < 8; ++column) d[row][column] += a[row][k] * b[k][column];
    }
  }
  for (int lane = 0; lane < kWarp; ++lane) {
    for (int i = 0; i < 4; ++i) {
      meeting.operand<Product>(lane).d[i] = d[lane / 4 + i / 2 * 8][lane % 4 * 2 + i % 2];
    }
  }
}

template <typename Half>
uint16_t larger(uint16_t a, uint16_t b, uint16_t nan) {
  const float left = Half::from_bits(a), right = Half::from_bits(b);
  if (left != left || right != right) return nan;
  // +0 is larger than -0.
  return left > right || (left == right && (a & 0x8000) == 0) ? a : b;
}

template <typename Half>
uint32_t larger_pair(uint32_t a, uint32_t b) {
  const auto part = [&](int bits) {
    return uint32_t{larger<Half>(static_cast<uint16_t>(a >> bits), static_cast<uint16_t>(b >> bits), 0x7fff)}
           << bits;
  };
  return part(0) | part(16);
}

}  // namespace emulated

template <int kBytes>
EMULATED_INSTRUCTION void cp_async_ca(uint32_t shared, const void* global) {
  ::emulation::copy_later(shared, global, kBytes, kBytes);
}
template <int kBytes>
EMULATED_INSTRUCTION void cp_async_ca(uint32_t shared, const void* global, int source_bytes) {
  ::emulation::copy_later(shared, global, kBytes, source_bytes);
}
EMULATED_INSTRUCTION void cp_async_cg(uint32_t shared, const void* global) {
  ::emulation::copy_later(shared, global, 16, 16);
}
EMULATED_INSTRUCTION void cp_async_cg(uint32_t shared, const void* global, int source_bytes) {
  ::emulation::copy_later(shared, global, 16, source_bytes);
}
EMULATED_INSTRUCTION void cp_async_commit_group() { ::emulation::end_copy_group(); }
template <int kPending>
EMULATED_INSTRUCTION void cp_async_wait_group() {
  ::emulation::wait_for_copy_groups(kPending);
}
EMULATED_INSTRUCTION void cp_async_wait_all() { ::emulation::wait_for_all_copies(); }

EMULATED_INSTRUCTION uint32_t load_shared_volatile(uint32_t address) {
  return *static_cast<volatile uint32_t*>(::emulation::shared_pointer(address, 4, 4));
}
EMULATED_INSTRUCTION void store_shared(uint32_t address, uint16_t value) {
  *static_cast<uint16_t*>(::emulation::shared_pointer(address, 2, 2)) = value;
}
EMULATED_INSTRUCTION void store_shared(uint32_t address, uint32_t value) {
  *static_cast<uint32_t*>(::emulation::shared_pointer(address, 4, 4)) = value;
}
EMULATED_INSTRUCTION void store_shared(uint32_t address, uint4 value) {
  *static_cast<uint4*>(::emulation::shared_pointer(address, 16, 16)) = value;
}

EMULATED_INSTRUCTION void store_shared(uint32_t address, uint2 value) {
  *static_cast<uint2*>(::emulation::shared_pointer(address, 8, 8)) = value;
}
EMULATED_INSTRUCTION void prefetch_global(const void*) {}
EMULATED_INSTRUCTION void store_global(void* global, uint4 value) { *static_cast<uint4*>(global) = value; }
EMULATED_INSTRUCTION void store_global(void* global, uint2 value) { *static_cast<uint2*>(global) = value; }
template <typename T>
EMULATED_INSTRUCTION void store_global_if(bool condition, T* global, T value) {
  if (condition) *global = value;
}
EMULATED_INSTRUCTION void store_shared(uint32_t address, float value) {
  *static_cast<float*>(::emulation::shared_pointer(address, 4, 4)) = value;
}
EMULATED_INSTRUCTION float4 load_shared_four(uint32_t address) {
  return *static_cast<const float4*>(::emulation::shared_pointer(address, 16, 16));
}
EMULATED_INSTRUCTION uint2 load_shared_pair(uint32_t address) {
  return *static_cast<const uint2*>(::emulation::shared_pointer(address, 8, 8));
}

// Not watched: they are no races. Whoever reads may be waiting for who writes, and reads what is there before
// that one runs.
inline __attribute__((noinline, no_sanitize("thread"))) uint32_t load_relaxed(const uint32_t* global) {
  const uint32_t value = *global;
  ::emulation::pause();
  return value;
}
inline __attribute__((noinline, no_sanitize("thread"))) void store_relaxed(void* global, uint4 value) {
  *static_cast<uint4*>(global) = value;
}
EMULATED_INSTRUCTION void fence_gpu() {}

EMULATED_INSTRUCTION uint32_t mapa(uint32_t shared, uint32_t rank) {
  return ::emulation::shared_of_cluster(shared, rank);
}
EMULATED_INSTRUCTION void mbarrier_init(uint32_t barrier, uint32_t count) {
  ::emulation::begin_counting(barrier, count);
}
EMULATED_INSTRUCTION void fence_mbarrier_init() {}
EMULATED_INSTRUCTION void mbarrier_arrive_expect_tx(uint32_t barrier, uint32_t bytes) {
  ::emulation::count_arrival(barrier, bytes);
}
EMULATED_INSTRUCTION void mbarrier_wait(uint32_t barrier, uint32_t parity) {
  ::emulation::wait_for_phase(barrier, parity);
}
EMULATED_INSTRUCTION void st_async(uint32_t address, uint4 value, uint32_t barrier) {
  ::emulation::store_and_count(address, &value, sizeof(value), barrier);
}

template <int kCount>
EMULATED_INSTRUCTION void ldmatrix(uint32_t (&matrices)[kCount], uint32_t address) {
  static_assert(kCount == 2 || kCount == 4, "what is in use of ldmatrix");
  const auto loaded =
      emulated::together("ldmatrix", emulated::Matrices{{}, address}, emulated::load<kCount, false>);
  std::memcpy(matrices, loaded.pairs, sizeof(matrices));
}
EMULATED_INSTRUCTION void ldmatrix(uint32_t (&matrices)[2], uint32_t address) {
  const auto loaded =
      emulated::together("ldmatrix", emulated::Matrices{{}, address}, emulated::load<2, false>);
  std::memcpy(matrices, loaded.pairs, sizeof(matrices));
}
template <int kCount>
EMULATED_INSTRUCTION void ldmatrix_trans(uint32_t* matrices, uint32_t address) {
  const auto loaded =
      emulated::together("ldmatrix.trans", emulated::Matrices{{}, address}, emulated::load<kCount, true>);
  std::memcpy(matrices, loaded.pairs, sizeof(uint32_t) * kCount);
}
template <int kCount>
EMULATED_INSTRUCTION void stmatrix_trans(uint32_t address, const uint32_t (&matrices)[4]) {
  emulated::Matrices stored = {{}, address};
  std::memcpy(stored.pairs, matrices, sizeof(uint32_t) * kCount);
  emulated::together("stmatrix.trans", stored, emulated::store<kCount, true>);
}
EMULATED_INSTRUCTION uint32_t movmatrix_trans(uint32_t matrix) {
  return emulated::together("movmatrix", matrix, emulated::transpose);
}

namespace emulated {

template <typename Half, int kDepth>
inline __attribute__((always_inline)) void mma(const char* name, float (&d)[4], const uint32_t* a,
                                               const uint32_t* b, const float* c) {
  Product product = {};
  std::memcpy(product.d, c, sizeof(product.d));
  std::memcpy(product.a, a, sizeof(uint32_t) * (kDepth / 4));
  std::memcpy(product.b, b, sizeof(uint32_t) * (kDepth / 8));
  const Product done = together(name, product, multiply<Half, kDepth>);
  std::memcpy(d, done.d, sizeof(d));
}

}  // namespace emulated

EMULATED_INSTRUCTION void mma_m16n8k16_f16(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1,
                                           const float* c) {
  const uint32_t b[2] = {b0, b1};
  emulated::mma<__half, 16>("mma.m16n8k16.f16", d, a, b, c);
}
EMULATED_INSTRUCTION void mma_m16n8k16_bf16(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1,
                                            const float* c) {
  const uint32_t b[2] = {b0, b1};
  emulated::mma<__nv_bfloat16, 16>("mma.m16n8k16.bf16", d, a, b, c);
}
EMULATED_INSTRUCTION void mma_m16n8k8_f16(float (&d)[4], uint32_t a0, uint32_t a1, uint32_t b) {
  const uint32_t a[2] = {a0, a1};
  emulated::mma<__half, 8>("mma.m16n8k8.f16", d, a, &b, d);
}
EMULATED_INSTRUCTION void mma_m16n8k8_bf16(float (&d)[4], uint32_t a0, uint32_t a1, uint32_t b) {
  const uint32_t a[2] = {a0, a1};
  emulated::mma<__nv_bfloat16, 8>("mma.m16n8k8.bf16", d, a, &b, d);
}

EMULATED_INSTRUCTION uint32_t max_nan_f16x2(uint32_t a, uint32_t b) {
  return emulated::larger_pair<__half>(a, b);
}
EMULATED_INSTRUCTION uint32_t max_nan_bf16x2(uint32_t a, uint32_t b) {
  return emulated::larger_pair<__nv_bfloat16>(a, b);
}

namespace emulated {

// Zero for a number or a result below the normal ones.
inline float flush(float number) {
  return std::fabs(number) < std::numeric_limits<float>::min() ? std::copysign(0.0f, number) : number;
}

}  // namespace emulated

EMULATED_INSTRUCTION float ex2_approx_ftz(float exponent) {
  return emulated::flush(::exp2f(emulated::flush(exponent)));
}
EMULATED_INSTRUCTION float rcp_approx_ftz(float number) {
  return emulated::flush(1.0f / emulated::flush(number));
}

EMULATED_INSTRUCTION void keep(float&) {}
EMULATED_INSTRUCTION void keep(uint32_t&) {}

template <typename T>
EMULATED_INSTRUCTION T* opaque(T* pointer) {
  return pointer;
}

}  // namespace torchgraft::ptx
