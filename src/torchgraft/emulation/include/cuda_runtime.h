// The part of the CUDA runtime and of CUDA C++ that kernels and host functions use, on emulation.h.
#pragma once

#include <math.h>

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstring>

#include "emulation.h"

#define __global__
#define __device__
#define __host__
#define __constant__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __cluster_dims__(...)
#define __grid_constant__
#define __align__(bytes) __attribute__((aligned(bytes)))
#define __builtin_assume(condition) ((void)0)
#define __isShared(pointer) ::emulation::is_shared(pointer)
#define __isGlobal(pointer) (!::emulation::is_shared(pointer))

// Types.

#define EMULATION_VECTORS(NAME, T, BYTES)                                    \
  struct alignas(2 * BYTES) NAME##2 { T x, y; };                             \
  struct alignas(4 * BYTES > 16 ? 16 : 4 * BYTES) NAME##4 { T x, y, z, w; }; \
  inline NAME##2 make_##NAME##2(T x, T y) { return {x, y}; }                 \
  inline NAME##4 make_##NAME##4(T x, T y, T z, T w) { return {x, y, z, w}; }
EMULATION_VECTORS(char, signed char, 1)
EMULATION_VECTORS(uchar, unsigned char, 1)
EMULATION_VECTORS(short, short, 2)
EMULATION_VECTORS(ushort, unsigned short, 2)
EMULATION_VECTORS(int, int, 4)
EMULATION_VECTORS(uint, unsigned, 4)
EMULATION_VECTORS(float, float, 4)
EMULATION_VECTORS(longlong, long long, 8)
EMULATION_VECTORS(ulonglong, unsigned long long, 8)
EMULATION_VECTORS(double, double, 8)
#undef EMULATION_VECTORS

// The host's side.

enum cudaError_t {
  cudaSuccess = 0,
  cudaErrorInvalidValue = 1,
  cudaErrorInvalidConfiguration = 9,
  cudaErrorNoKernelImageForDevice = 209,
  cudaErrorLaunchOutOfResources = 701,
  cudaErrorCooperativeLaunchTooLarge = 720,
  cudaErrorStreamCaptureUnsupported = 900,
  cudaErrorNotReady = 600,
  cudaErrorInvalidClusterSize = 912,
};
enum cudaDeviceAttr {
  cudaDevAttrMaxThreadsPerBlock = 1,
  cudaDevAttrMaxSharedMemoryPerBlock = 8,
  cudaDevAttrWarpSize = 10,
  cudaDevAttrMultiProcessorCount = 16,
  cudaDevAttrL2CacheSize = 38,
  cudaDevAttrMaxThreadsPerMultiProcessor = 39,
  cudaDevAttrComputeCapabilityMajor = 75,
  cudaDevAttrComputeCapabilityMinor = 76,
  cudaDevAttrMaxSharedMemoryPerMultiprocessor = 81,
  cudaDevAttrCooperativeLaunch = 95,
  cudaDevAttrMaxSharedMemoryPerBlockOptin = 97,
  cudaDevAttrReservedSharedMemoryPerBlock = 111,
  cudaDevAttrClusterLaunch = 120,
};
enum cudaFuncAttribute {
  cudaFuncAttributeMaxDynamicSharedMemorySize = 8,
  cudaFuncAttributePreferredSharedMemoryCarveout = 9,
  cudaFuncAttributeNonPortableClusterSizeAllowed = 13,
};
struct cudaFuncAttributes {
  int ptxVersion;
  int binaryVersion;
};
enum cudaMemcpyKind { cudaMemcpyDeviceToDevice = 3, cudaMemcpyDefault = 4 };
enum cudaStreamCaptureStatus { cudaStreamCaptureStatusNone = 0, cudaStreamCaptureStatusActive = 1 };
enum cudaStreamCaptureMode { cudaStreamCaptureModeGlobal = 0, cudaStreamCaptureModeRelaxed = 2 };
using cudaEvent_t = struct EmulatedEvent*;
enum cudaLaunchAttributeID {
  cudaLaunchAttributeCooperative = 2,
  cudaLaunchAttributeClusterDimension = 4,
  cudaLaunchAttributeProgrammaticStreamSerialization = 6,
};
struct cudaLaunchAttribute {
  cudaLaunchAttributeID id;
  struct {
    dim3 clusterDim;
    int cooperative;
    int programmaticStreamSerializationAllowed;
  } val;
};
struct cudaLaunchConfig_t {
  dim3 gridDim;
  dim3 blockDim;
  size_t dynamicSmemBytes;
  cudaStream_t stream;
  cudaLaunchAttribute* attrs;
  unsigned numAttrs;
};

cudaError_t cudaGetLastError();
cudaError_t cudaPeekAtLastError();
const char* cudaGetErrorString(cudaError_t error);
cudaError_t cudaGetDevice(int* device);
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device);
cudaError_t cudaFuncSetAttribute(const void* function, cudaFuncAttribute attribute, int value);
cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attributes, const void* function);
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, const void* function, int threads,
                                                          size_t shared);
cudaError_t cudaOccupancyMaxActiveClusters(int* clusters, const void* function,
                                           const cudaLaunchConfig_t* config);
cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus* status);
cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode* mode);
cudaError_t cudaEventCreate(cudaEvent_t* event);
cudaError_t cudaEventDestroy(cudaEvent_t event);
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream);
cudaError_t cudaEventSynchronize(cudaEvent_t event);
// Never passed: the emulated device keeps the host waiting.
cudaError_t cudaEventQuery(cudaEvent_t event);
cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t begin, cudaEvent_t end);
cudaError_t cudaMemsetAsync(void* memory, int value, size_t bytes, cudaStream_t stream);
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t stream);

template <typename... Parameters>
cudaError_t cudaFuncSetAttribute(void (*kernel)(Parameters...), cudaFuncAttribute attribute, int value) {
  return cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel), attribute, value);
}
template <typename... Parameters>
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, void (*kernel)(Parameters...),
                                                          int threads, size_t shared) {
  return cudaOccupancyMaxActiveBlocksPerMultiprocessor(blocks, reinterpret_cast<const void*>(kernel), threads,
                                                       shared);
}
template <typename... Parameters>
cudaError_t cudaOccupancyMaxActiveClusters(int* clusters, void (*kernel)(Parameters...),
                                           const cudaLaunchConfig_t* config) {
  return cudaOccupancyMaxActiveClusters(clusters, reinterpret_cast<const void*>(kernel), config);
}

namespace emulation {

int multiprocessors();

inline Launch make_launch(const char* name, const cudaLaunchConfig_t& config) {
  Launch launch = {name, config.gridDim, config.blockDim, config.dynamicSmemBytes, config.stream};
  for (unsigned i = 0; i < config.numAttrs; ++i) {
    const cudaLaunchAttribute& attribute = config.attrs[i];
    if (attribute.id == cudaLaunchAttributeCooperative) launch.cooperative = attribute.val.cooperative != 0;
    if (attribute.id == cudaLaunchAttributeClusterDimension) launch.cluster = attribute.val.clusterDim;
  }
  return launch;
}

// cudaLaunchKernelEx, which the translation gives the place where it is called.
template <typename... Parameters, typename... Arguments>
cudaError_t launch_extended(const char* name, const cudaLaunchConfig_t* config, void (*kernel)(Parameters...),
                            Arguments&&... arguments) {
  launch(make_launch(name, *config), kernel, std::forward<Arguments>(arguments)...);
  return cudaPeekAtLastError();
}

}  // namespace emulation

// The device's side.

// Kernels run one after the other.
inline void cudaGridDependencySynchronize() {}
inline void __syncthreads() { emulation::block_barrier(); }
inline int __syncthreads_count(int predicate) { return emulation::block_barrier_count(predicate != 0); }
inline int __syncthreads_or(int predicate) { return emulation::block_barrier_count(predicate != 0) > 0; }
inline int __syncthreads_and(int predicate) { return emulation::block_barrier_count(predicate == 0) == 0; }
inline void __threadfence() {}
inline void __threadfence_block() {}
inline void __trap() { emulation::fail("a trap"); }
inline void __nanosleep(unsigned) { emulation::pause(); }

inline void __syncwarp(unsigned lanes = 0xffffffff) {
  emulation::part(emulation::meet("__syncwarp", lanes, nullptr, 0, nullptr, false));
}
inline unsigned __activemask() {
  emulation::fail("__activemask is not emulated: no lane runs beside another");
}

namespace emulation {

// The value of lane `from`; a lane that is not there has none.
template <typename T>
T shuffle(const char* name, unsigned lanes, T value, int from, bool own) {
  Meeting& meeting = meet(name, lanes, &value, sizeof(value), nullptr, false);
  T result = value;
  if (!own) {
    if ((meeting.here >> from & 1) != 0) {
      result = meeting.operand<T>(from);
    } else {
      std::memset(&result, 0xff, sizeof(result));
    }
  }
  part(meeting);
  return result;
}

inline unsigned vote(const char* name, unsigned lanes, bool predicate) {
  Meeting& meeting = meet(name, lanes, &predicate, sizeof(predicate), nullptr, false);
  unsigned result = 0;
  for (int i = 0; i < kWarp; ++i) {
    if ((meeting.here >> i & 1) != 0 && meeting.operand<bool>(i)) result |= 1u << i;
  }
  part(meeting);
  return result;
}

template <typename T, typename Join>
T reduce(const char* name, unsigned lanes, T value, Join join) {
  Meeting& meeting = meet(name, lanes, &value, sizeof(value), nullptr, false);
  T result = value;
  for (int i = 0; i < kWarp; ++i) {
    if ((meeting.here >> i & 1) != 0 && i != lane()) result = join(result, meeting.operand<T>(i));
  }
  part(meeting);
  return result;
}

}  // namespace emulation

template <typename T>
T __shfl_sync(unsigned lanes, T value, int from, int width = 32) {
  const int first = emulation::lane() / width * width;
  return emulation::shuffle("__shfl_sync", lanes, value, first + (from & (width - 1)), false);
}
template <typename T>
T __shfl_up_sync(unsigned lanes, T value, unsigned delta, int width = 32) {
  const int from = emulation::lane() - static_cast<int>(delta);
  return emulation::shuffle("__shfl_up_sync", lanes, value, from, from < emulation::lane() / width * width);
}
template <typename T>
T __shfl_down_sync(unsigned lanes, T value, unsigned delta, int width = 32) {
  const int from = emulation::lane() + static_cast<int>(delta);
  return emulation::shuffle("__shfl_down_sync", lanes, value, from,
                            from >= (emulation::lane() / width + 1) * width);
}
template <typename T>
T __shfl_xor_sync(unsigned lanes, T value, int mask, int width = 32) {
  const int from = emulation::lane() ^ mask;
  return emulation::shuffle("__shfl_xor_sync", lanes, value, from,
                            from >= (emulation::lane() / width + 1) * width);
}
inline unsigned __ballot_sync(unsigned lanes, int predicate) {
  return emulation::vote("__ballot_sync", lanes, predicate != 0);
}
inline int __any_sync(unsigned lanes, int predicate) {
  return emulation::vote("__any_sync", lanes, predicate != 0) != 0;
}
inline int __all_sync(unsigned lanes, int predicate) {
  return emulation::vote("__all_sync", lanes, predicate == 0) == 0;
}
template <typename T>
T __reduce_add_sync(unsigned lanes, T value) {
  return emulation::reduce("__reduce_add_sync", lanes, value, [](T a, T b) { return a + b; });
}
template <typename T>
T __reduce_max_sync(unsigned lanes, T value) {
  return emulation::reduce("__reduce_max_sync", lanes, value, [](T a, T b) { return a > b ? a : b; });
}
template <typename T>
T __reduce_min_sync(unsigned lanes, T value) {
  return emulation::reduce("__reduce_min_sync", lanes, value, [](T a, T b) { return a < b ? a : b; });
}
template <typename T>
T __reduce_or_sync(unsigned lanes, T value) {
  return emulation::reduce("__reduce_or_sync", lanes, value, [](T a, T b) { return a | b; });
}
template <typename T>
T __reduce_and_sync(unsigned lanes, T value) {
  return emulation::reduce("__reduce_and_sync", lanes, value, [](T a, T b) { return a & b; });
}

#define EMULATION_LOAD(NAME) \
  template <typename T>      \
  T NAME(const T* pointer) { \
    return *pointer;         \
  }
EMULATION_LOAD(__ldg)
EMULATION_LOAD(__ldca)
EMULATION_LOAD(__ldcg)
EMULATION_LOAD(__ldcs)
EMULATION_LOAD(__ldlu)
EMULATION_LOAD(__ldcv)
#undef EMULATION_LOAD
#define EMULATION_STORE(NAME)                            \
  template <typename T>                                  \
  void NAME(T* pointer, std::type_identity_t<T> value) { \
    *pointer = value;                                    \
  }
EMULATION_STORE(__stwb)
EMULATION_STORE(__stcg)
EMULATION_STORE(__stcs)
EMULATION_STORE(__stwt)
#undef EMULATION_STORE

// Not watched: they are no races.
#define EMULATION_ATOMIC(NAME, RESULT)                                                     \
  template <typename T>                                                                    \
  __attribute__((no_sanitize("thread"))) T NAME(T* place, std::type_identity_t<T> value) { \
    const T old = *place;                                                                  \
    *place = RESULT;                                                                       \
    return old;                                                                            \
  }
EMULATION_ATOMIC(atomicAdd, old + value)
EMULATION_ATOMIC(atomicSub, old - value)
EMULATION_ATOMIC(atomicExch, value)
EMULATION_ATOMIC(atomicMin, std::min(old, value))
EMULATION_ATOMIC(atomicMax, std::max(old, value))
EMULATION_ATOMIC(atomicOr, old | value)
EMULATION_ATOMIC(atomicAnd, old& value)
EMULATION_ATOMIC(atomicXor, old ^ value)
EMULATION_ATOMIC(atomicInc, (old >= value ? 0 : old + 1))
#undef EMULATION_ATOMIC
template <typename T>
__attribute__((no_sanitize("thread"))) T atomicCAS(T* place, std::type_identity_t<T> expected,
                                                   std::type_identity_t<T> value) {
  const T old = *place;
  if (old == expected) *place = value;
  return old;
}

inline size_t __cvta_generic_to_shared(const void* pointer) { return emulation::shared_address(pointer); }

inline unsigned __umulhi(unsigned a, unsigned b) { return static_cast<unsigned>(uint64_t{a} * b >> 32); }
inline int __mulhi(int a, int b) { return static_cast<int>(int64_t{a} * b >> 32); }
inline unsigned long long __umul64hi(unsigned long long a, unsigned long long b) {
  return static_cast<unsigned long long>(static_cast<unsigned __int128>(a) * b >> 64);
}
inline int __clz(int value) { return std::countl_zero(static_cast<unsigned>(value)); }
inline int __ffs(int value) { return __builtin_ffs(value); }
inline int __popc(unsigned value) { return std::popcount(value); }
inline unsigned __brev(unsigned value) {
  unsigned result = 0;
  for (int i = 0; i < 32; ++i) result |= (value >> i & 1u) << (31 - i);
  return result;
}
inline unsigned __byte_perm(unsigned low, unsigned high, unsigned selector) {
  const uint64_t bytes = uint64_t{high} << 32 | low;
  unsigned result = 0;
  for (int i = 0; i < 4; ++i) {
    const unsigned choice = selector >> 4 * i & 0xf;
    unsigned byte = static_cast<unsigned>(bytes >> 8 * (choice & 7)) & 0xff;
    if ((choice & 8) != 0) byte = (byte & 0x80) != 0 ? 0xff : 0;
    result |= byte << 8 * i;
  }
  return result;
}
inline unsigned __funnelshift_l(unsigned low, unsigned high, unsigned bits) {
  return static_cast<unsigned>((uint64_t{high} << 32 | low) << (bits & 31) >> 32);
}
inline unsigned __funnelshift_r(unsigned low, unsigned high, unsigned bits) {
  return static_cast<unsigned>((uint64_t{high} << 32 | low) >> (bits & 31));
}
// Clamped: more than 32 bits are 32.
inline unsigned __funnelshift_lc(unsigned low, unsigned high, unsigned bits) {
  return bits >= 32 ? low : __funnelshift_l(low, high, bits);
}
inline unsigned __funnelshift_rc(unsigned low, unsigned high, unsigned bits) {
  return bits >= 32 ? high : __funnelshift_r(low, high, bits);
}

inline unsigned __float_as_uint(float value) { return std::bit_cast<unsigned>(value); }
inline int __float_as_int(float value) { return std::bit_cast<int>(value); }
inline float __uint_as_float(unsigned value) { return std::bit_cast<float>(value); }
inline float __int_as_float(int value) { return std::bit_cast<float>(value); }
inline float __fmaf_rn(float a, float b, float c) { return ::fmaf(a, b, c); }
inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fdividef(float a, float b) { return a / b; }
inline float __frcp_rn(float value) { return 1.0f / value; }
inline float __expf(float value) { return ::expf(value); }
inline float rsqrtf(float value) { return 1.0f / ::sqrtf(value); }
inline int __float2int_rn(float value) { return static_cast<int>(::nearbyintf(value)); }

// Two types give their common type in C++. If one argument is NaN, the result is the other one, as on a
// device.
template <typename A, typename B>
constexpr std::enable_if_t<std::is_arithmetic_v<A> && std::is_arithmetic_v<B>, std::common_type_t<A, B>> max(
    A a, B b) {
  using T = std::common_type_t<A, B>;
  const T left = static_cast<T>(a), right = static_cast<T>(b);
  return left != left || left < right ? right : left;
}
template <typename A, typename B>
constexpr std::enable_if_t<std::is_arithmetic_v<A> && std::is_arithmetic_v<B>, std::common_type_t<A, B>> min(
    A a, B b) {
  using T = std::common_type_t<A, B>;
  const T left = static_cast<T>(a), right = static_cast<T>(b);
  return left != left || right < left ? right : left;
}
