// A chunk of a row whose neighbouring times are neighbours in memory (channels_first.cu): how a thread reads
// it, and takes what lies before it from its neighbour.
#pragma once

#include "kernels.cuh"

namespace torchgraft::causal_conv1d {

// The threads of a warp.
inline constexpr unsigned kAll = 0xffffffffu;

// The distance of a row's first element from the boundary of a chunk before it.
template <int kOwn, typename T>
__host__ __device__ int misalignment(const T* row) {
  return static_cast<int>(reinterpret_cast<uintptr_t>(row) / sizeof(T) % kOwn);
}

// Elements before a chunk that its warp's first thread reads together; a convolution needs three at most.
inline constexpr int kBefore = 4;

// Where a chunk lies in its row. It is read in one vector where all of it is in the row, and else element by
// element.
template <int kOwn, bool kVectors>
struct Place {
  int first, length;

  __device__ bool is_whole() const { return first >= 0 && first + kOwn <= length; }
  __device__ bool is_vector() const { return kVectors && is_whole(); }
  // The same of what lies before it.
  __device__ bool is_vector_before() const { return kVectors && first >= kBefore && first <= length; }
};

template <typename T, int kOwn>
struct Inputs {
  Packed<T, kOwn> own;
  Packed<T, kBefore> before;

  template <bool kVectors>
  __device__ void load(const T* row, const Place<kOwn, kVectors>& place) {
    if (place.is_vector()) own.load(row + place.first);
    if (threadIdx.x % 32 == 0 && place.is_vector_before()) before.load(row + place.first - kBefore);
  }
};

// Some elements of a row from a time on; zeros stand for those outside.
template <int kCount, typename T, typename A>
__device__ void load_singly(A* values, const T* row, int first, int length) {
#pragma unroll
  for (int k = 0; k < kCount; ++k) {
    values[k] = is_inside(first + k, length) ? static_cast<A>(row[first + k]) : A{0};
  }
}

// The elements of a chunk.
template <typename T, typename A, int kOwn, bool kVectors>
__device__ void unpack(A* values, const Packed<T, kOwn>& own, const T* row,
                       const Place<kOwn, kVectors>& place) {
  if (place.is_vector()) {
#pragma unroll
    for (int k = 0; k < kOwn; ++k) values[k] = own[k];
  } else {
    load_singly<kOwn>(values, row, place.first, place.length);
  }
}

// The elements of a chunk behind those before it, in which the past stands for what lies before the row.
// `state_of` says where that begins, or null. All threads of a warp call it together.
template <typename T, typename A, int kPast, int kOwn, bool kVectors, typename StateOf>
__device__ void unpack_inputs(A (&values)[kPast + kOwn], const Inputs<T, kOwn>& loaded, const T* row,
                              const Place<kOwn, kVectors>& place, const StateOf& state_of,
                              int64_t state_step) {
  unpack(values + kPast, loaded.own, row, place);
#pragma unroll
  for (int k = 0; k < kPast; ++k) values[k] = __shfl_up_sync(kAll, values[kOwn + k], 1);
  if (threadIdx.x % 32 == 0) {
    if (place.is_vector_before()) {
#pragma unroll
      for (int k = 0; k < kPast; ++k) values[k] = loaded.before[kBefore - kPast + k];
    } else {
      load_singly<kPast>(values, row, place.first - kPast, place.length);
    }
  }
  // Those of a row's first thread came from another row.
#pragma unroll
  for (int k = 0; k < kPast; ++k) values[k] = place.first + k < kPast ? A{0} : values[k];
  if (place.first >= kPast) return;
  const T* state = state_of();
  if (state == nullptr) return;
#pragma unroll
  for (int j = 0; j < kPast; ++j) {
    const A past = static_cast<A>(state[j * state_step]);
#pragma unroll
    for (int k = 0; k < kPast + kOwn; ++k) values[k] = place.first + k == j ? past : values[k];
  }
}

}  // namespace torchgraft::causal_conv1d
