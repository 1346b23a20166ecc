// Instructions that CUDA C++ has no name for: one function an instruction, and all inline assembly is here.
//
// Names and operands are those of the PTX manual. Addresses of shared memory are what
// __cvta_generic_to_shared gives. Every function says which compute capability it needs where that is not the
// oldest that is supported; whoever calls it tests that.
#pragma once

#include <cstdint>

namespace torchgraft::ptx {

// cp.async.ca, from 8.0: begins to copy kBytes (4, 8 or 16) from device to shared memory, through both
// caches.
template <int kBytes>
__device__ __forceinline__ void cp_async_ca(uint32_t shared, const void* global) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" ::"r"(shared), "l"(global), "n"(kBytes)
               : "memory");
}

// The same of the first `source_bytes`; zeros take the place of the others, which are not read.
template <int kBytes>
__device__ __forceinline__ void cp_async_ca(uint32_t shared, const void* global, int source_bytes) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(shared), "l"(global), "n"(kBytes),
               "r"(source_bytes)
               : "memory");
}

// cp.async.cg, from 8.0: begins to copy sixteen bytes from device to shared memory, past the first-level
// cache.
__device__ __forceinline__ void cp_async_cg(uint32_t shared, const void* global) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared), "l"(global) : "memory");
}

// The same of the first `source_bytes`; zeros take the place of the others, which are not read.
__device__ __forceinline__ void cp_async_cg(uint32_t shared, const void* global, int source_bytes) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared), "l"(global), "r"(source_bytes)
               : "memory");
}

// cp.async.commit_group, from 8.0: ends a group of this thread's copies.
__device__ __forceinline__ void cp_async_commit_group() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}

// cp.async.wait_group, from 8.0: waits for this thread's groups of copies but the latest kPending.
template <int kPending>
__device__ __forceinline__ void cp_async_wait_group() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

// cp.async.wait_all, from 8.0: waits for all of this thread's copies, in a group or not.
__device__ __forceinline__ void cp_async_wait_all() { asm volatile("cp.async.wait_all;" ::: "memory"); }

// ld.volatile.shared.b32: four bytes that are loaded where it says so, each time.
__device__ __forceinline__ uint32_t load_shared_volatile(uint32_t address) {
  uint32_t value;
  asm volatile("ld.volatile.shared.b32 %0, [%1];" : "=r"(value) : "r"(address));
  return value;
}

// st.shared: two, four and sixteen bytes.
__device__ __forceinline__ void store_shared(uint32_t address, uint16_t value) {
  asm volatile("st.shared.b16 [%0], %1;" ::"r"(address), "h"(value) : "memory");
}
__device__ __forceinline__ void store_shared(uint32_t address, uint32_t value) {
  asm volatile("st.shared.b32 [%0], %1;" ::"r"(address), "r"(value) : "memory");
}
__device__ __forceinline__ void store_shared(uint32_t address, uint4 value) {
  asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(value.x), "r"(value.y),
               "r"(value.z), "r"(value.w)
               : "memory");
}

// st.shared.v2 and ld.shared.v2: eight bytes.
__device__ __forceinline__ void store_shared(uint32_t address, uint2 value) {
  asm volatile("st.shared.v2.b32 [%0], {%1, %2};" ::"r"(address), "r"(value.x), "r"(value.y) : "memory");
}
__device__ __forceinline__ void store_shared(uint32_t address, float value) {
  asm volatile("st.shared.f32 [%0], %1;" ::"r"(address), "f"(value) : "memory");
}
__device__ __forceinline__ float4 load_shared_four(uint32_t address) {
  float4 four;
  asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(four.x), "=f"(four.y), "=f"(four.z), "=f"(four.w)
               : "r"(address)
               : "memory");
  return four;
}
__device__ __forceinline__ uint2 load_shared_pair(uint32_t address) {
  uint2 value;
  asm volatile("ld.shared.v2.b32 {%0, %1}, [%2];" : "=r"(value.x), "=r"(value.y) : "r"(address) : "memory");
  return value;
}

// mapa, from 9.0: where in the cluster's shared memory the same place of block `rank` is.
__device__ __forceinline__ uint32_t mapa(uint32_t shared, uint32_t rank) {
  uint32_t address;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(address) : "r"(shared), "r"(rank));
  return address;
}

// mbarrier.init, from 8.0: a barrier of eight bytes, each of whose phases is over after so many arrivals and
// when all bytes have come that are expected.
__device__ __forceinline__ void mbarrier_init(uint32_t barrier, uint32_t count) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(count) : "memory");
}

// fence.mbarrier_init, from 9.0: before other blocks of the cluster use it.
__device__ __forceinline__ void fence_mbarrier_init() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

// mbarrier.arrive.expect_tx, from 9.0: arrives, and expects so many bytes more in this phase.
__device__ __forceinline__ void mbarrier_arrive_expect_tx(uint32_t barrier, uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
               : "memory");
}

// mbarrier.try_wait, from 9.0: waits until the phase of this parity is over.
__device__ __forceinline__ void mbarrier_wait(uint32_t barrier, uint32_t parity) {
  asm volatile(
      "{\n"
      ".reg .pred is_over;\n"
      "again:\n"
      "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 is_over, [%0], %1;\n"
      "@!is_over bra again;\n"
      "}" ::"r"(barrier),
      "r"(parity)
      : "memory");
}

// st.async, from 9.0: begins to write sixteen bytes to where mapa says, and then tells a barrier of the same
// block.
__device__ __forceinline__ void st_async(uint32_t address, uint4 value, uint32_t barrier) {
  asm volatile(
      "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.b32 [%0], {%1, %2, %3, %4}, [%5];" ::"r"(
          address),
      "r"(value.x), "r"(value.y), "r"(value.z), "r"(value.w), "r"(barrier)
      : "memory");
}

// st.global.v4 and v2: sixteen and eight bytes of device memory by one instruction. Of an assignment the
// compiler sometimes makes one for each element.
__device__ __forceinline__ void store_global(void* global, uint4 value) {
  asm volatile("st.global.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(global), "r"(value.x), "r"(value.y),
               "r"(value.z), "r"(value.w)
               : "memory");
}
__device__ __forceinline__ void store_global(void* global, uint2 value) {
  asm volatile("st.global.v2.b32 [%0], {%1, %2};" ::"l"(global), "r"(value.x), "r"(value.y) : "memory");
}

// st.global where a condition holds, without a branch: the compiler makes one of what an `if` stores, and
// then moves nothing over it.
__device__ __forceinline__ void store_global_if(bool condition, float* global, float value) {
  asm volatile(
      "{\n"
      ".reg .pred p;\n"
      "setp.ne.s32 p, %0, 0;\n"
      "@p st.global.f32 [%1], %2;\n"
      "}" ::"r"(static_cast<int>(condition)),
      "l"(global), "f"(value));
}
__device__ __forceinline__ void store_global_if(bool condition, uint16_t* global, uint16_t value) {
  asm volatile(
      "{\n"
      ".reg .pred p;\n"
      "setp.ne.s32 p, %0, 0;\n"
      "@p st.global.u16 [%1], %2;\n"
      "}" ::"r"(static_cast<int>(condition)),
      "l"(global), "h"(value));
}

// prefetch.global.L1: brings the line of an address into the first cache, and takes no register for it.
__device__ __forceinline__ void prefetch_global(const void* global) {
  asm volatile("prefetch.global.L1 [%0];" ::"l"(global));
}

// ld.relaxed and st.relaxed, from 7.0: four and sixteen bytes of device memory that other blocks write and
// read meanwhile.
__device__ __forceinline__ uint32_t load_relaxed(const uint32_t* global) {
  uint32_t value;
  asm volatile("ld.relaxed.gpu.global.b32 %0, [%1];" : "=r"(value) : "l"(global) : "memory");
  return value;
}
__device__ __forceinline__ void store_relaxed(void* global, uint4 value) {
  asm volatile("st.relaxed.gpu.global.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(global), "r"(value.x),
               "r"(value.y), "r"(value.z), "r"(value.w)
               : "memory");
}

// fence.acq_rel.gpu, from 7.0: what this thread did in front of it is seen before what it writes behind it.
__device__ __forceinline__ void fence_gpu() { asm volatile("fence.acq_rel.gpu;" ::: "memory"); }

// ldmatrix: four 8 x 8 matrices of halves; lane l gives the address of row l % 8 of matrix l / 8, and gets
// elements 2 * (l % 4) and the next of row l / 4 of each.
__device__ __forceinline__ void ldmatrix(uint32_t (&matrices)[4], uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(matrices[0]), "=r"(matrices[1]), "=r"(matrices[2]), "=r"(matrices[3])
               : "r"(address));
}

// The same of two matrices, whose rows lanes 0 to 15 point at.
__device__ __forceinline__ void ldmatrix(uint32_t (&matrices)[2], uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0, %1}, [%2];"
               : "=r"(matrices[0]), "=r"(matrices[1])
               : "r"(address));
}

// ldmatrix.trans: kCount matrices (1, 2 or 4), transposed: a lane gets two elements of a column.
template <int kCount>
__device__ __forceinline__ void ldmatrix_trans(uint32_t* matrices, uint32_t address) {
  static_assert(kCount == 1 || kCount == 2 || kCount == 4, "what ldmatrix has");
  if constexpr (kCount == 4) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(matrices[0]), "=r"(matrices[1]), "=r"(matrices[2]), "=r"(matrices[3])
                 : "r"(address)
                 : "memory");
  } else if constexpr (kCount == 2) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0, %1}, [%2];"
                 : "=r"(matrices[0]), "=r"(matrices[1])
                 : "r"(address)
                 : "memory");
  } else {
    asm volatile("ldmatrix.sync.aligned.m8n8.x1.trans.shared.b16 {%0}, [%1];"
                 : "=r"(matrices[0])
                 : "r"(address)
                 : "memory");
  }
}

// stmatrix.trans, from 9.0: the other way, 2 or 4 matrices of which a lane holds two elements of a column.
template <int kCount>
__device__ __forceinline__ void stmatrix_trans(uint32_t address, const uint32_t (&matrices)[4]) {
  static_assert(kCount == 2 || kCount == 4, "what is in use of stmatrix");
  if constexpr (kCount == 4) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address),
                 "r"(matrices[0]), "r"(matrices[1]), "r"(matrices[2]), "r"(matrices[3])
                 : "memory");
  } else {
    asm volatile("stmatrix.sync.aligned.m8n8.x2.trans.shared.b16 [%0], {%1, %2};" ::"r"(address),
                 "r"(matrices[0]), "r"(matrices[1])
                 : "memory");
  }
}

// movmatrix.trans: an 8 x 8 matrix of halves, transposed from lane to lane.
__device__ __forceinline__ uint32_t movmatrix_trans(uint32_t matrix) {
  uint32_t transposed;
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(transposed) : "r"(matrix));
  return transposed;
}

// mma.m16n8k16, from 8.0: d = a * b + c, of halves with sums in float. d may be c.
__device__ __forceinline__ void mma_m16n8k16_f16(float (&d)[4], const uint32_t (&a)[4], uint32_t b0,
                                                 uint32_t b1, const float* c) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%10, %11, %12, %13};"
      : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1), "f"(c[0]), "f"(c[1]), "f"(c[2]),
        "f"(c[3]));
}
__device__ __forceinline__ void mma_m16n8k16_bf16(float (&d)[4], const uint32_t (&a)[4], uint32_t b0,
                                                  uint32_t b1, const float* c) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%10, %11, %12, %13};"
      : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1), "f"(c[0]), "f"(c[1]), "f"(c[2]),
        "f"(c[3]));
}

// mma.m16n8k8, for f16 from 7.5 and for bf16 from 8.0: d += a * b, of half the depth.
__device__ __forceinline__ void mma_m16n8k8_f16(float (&d)[4], uint32_t a0, uint32_t a1, uint32_t b) {
  asm volatile(
      "mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a0), "r"(a1), "r"(b));
}
__device__ __forceinline__ void mma_m16n8k8_bf16(float (&d)[4], uint32_t a0, uint32_t a1, uint32_t b) {
  asm volatile(
      "mma.sync.aligned.m16n8k8.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a0), "r"(a1), "r"(b));
}

// max.NaN, from 8.0: the larger of each of two halves, NaN if either is.
__device__ __forceinline__ uint32_t max_nan_f16x2(uint32_t a, uint32_t b) {
  uint32_t result;
  asm("max.NaN.f16x2 %0, %1, %2;" : "=r"(result) : "r"(a), "r"(b));
  return result;
}
__device__ __forceinline__ uint32_t max_nan_bf16x2(uint32_t a, uint32_t b) {
  uint32_t result;
  asm("max.NaN.bf16x2 %0, %1, %2;" : "=r"(result) : "r"(a), "r"(b));
  return result;
}

// ex2.approx.ftz: 2 to the power of a number, off by 2 units in the last place at most; a result or a number
// below the normal ones is zero. Without this rounding to zero `exp2f` and `__expf` take four instructions
// more.
__device__ __forceinline__ float ex2_approx_ftz(float exponent) {
  float power;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(exponent));
  return power;
}

// rcp.approx.ftz: one over a number, off by one unit in the last place at most; a result or a number below
// the normal ones is zero.
__device__ __forceinline__ float rcp_approx_ftz(float number) {
  float reciprocal;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(reciprocal) : "f"(number));
  return reciprocal;
}

// No instruction: a value that the compiler must have in a register here, as it would otherwise compute or
// convert it again at each use.
__device__ __forceinline__ void keep(float& value) { asm volatile("" : "+f"(value)); }
__device__ __forceinline__ void keep(uint32_t& value) { asm volatile("" : "+r"(value)); }

// No instruction: a pointer of which the compiler must not know how it was computed.
template <typename T>
__device__ __forceinline__ T* opaque(T* pointer) {
  asm("" : "+l"(pointer));
  return pointer;
}

}  // namespace torchgraft::ptx
