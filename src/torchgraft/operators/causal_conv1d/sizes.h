// Sizes of causal_conv1d that its kernels and its host functions share.
#pragma once

#include <cstdint>

namespace torchgraft::causal_conv1d {

// The widest weight. Buffers of the CPU kernels hold as much before and behind what they compute.
constexpr int64_t kMostTaps = 256;

struct Sizes {
  int64_t batch;
  int64_t channels;
  int64_t length;
  int64_t width;
  // Whether neighbouring channels are neighbours in memory; otherwise neighbouring times are.
  bool channels_last;
  // Rows of the initial and of the final state: one for each item of the batch, or for each packed sequence.
  int64_t states;
};

// A (batch, channels, time) tensor: its first element, null where there is no such tensor, and the distances
// of neighbours in elements.
template <typename T>
struct View {
  T* data = nullptr;
  int64_t batch = 0;
  int64_t channel = 0;
  int64_t time = 0;
};

// The packed sequences as kernels get them: both null if each item is one sequence.
struct Packing {
  // (batch, length), contiguous: the id of the sequence of each element; negative: the element is padding.
  const int32_t* ids = nullptr;
  // (states + 1): where each sequence begins and the last one ends, in 32 or in 64 bits.
  const void* offsets = nullptr;
  bool has_wide_offsets = false;

  bool is_there() const { return ids != nullptr || offsets != nullptr; }
};

template <typename T>
struct Forward {
  Sizes sizes;
  bool silu;
  View<const T> input;
  const T* weight;
  const T* bias;
  View<const T> initial_state;
  View<T> output;
  View<T> final_state;
  Packing packing;
};

template <typename T>
struct Backward {
  Sizes sizes;
  bool silu;
  View<const T> output_grad;
  View<const T> final_state_grad;
  View<const T> input;
  const T* weight;
  const T* bias;
  View<const T> initial_state;
  View<T> input_grad;
  View<T> initial_state_grad;
  Packing packing;
};

// A step of decoding. `state` is read and written.
template <typename T>
struct Update {
  int64_t batch;
  int64_t channels;
  int64_t length;
  int64_t width;
  bool silu;
  View<const T> input;
  View<T> state;
  int64_t state_rows;
  int64_t state_length;
  const T* weight;
  const T* bias;
  // (batch): how many elements each sequence had before; null: the state is no circular buffer.
  const int32_t* cache_lengths;
  // (batch): the row of the state of each item; null: its own number. Negative: the item is padding.
  const int32_t* rows;
  View<T> output;
};

}  // namespace torchgraft::causal_conv1d
