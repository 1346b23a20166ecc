// causal_conv1d on CUDA for packed sequences, in either layout; the states of any width, and a step of
// decoding.
//
// A thread owns one element of a result, and reads through the caches what it needs: neighbouring threads own
// neighbours in memory. Backward there are three steps. The first writes the gradients of the sums before
// SiLU, in the dtype of the sums, to a workspace; the second correlates them with the weight; in the third a
// block owns some channels and a part of the times, and sums up the gradients of their weights, tap after
// tap, in a fixed order. Whatever the ids and the offsets of packed sequences are, nothing is read outside
// the tensors.

#include "kernels.cuh"

namespace torchgraft::causal_conv1d {
namespace {

constexpr int kThreads = 256;
constexpr int kLanes = 32;
// Parts of batch and time of which each has sums of its own.
constexpr int64_t kMostParts = 64;
constexpr int64_t kTimesOfPart = 512;

// Where the sequence of an element begins, and the row of its initial state; a negative row: there is none.
struct Home {
  int64_t begin;
  int64_t row;
  bool is_padding;
};

__device__ inline int64_t offset_at(const Packing& packing, int64_t i) {
  return packing.has_wide_offsets ? static_cast<const int64_t*>(packing.offsets)[i]
                                  : static_cast<const int32_t*>(packing.offsets)[i];
}

// An offset between 0 and the length, whatever it is.
__device__ inline int64_t offset_within(const Packing& packing, int64_t i, int64_t length) {
  const int64_t offset = offset_at(packing, i);
  return offset < 0 ? 0 : offset > length ? length : offset;
}

// The sequence that an element is in: the last one that does not begin behind it.
__device__ inline int64_t sequence_of(const Sizes& sizes, const Packing& packing, int64_t time) {
  int64_t low = 0, high = sizes.states - 1;
  while (low < high) {
    const int64_t middle = (low + high) / 2;
    if (offset_at(packing, middle + 1) <= time) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return low;
}

// `reach` is how far back the caller reads at most: what begins earlier need not be found.
__device__ inline Home home_of(const Sizes& sizes, const Packing& packing, int64_t item, int64_t time,
                               int64_t reach) {
  if (packing.offsets != nullptr) {
    const int64_t sequence = sequence_of(sizes, packing, time);
    const int64_t begin = offset_within(packing, sequence, sizes.length);
    return {begin < time ? begin : time, sequence, false};
  }
  if (packing.ids == nullptr) return {0, item, false};
  const int32_t* const ids = packing.ids + item * sizes.length;
  int64_t begin = time;
  while (begin > 0 && time - begin < reach && ids[begin - 1] == ids[time]) --begin;
  return {begin, begin == 0 ? item : -1, ids[time] < 0};
}

// An element at a time of a sequence, or of its past.
template <typename T>
__device__ T element_at(const View<const T>& input, const View<const T>& state, int64_t past, int64_t item,
                        int64_t channel, const Home& home, int64_t time) {
  if (time >= home.begin) return input.data[item * input.batch + channel * input.channel + time * input.time];
  if (state.data == nullptr || home.row < 0) return static_cast<T>(0.0f);
  return state
      .data[home.row * state.batch + channel * state.channel + (past + time - home.begin) * state.time];
}

// The sum before SiLU.
template <typename T, typename Call>
__device__ accumulate_t<T> sum_at(const Call& call, int64_t item, int64_t channel, const Home& home,
                                  int64_t time) {
  using A = accumulate_t<T>;
  const int64_t width = call.sizes.width, past = width - 1;
  const T* const weight = call.weight + channel * width;
  A sum = call.bias == nullptr ? A{0} : static_cast<A>(call.bias[channel]);
  for (int64_t tap = 0; tap < width; ++tap) {
    const T value = element_at(call.input, call.initial_state, past, item, channel, home, time + tap - past);
    sum += static_cast<A>(weight[tap]) * static_cast<A>(value);
  }
  return sum;
}

struct Index {
  int64_t item, channel, time;
};

// The element of (batch, channels, length) that a thread owns, in the order of memory.
__device__ inline Index index_of(int64_t number, int64_t channels, int64_t length, bool channels_last) {
  const int64_t inner = channels_last ? channels : length, outer = channels_last ? length : channels;
  const int64_t fast = number % inner, slow = number / inner % outer, item = number / inner / outer;
  return channels_last ? Index{item, fast, slow} : Index{item, slow, fast};
}

__device__ inline int64_t thread_number() {
  return static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
}

template <typename T>
__global__ void __launch_bounds__(kThreads) forward_kernel(Forward<T> call, int64_t count) {
  const Sizes& sizes = call.sizes;
  const int64_t number = thread_number();
  if (number >= count) return;
  const auto [item, channel, time] = index_of(number, sizes.channels, sizes.length, sizes.channels_last);
  const Home home = home_of(sizes, call.packing, item, time, sizes.width - 1);
  const accumulate_t<T> sum = home.is_padding ? 0 : sum_at<T>(call, item, channel, home, time);
  row_of(call.output, static_cast<int>(item), static_cast<int>(channel))[time * call.output.time] =
      static_cast<T>(call.silu ? silu<T>(sum) : sum);
}

// The sequence of a row of the final state: the item that it lies in, and where it ends.
struct Last {
  int64_t item, end;
  Home home;
};

__device__ inline Last last_of(const Sizes& sizes, const Packing& packing, int64_t row) {
  if (packing.offsets != nullptr) {
    const int64_t end = offset_within(packing, row + 1, sizes.length);
    const int64_t begin = offset_within(packing, row, sizes.length);
    return {0, end, {begin < end ? begin : end, row, false}};
  }
  if (sizes.length == 0) return {row, 0, {0, row, false}};
  // The elements of the final state end one behind the last one's reach.
  return {row, sizes.length, home_of(sizes, packing, row, sizes.length - 1, sizes.width - 1)};
}

template <typename T>
__global__ void __launch_bounds__(kThreads) final_state_kernel(Forward<T> call, int64_t count) {
  const Sizes& sizes = call.sizes;
  const int64_t number = thread_number(), past = sizes.width - 1;
  if (number >= count) return;
  const auto [row, channel, j] = index_of(number, sizes.channels, past, sizes.channels_last);
  const Last last = last_of(sizes, call.packing, row);
  const View<T>& state = call.final_state;
  state.data[row * state.batch + channel * state.channel + j * state.time] =
      last.home.is_padding ? static_cast<T>(0.0f)
                           : element_at(call.input, call.initial_state, past, last.item, channel, last.home,
                                        last.end - past + j);
}

// Writes the gradients of the sums, (batch, channels, length) laid out as the input.
template <typename T>
__global__ void __launch_bounds__(kThreads)
    sums_grad_kernel(Backward<T> call, accumulate_t<T>* __restrict__ sums_grad, int64_t count) {
  using A = accumulate_t<T>;
  const Sizes& sizes = call.sizes;
  const int64_t number = thread_number();
  if (number >= count) return;
  const auto [item, channel, time] = index_of(number, sizes.channels, sizes.length, sizes.channels_last);
  const Home home = home_of(sizes, call.packing, item, time, sizes.width - 1);
  A grad = 0;
  if (!home.is_padding) {
    const View<const T>& from = call.output_grad;
    grad = static_cast<A>(from.data[item * from.batch + channel * from.channel + time * from.time]);
    if (call.silu) grad *= silu_slope<T>(sum_at<T>(call, item, channel, home, time));
  }
  sums_grad[number] = grad;
}

// Points to the gradients of the sums of one channel of one item, in the workspace.
template <typename A>
struct SumsGrad {
  const A* data;
  int64_t step;
};
template <typename A>
__device__ SumsGrad<A> sums_grad_of(const A* sums_grad, const Sizes& sizes, int64_t item, int64_t channel) {
  const int64_t first = item * sizes.channels * sizes.length;
  return sizes.channels_last ? SumsGrad<A>{sums_grad + first + channel, sizes.channels}
                             : SumsGrad<A>{sums_grad + first + channel * sizes.length, 1};
}

// The gradient that an element at a time gets from the sums at times [from, end), which are all of its
// sequence.
template <typename T>
__device__ accumulate_t<T> gathered(const Backward<T>& call, const accumulate_t<T>* sums_grad, int64_t item,
                                    int64_t channel, int64_t time, int64_t from, int64_t end) {
  using A = accumulate_t<T>;
  const Sizes& sizes = call.sizes;
  const SumsGrad<A> grads = sums_grad_of(sums_grad, sizes, item, channel);
  const T* const weight = call.weight + channel * sizes.width;
  A sum = 0;
  for (int64_t later = from > time ? from : time; later < end && later < time + sizes.width; ++later) {
    sum += static_cast<A>(weight[sizes.width - 1 - (later - time)]) * grads.data[later * grads.step];
  }
  return sum;
}

// Where the sequence of an element ends, or `reach` elements behind it.
__device__ inline int64_t end_of(const Sizes& sizes, const Packing& packing, int64_t item, int64_t time,
                                 int64_t reach) {
  const int64_t most = time + 1 + reach < sizes.length ? time + 1 + reach : sizes.length;
  if (packing.offsets != nullptr) {
    const int64_t behind = sequence_of(sizes, packing, time) + 1;
    // Behind the last offset the last sequence goes on, as it does forward.
    const int64_t end = behind < sizes.states ? offset_within(packing, behind, sizes.length) : sizes.length;
    return end < most ? end : most;
  }
  if (packing.ids == nullptr) return most;
  const int32_t* const ids = packing.ids + item * sizes.length;
  int64_t end = time + 1;
  while (end < most && ids[end] == ids[time]) ++end;
  return end;
}

template <typename T>
__device__ accumulate_t<T> final_state_grad_at(const Backward<T>& call, int64_t row, int64_t channel,
                                               int64_t place) {
  const View<const T>& grad = call.final_state_grad;
  if (grad.data == nullptr || place < 0) return 0;
  return static_cast<accumulate_t<T>>(
      grad.data[row * grad.batch + channel * grad.channel + place * grad.time]);
}

template <typename T>
__global__ void __launch_bounds__(kThreads)
    input_grad_kernel(Backward<T> call, const accumulate_t<T>* __restrict__ sums_grad, int64_t count) {
  const Sizes& sizes = call.sizes;
  const int64_t number = thread_number(), past = sizes.width - 1;
  if (number >= count) return;
  const auto [item, channel, time] = index_of(number, sizes.channels, sizes.length, sizes.channels_last);
  const bool is_padding = call.packing.ids != nullptr && call.packing.ids[item * sizes.length + time] < 0;
  const int64_t end = is_padding ? time : end_of(sizes, call.packing, item, time, past);
  accumulate_t<T> sum = gathered(call, sums_grad, item, channel, time, time, end);
  const int64_t row = call.packing.offsets == nullptr ? item : sequence_of(sizes, call.packing, time);
  const Last last = last_of(sizes, call.packing, row);
  if (!last.home.is_padding && time >= last.home.begin && time < last.end) {
    sum += final_state_grad_at(call, row, channel, time - last.end + past);
  }
  row_of(call.input_grad, static_cast<int>(item), static_cast<int>(channel))[time * call.input_grad.time] =
      static_cast<T>(sum);
}

// A row of the initial state belongs to the first sequence of an item, or to the sequence of its number.
template <typename T>
__global__ void __launch_bounds__(kThreads)
    initial_state_grad_kernel(Backward<T> call, const accumulate_t<T>* __restrict__ sums_grad,
                              int64_t count) {
  const Sizes& sizes = call.sizes;
  const int64_t number = thread_number(), past = sizes.width - 1;
  if (number >= count) return;
  const auto [row, channel, j] = index_of(number, sizes.channels, past, sizes.channels_last);
  const Packing& packing = call.packing;
  const Last last = last_of(sizes, packing, row);
  const int64_t item = last.item;
  int64_t begin = 0, end = sizes.length < past ? sizes.length : past;
  if (packing.offsets != nullptr) {
    begin = last.home.begin;
    const int64_t last_end = row + 1 < sizes.states ? last.end : sizes.length;
    end = begin + past < last_end ? begin + past : last_end;
  } else if (packing.ids != nullptr && sizes.length > 0) {
    end = packing.ids[item * sizes.length] < 0 ? 0 : end_of(sizes, packing, item, 0, past - 1);
  }
  const int64_t time = begin - past + j;
  accumulate_t<T> sum = gathered(call, sums_grad, item, channel, time, begin, end);
  if (!last.home.is_padding && last.home.row == row && last.home.begin == begin) {
    sum += final_state_grad_at(call, row, channel, time - last.end + past);
  }
  const View<T>& grad = call.initial_state_grad;
  grad.data[row * grad.batch + channel * grad.channel + j * grad.time] = static_cast<T>(sum);
}

// A block owns a tap (the last one is the bias), a group of channels and a part of all times of all items.
// Its lanes are channels where these are neighbours in memory, else all its threads are times of one channel.
template <typename T>
__global__ void __launch_bounds__(kThreads)
    weight_grad_kernel(Backward<T> call, const accumulate_t<T>* __restrict__ sums_grad,
                       accumulate_t<T>* __restrict__ partials, int64_t share, int64_t groups) {
  using A = accumulate_t<T>;
  const Sizes& sizes = call.sizes;
  const int64_t columns = sizes.width + 1, past = sizes.width - 1;
  const int64_t tap = blockIdx.x % columns, group = blockIdx.x / columns % groups,
                part = blockIdx.x / columns / groups;
  const int thread = static_cast<int>(threadIdx.x);
  const int lanes = sizes.channels_last ? kLanes : 1;
  const int lane = thread % lanes, row = thread / lanes, rows = kThreads / lanes;
  const int64_t channel = group * lanes + lane, all = sizes.batch * sizes.length;
  const int64_t end = (part + 1) * share < all ? (part + 1) * share : all;
  A sum = 0;
  for (int64_t place = part * share + row; channel < sizes.channels && place < end; place += rows) {
    const int64_t item = place / sizes.length, time = place % sizes.length;
    const SumsGrad<A> grads = sums_grad_of(sums_grad, sizes, item, channel);
    const A grad = grads.data[time * grads.step];
    if (tap == sizes.width) {
      sum += grad;
      continue;
    }
    const Home home = home_of(sizes, call.packing, item, time, past - tap);
    if (home.is_padding) continue;
    sum += grad * static_cast<A>(element_at(call.input, call.initial_state, past, item, channel, home,
                                            time + tap - past));
  }
  __shared__ A of_threads[kThreads];
  of_threads[thread] = sum;
  __syncthreads();
  for (int half = rows / 2; half > 0; half /= 2) {
    if (row < half) of_threads[thread] += of_threads[thread + half * lanes];
    __syncthreads();
  }
  if (row == 0 && channel < sizes.channels) {
    partials[(part * sizes.channels + channel) * columns + tap] = of_threads[thread];
  }
}

// A thread owns a channel of an item: it computes all outputs, and then writes the state.
template <typename T>
__global__ void __launch_bounds__(kThreads) update_kernel(Update<T> call, int64_t count) {
  using A = accumulate_t<T>;
  const int64_t number = thread_number();
  if (number >= count) return;
  const int64_t item = number / call.channels, channel = number % call.channels;
  const int64_t row = call.rows == nullptr ? item : call.rows[item];
  const bool is_padding = row < 0 || row >= call.state_rows;
  const int64_t kept = call.state_length, past = call.width - 1;
  const bool is_circular = call.cache_lengths != nullptr;
  const T* const input = call.input.data + item * call.input.batch + channel * call.input.channel;
  T* const state = call.state.data + (is_padding ? 0 : row) * call.state.batch + channel * call.state.channel;
  T* const output = call.output.data + item * call.output.batch + channel * call.output.channel;
  const T* const weight = call.weight + channel * call.width;
  const A bias = call.bias == nullptr ? A{0} : static_cast<A>(call.bias[channel]);
  const int64_t cached = is_circular ? call.cache_lengths[item] : 0;
  const auto place_of = [&](int64_t time) {
    if (!is_circular) return kept + time;
    const int64_t place = (cached + time) % kept;
    return place < 0 ? place + kept : place;
  };
  for (int64_t time = 0; time < call.length; ++time) {
    A sum = 0;
    if (!is_padding) {
      sum = bias;
      for (int64_t tap = 0; tap < call.width; ++tap) {
        const int64_t at = time + tap - past;
        const T value = at >= 0 ? input[at * call.input.time] : state[place_of(at) * call.state.time];
        sum += static_cast<A>(weight[tap]) * static_cast<A>(value);
      }
      if (call.silu) sum = silu<T>(sum);
    }
    output[time * call.output.time] = static_cast<T>(sum);
  }
  if (is_padding) return;
  for (int64_t j = 0; !is_circular && call.length > 0 && j + call.length < kept; ++j) {
    state[j * call.state.time] = state[(j + call.length) * call.state.time];
  }
  for (int64_t time = call.length > kept ? call.length - kept : 0; time < call.length; ++time) {
    const int64_t place = is_circular ? place_of(time) : kept - call.length + time;
    state[place * call.state.time] = input[time * call.input.time];
  }
}

unsigned blocks_for(int64_t count) { return grid_of(ceil_divide(count, int64_t{kThreads}), "causal_conv1d"); }

// All of the backward pass of packed sequences but the gradient of the initial state.
template <typename T>
Partials backward_packed(const Backward<T>& call, accumulate_t<T>* sums_grad, int64_t count,
                         const Tensor& like, cudaStream_t stream) {
  using A = accumulate_t<T>;
  const Sizes& sizes = call.sizes;
  const int64_t all = sizes.batch * sizes.length, columns = sizes.width + 1;
  const int64_t parts = std::min(ceil_divide(all, kTimesOfPart), kMostParts);
  Partials partials = {empty_workspace<A>(parts * sizes.channels * columns, like), parts};
  sums_grad_kernel<<<blocks_for(count), kThreads, 0, stream>>>(call, sums_grad, count);
  input_grad_kernel<<<blocks_for(count), kThreads, 0, stream>>>(call, sums_grad, count);
  const int64_t groups = sizes.channels_last ? ceil_divide(sizes.channels, int64_t{kLanes}) : sizes.channels;
  const unsigned blocks = grid_of(parts * groups * columns, "causal_conv1d_backward");
  weight_grad_kernel<<<blocks, kThreads, 0, stream>>>(call, sums_grad, mutable_data_of<A>(partials.memory),
                                                      ceil_divide(all, parts), groups);
  return partials;
}

}  // namespace

template <typename T>
void forward_any(const Forward<T>& call, cudaStream_t stream) {
  const Sizes& sizes = call.sizes;
  const int64_t count = sizes.batch * sizes.channels * sizes.length;
  const int64_t states = sizes.states * sizes.channels * (sizes.width - 1);
  if (count > 0) {
    if (call.packing.is_there()) {
      forward_kernel<<<blocks_for(count), kThreads, 0, stream>>>(call, count);
    } else {
      forward_wide(call, stream);
    }
  }
  if (states > 0) final_state_kernel<<<blocks_for(states), kThreads, 0, stream>>>(call, states);
  check_launch("causal_conv1d");
}

template <typename T>
Partials backward_any(const Backward<T>& call, const Tensor& like, cudaStream_t stream) {
  using A = accumulate_t<T>;
  const Sizes& sizes = call.sizes;
  const int64_t count = sizes.batch * sizes.channels * sizes.length;
  const int64_t states = sizes.states * sizes.channels * (sizes.width - 1);
  const Tensor workspace = empty_workspace<A>(std::max<int64_t>(count, 1), like);
  A* const sums_grad = mutable_data_of<A>(workspace);
  const Partials partials = count == 0                ? Partials{empty_workspace<A>(1, like), 0}
                            : call.packing.is_there() ? backward_packed(call, sums_grad, count, like, stream)
                                                      : backward_wide(call, sums_grad, like, stream);
  if (states > 0)
    initial_state_grad_kernel<<<blocks_for(states), kThreads, 0, stream>>>(call, sums_grad, states);
  check_launch("causal_conv1d_backward");
  return partials;
}

template <typename T>
void run_update(const Update<T>& call, cudaStream_t stream) {
  const int64_t count = call.batch * call.channels;
  update_kernel<<<blocks_for(count), kThreads, 0, stream>>>(call, count);
  check_launch("causal_conv1d_update");
}

#define INSTANTIATE(T)                                                                \
  template void forward_any<T>(const Forward<T>&, cudaStream_t);                      \
  template Partials backward_any<T>(const Backward<T>&, const Tensor&, cudaStream_t); \
  template void run_update<T>(const Update<T>&, cudaStream_t);
INSTANTIATE(double)
INSTANTIATE(float)
INSTANTIATE(Half)
INSTANTIATE(BFloat16)
#undef INSTANTIATE

}  // namespace torchgraft::causal_conv1d
