// causal_conv1d on CUDA for any width where each item of the batch is one sequence, in either layout.
//
// A block holds a tile in shared memory: some times of some channels, and as many times before or behind them
// as the weight is wide. A thread owns eight neighbouring times of one channel and goes over the taps, so
// that an element that it reads there serves eight sums. Where channels are neighbours in memory, the lanes
// of a warp are channels, else they are times. What is read and written in device memory lies side by side.
//
// Backward there are three steps: the gradients of the sums before SiLU, which are written to a workspace in
// the dtype of the sums; their correlation with the weight; and the gradients of the weight, of which a
// thread owns eight neighbouring taps and a part of the times.
//
// Measured on an H200 in drawn rows: widths of 15 and 31 take 6 and 9 times the time of a copy forward, 13
// and 16 times with all gradients, and 0.4 to 0.6 of PyTorch's time. Elements are read from device memory
// singly.

#include "kernels.cuh"

namespace torchgraft::causal_conv1d {
namespace {

constexpr int kThreads = 256;
// The times, or the taps, that a thread owns.
constexpr int kOwn = 8;
// So many taps of the weight are in shared memory at a time; and so many of its gradient belong to a block.
constexpr int kTapsOfPiece = 32, kTapsOfBlock = 64;
// Rows that are no longer than this share a block with others where neighbouring times are neighbours in
// memory.
constexpr int64_t kShort = 512;
// Blocks of the weight gradient that fill a GPU, and the parts of which each has sums of its own.
constexpr int64_t kBlocks = 1056, kMostParts = 64;

// How the threads of a block share a tile.
template <typename T, bool kIsChannelsLast, bool kIsShort>
struct Tile {
  using A = accumulate_t<T>;
  // Channels side by side, and the threads of each.
  static constexpr int kLanes = kIsChannelsLast ? (sizeof(T) == 8 ? 8 : 32) : kIsShort ? 8 : 1;
  static constexpr int kUnits = kThreads / kLanes;
  static constexpr int kTimes = kUnits * kOwn;

  static __device__ int lane() {
    const int thread = static_cast<int>(threadIdx.x);
    return kIsChannelsLast ? thread % kLanes : thread / kUnits;
  }
  static __device__ int unit() {
    const int thread = static_cast<int>(threadIdx.x);
    return kIsChannelsLast ? thread / kLanes : thread % kUnits;
  }
  // Elements of shared memory for so many times.
  static __host__ __device__ int size(int times) {
    return kIsChannelsLast ? times * kLanes : kLanes * (times + times / kOwn + 1);
  }
  // Where an element is in shared memory. An element is left out after each eight: threads that are eight
  // times apart then use different banks.
  static __device__ int place(int time, int lane, int times) {
    if constexpr (kIsChannelsLast) return time * kLanes + lane;
    return lane * (times + times / kOwn + 1) + time + time / kOwn;
  }
};

// The channels, the item and the first time of a block.
struct Home {
  int64_t item, channel, first;
};

// Calls `visit(time, lane)` for the elements of a tile: neighbouring threads get neighbours in memory.
template <typename Tile, typename Visit>
__device__ void each_element(int times, const Visit& visit) {
  for (int time = Tile::unit(); time < times; time += Tile::kUnits) visit(time, Tile::lane());
}

// Sums of eight times and taps: sums[j] += factors[k] * window[j + k] for each k that is wanted.
template <typename A, typename IsWanted>
__device__ void add_products(A (&sums)[kOwn], const A (&factors)[kOwn], const A (&window)[2 * kOwn],
                             const IsWanted& is_wanted) {
#pragma unroll
  for (int k = 0; k < kOwn; ++k) {
#pragma unroll
    for (int j = 0; j < kOwn; ++j) {
      if (is_wanted(j, k)) sums[j] += factors[k] * window[j + k];
    }
  }
}

// Correlates a tile with the weight of each channel: the sum of a time takes the elements from its own place
// on. A tap is `weight[tap]`, or from the last one on where `is_reversed`. Elements at `limit` and behind it
// are not there, if the caller says so: not even their product with an infinite tap counts.
template <typename Tile, typename T, typename A = accumulate_t<T>>
__device__ void correlate(A (&sums)[kOwn], const A* tile, int times, A* taps, const T* weight, int width,
                          int64_t channels_left, bool is_reversed, int64_t limit) {
  const int lane = Tile::lane(), first = Tile::unit() * kOwn;
  A window[2 * kOwn];
#pragma unroll
  for (int j = 0; j < kOwn; ++j) window[kOwn + j] = tile[Tile::place(first + j, lane, times)];
  for (int begin = 0; begin < width; begin += kTapsOfPiece) {
    const int count = min(kTapsOfPiece, width - begin);
    __syncthreads();
    for (int i = static_cast<int>(threadIdx.x); i < count * Tile::kLanes; i += kThreads) {
      const int of = i / count, tap = begin + i % count;
      taps[i % count * Tile::kLanes + of] =
          of < channels_left ? static_cast<A>(weight[of * width + (is_reversed ? width - 1 - tap : tap)])
                             : A{0};
    }
    __syncthreads();
    for (int piece = 0; piece < count; piece += kOwn) {
      const int left = count - piece, behind = first + begin + piece + kOwn;
      A factors[kOwn];
#pragma unroll
      for (int k = 0; k < kOwn; ++k) {
        window[k] = window[kOwn + k];
        window[kOwn + k] = tile[Tile::place(behind + k, lane, times)];
        factors[k] = k < left ? taps[(piece + k) * Tile::kLanes + lane] : A{0};
      }
      if (left >= kOwn && behind + kOwn <= limit) {
        add_products(sums, factors, window, [](int, int) { return true; });
      } else {
        add_products(sums, factors, window,
                     [&](int j, int k) { return k < left && behind - kOwn + j + k < limit; });
      }
    }
  }
}

template <typename Tile>
__device__ Home home_of(const Sizes& sizes) {
  const int64_t tiles = ceil_divide(sizes.length, int64_t{Tile::kTimes});
  const int64_t groups = ceil_divide(sizes.channels, int64_t{Tile::kLanes});
  const int64_t block = blockIdx.x;
  return {block / tiles / groups, block / tiles % groups * Tile::kLanes, block % tiles * Tile::kTimes};
}

// The times in a tile of so many sums: those that the last one takes, to the end of eight taps.
template <typename Tile>
__host__ __device__ int times_with(int64_t width) {
  return Tile::kTimes + static_cast<int>((width + kOwn - 1) / kOwn) * kOwn;
}

// An input at a time from -(width - 1) on, which lies in the past where that is negative; nothing is behind
// the end.
template <typename T>
__device__ accumulate_t<T> input_at(const View<const T>& input, const View<const T>& state,
                                    const Sizes& sizes, int64_t item, int64_t channel, int64_t time) {
  if (channel >= sizes.channels || time >= sizes.length || time < 1 - sizes.width) return 0;
  if (time >= 0) {
    return static_cast<accumulate_t<T>>(
        input.data[item * input.batch + channel * input.channel + time * input.time]);
  }
  if (state.data == nullptr) return 0;
  const int64_t place = time + sizes.width - 1;
  return static_cast<accumulate_t<T>>(
      state.data[item * state.batch + channel * state.channel + place * state.time]);
}

// The sums before SiLU of a tile, in shared memory, where `finish(item, channel, time, sum)` gets each.
template <typename T, typename Own, typename Call, typename Finish>
__device__ void sum_tile(const Call& call, const Finish& finish) {
  using A = accumulate_t<T>;
  const Sizes& sizes = call.sizes;
  const Home home = home_of<Own>(sizes);
  const int width = static_cast<int>(sizes.width), times = times_with<Own>(width);
  A* const tile = shared_memory<A>();
  each_element<Own>(times, [&](int time, int lane) {
    tile[Own::place(time, lane, times)] = input_at<T>(call.input, call.initial_state, sizes, home.item,
                                                      home.channel + lane, home.first + time - (width - 1));
  });
  __syncthreads();
  A sums[kOwn] = {};
  correlate<Own, T>(sums, tile, times, tile + Own::size(times), call.weight + home.channel * width, width,
                    sizes.channels - home.channel, false, INT64_MAX);
  __syncthreads();
#pragma unroll
  for (int j = 0; j < kOwn; ++j) tile[Own::place(Own::unit() * kOwn + j, Own::lane(), times)] = sums[j];
  __syncthreads();
  each_element<Own>(Own::kTimes, [&](int time, int lane) {
    const int64_t channel = home.channel + lane, at = home.first + time;
    if (channel >= sizes.channels || at >= sizes.length) return;
    const A bias = call.bias == nullptr ? A{0} : static_cast<A>(call.bias[channel]);
    finish(home.item, channel, at, tile[Own::place(time, lane, times)] + bias);
  });
}

template <typename T, typename Own>
__global__ void __launch_bounds__(kThreads) forward_kernel(Forward<T> call) {
  sum_tile<T, Own>(call, [&](int64_t item, int64_t channel, int64_t time, accumulate_t<T> sum) {
    const View<T>& output = call.output;
    output.data[item * output.batch + channel * output.channel + time * output.time] =
        static_cast<T>(call.silu ? silu<T>(sum) : sum);
  });
}

// Where the gradient of a sum is in the workspace, which is laid out as the input.
__device__ inline int64_t place_of(const Sizes& sizes, int64_t item, int64_t channel, int64_t time) {
  const int64_t within =
      sizes.channels_last ? time * sizes.channels + channel : channel * sizes.length + time;
  return item * sizes.channels * sizes.length + within;
}

template <typename T, typename Own>
__global__ void __launch_bounds__(kThreads)
    sums_grad_kernel(Backward<T> call, accumulate_t<T>* __restrict__ sums_grad) {
  using A = accumulate_t<T>;
  sum_tile<T, Own>(call, [&](int64_t item, int64_t channel, int64_t time, A sum) {
    const View<const T>& from = call.output_grad;
    const A grad = static_cast<A>(from.data[item * from.batch + channel * from.channel + time * from.time]);
    sums_grad[place_of(call.sizes, item, channel, time)] = call.silu ? grad * silu_slope<T>(sum) : grad;
  });
}

template <typename T, typename Own>
__global__ void __launch_bounds__(kThreads)
    input_grad_kernel(Backward<T> call, const accumulate_t<T>* __restrict__ sums_grad) {
  using A = accumulate_t<T>;
  const Sizes& sizes = call.sizes;
  const Home home = home_of<Own>(sizes);
  const int width = static_cast<int>(sizes.width), times = times_with<Own>(width);
  A* const tile = shared_memory<A>();
  each_element<Own>(times, [&](int time, int lane) {
    const int64_t channel = home.channel + lane, at = home.first + time;
    const bool is_there = channel < sizes.channels && at < sizes.length;
    tile[Own::place(time, lane, times)] =
        is_there ? sums_grad[place_of(sizes, home.item, channel, at)] : A{0};
  });
  __syncthreads();
  A sums[kOwn] = {};
  correlate<Own, T>(sums, tile, times, tile + Own::size(times), call.weight + home.channel * width, width,
                    sizes.channels - home.channel, true, sizes.length - home.first);
  __syncthreads();
#pragma unroll
  for (int j = 0; j < kOwn; ++j) tile[Own::place(Own::unit() * kOwn + j, Own::lane(), times)] = sums[j];
  __syncthreads();
  each_element<Own>(Own::kTimes, [&](int time, int lane) {
    const int64_t channel = home.channel + lane, at = home.first + time;
    if (channel >= sizes.channels || at >= sizes.length) return;
    A sum = tile[Own::place(time, lane, times)];
    // The last inputs are a part of the final state.
    const View<const T>& of_state = call.final_state_grad;
    const int64_t place = at - sizes.length + width - 1;
    if (of_state.data != nullptr && place >= 0) {
      sum += static_cast<A>(
          of_state.data[home.item * of_state.batch + channel * of_state.channel + place * of_state.time]);
    }
    const View<T>& to = call.input_grad;
    to.data[home.item * to.batch + channel * to.channel + at * to.time] = static_cast<T>(sum);
  });
}

// The share of the weight gradient of a block: a part of all tiles of all items, some channels, and some
// taps.
struct Share {
  int64_t tiles_of_item, begin, end, channel;
  int first_tap, taps;
};

template <typename Tile>
__device__ Share share_of(const Sizes& sizes, int64_t parts) {
  const int64_t chunks = ceil_divide(sizes.width, int64_t{kTapsOfBlock});
  const int64_t groups = ceil_divide(sizes.channels, int64_t{Tile::kLanes});
  const int64_t tiles = ceil_divide(sizes.length, int64_t{Tile::kTimes}), all = tiles * sizes.batch;
  const int64_t block = blockIdx.x, part = block / chunks / groups, each = ceil_divide(all, parts);
  const int64_t first_tap = block % chunks * kTapsOfBlock, left = sizes.width - first_tap;
  return {tiles,
          part * each,
          part * each + each < all ? part * each + each : all,
          block / chunks % groups * Tile::kLanes,
          static_cast<int>(first_tap),
          static_cast<int>(left < kTapsOfBlock ? left : kTapsOfBlock)};
}

// Adds up a tile's products of the gradients of sums and the inputs that the taps of a thread take. Units of
// threads own eight taps each, and of their times every so many eight.
template <typename Tile, typename A>
__device__ void add_tile(A (&sums)[kOwn], A& of_bias, const A* inputs, int times, const A* grads, int owners,
                         int64_t left) {
  const int lane = Tile::lane(), first_tap = Tile::unit() % owners * kOwn;
  for (int first = Tile::unit() / owners * kOwn; first < Tile::kTimes && first < left;
       first += Tile::kUnits / owners * kOwn) {
    A window[2 * kOwn], factors[kOwn];
#pragma unroll
    for (int j = 0; j < 2 * kOwn; ++j) window[j] = inputs[Tile::place(first + first_tap + j, lane, times)];
#pragma unroll
    for (int k = 0; k < kOwn; ++k) {
      factors[k] = grads[Tile::place(first + k, lane, Tile::kTimes)];
      of_bias += factors[k];
    }
    if (first + kOwn <= left) {
      add_products(sums, factors, window, [](int, int) { return true; });
    } else {
      // Behind the end there is nothing, whatever the inputs are.
      add_products(sums, factors, window, [&](int, int k) { return first + k < left; });
    }
  }
}

// Units of threads that share the taps of a block: as many as have eight each, a power of two.
__host__ __device__ inline int owners_of(int taps) {
  int owners = 1;
  while (owners * kOwn < taps) owners *= 2;
  return owners;
}

template <typename T, typename Own>
__global__ void __launch_bounds__(kThreads)
    weight_grad_kernel(Backward<T> call, const accumulate_t<T>* __restrict__ sums_grad,
                       accumulate_t<T>* __restrict__ partials, int64_t parts) {
  using A = accumulate_t<T>;
  constexpr int kTimes = Own::kTimes, kWith = kTimes + kTapsOfBlock;
  const Sizes& sizes = call.sizes;
  const Share share = share_of<Own>(sizes, parts);
  const int owners = owners_of(share.taps);
  A* const inputs = shared_memory<A>();
  A* const grads = inputs + Own::size(kWith);
  A sums[kOwn] = {}, of_bias = 0;
  for (int64_t number = share.begin; number < share.end; ++number) {
    const int64_t item = number / share.tiles_of_item, first = number % share.tiles_of_item * kTimes;
    __syncthreads();
    each_element<Own>(kTimes + owners * kOwn, [&](int time, int lane) {
      inputs[Own::place(time, lane, kWith)] =
          input_at<T>(call.input, call.initial_state, sizes, item, share.channel + lane,
                      first + time + share.first_tap - (sizes.width - 1));
    });
    each_element<Own>(kTimes, [&](int time, int lane) {
      const int64_t channel = share.channel + lane, at = first + time;
      const bool is_there = channel < sizes.channels && at < sizes.length;
      grads[Own::place(time, lane, kTimes)] = is_there ? sums_grad[place_of(sizes, item, channel, at)] : A{0};
    });
    __syncthreads();
    add_tile<Own, A>(sums, of_bias, inputs, kWith, grads, owners, sizes.length - first);
  }
  __syncthreads();
  // The sums of each thread, and that of a bias behind them, are added up over the times in a fixed order.
  A* const of_threads = inputs;
  const int lane = Own::lane(), unit = Own::unit(), turns = Own::kUnits / owners;
#pragma unroll
  for (int j = 0; j < kOwn; ++j) of_threads[(j * Own::kUnits + unit) * Own::kLanes + lane] = sums[j];
  of_threads[(kOwn * Own::kUnits + unit) * Own::kLanes + lane] = of_bias;
  __syncthreads();
  const int columns = static_cast<int>(sizes.width) + 1;
  const int64_t part = share.begin / ceil_divide(share.tiles_of_item * sizes.batch, parts);
  A* const to = partials + part * sizes.channels * columns;
  for (int i = static_cast<int>(threadIdx.x); i < (share.taps + 1) * Own::kLanes; i += kThreads) {
    const int tap = i / Own::kLanes, of = i % Own::kLanes;
    const bool is_bias = tap == share.taps;
    if (share.channel + of >= sizes.channels || (is_bias && share.first_tap > 0)) continue;
    A sum = 0;
    for (int turn = 0; turn < turns; ++turn) {
      const int owner = is_bias ? turn * owners : turn * owners + tap / kOwn;
      sum += of_threads[((is_bias ? kOwn : tap % kOwn) * Own::kUnits + owner) * Own::kLanes + of];
    }
    to[(share.channel + of) * columns + (is_bias ? columns - 1 : share.first_tap + tap)] = sum;
  }
}

// Calls `run` with the way in which blocks share the tensors.
template <typename T, typename Run>
auto dispatch_tile(const Sizes& sizes, const Run& run) {
  if (sizes.channels_last) return run(Tile<T, true, false>{});
  return sizes.length <= kShort ? run(Tile<T, false, true>{}) : run(Tile<T, false, false>{});
}

// Blocks of one tile each, and the bytes of shared memory of each.
template <typename Tile>
unsigned blocks_of(const Sizes& sizes, const char* name) {
  return grid_of(sizes.batch * ceil_divide(sizes.channels, int64_t{Tile::kLanes}) *
                     ceil_divide(sizes.length, int64_t{Tile::kTimes}),
                 name);
}
template <typename Tile>
size_t shared_bytes(const Sizes& sizes) {
  return (Tile::size(times_with<Tile>(sizes.width)) + kTapsOfPiece * Tile::kLanes) * sizeof(typename Tile::A);
}

// Parts of the tiles for the weight gradient: so many that blocks fill a GPU.
template <typename Tile>
int64_t parts_of(const Sizes& sizes) {
  const int64_t blocks =
      ceil_divide(sizes.channels, int64_t{Tile::kLanes}) * ceil_divide(sizes.width, int64_t{kTapsOfBlock});
  const int64_t all = sizes.batch * ceil_divide(sizes.length, int64_t{Tile::kTimes});
  const int64_t wanted = std::max<int64_t>(std::min({ceil_divide(kBlocks, blocks), all, kMostParts}), 1);
  // If each part had as many tiles as that, the last ones might have none.
  return ceil_divide(all, ceil_divide(all, wanted));
}

}  // namespace

template <typename T>
void forward_wide(const Forward<T>& call, cudaStream_t stream) {
  dispatch_tile<T>(call.sizes, [&]<typename Own>(Own) {
    const unsigned blocks = blocks_of<Own>(call.sizes, "causal_conv1d");
    forward_kernel<T, Own><<<blocks, kThreads, shared_bytes<Own>(call.sizes), stream>>>(call);
  });
}

template <typename T>
Partials backward_wide(const Backward<T>& call, accumulate_t<T>* sums_grad, const Tensor& like,
                       cudaStream_t stream) {
  using A = accumulate_t<T>;
  const Sizes& sizes = call.sizes;
  return dispatch_tile<T>(sizes, [&]<typename Own>(Own) {
    const unsigned blocks = blocks_of<Own>(sizes, "causal_conv1d_backward");
    const size_t bytes = shared_bytes<Own>(sizes);
    sums_grad_kernel<T, Own><<<blocks, kThreads, bytes, stream>>>(call, sums_grad);
    input_grad_kernel<T, Own><<<blocks, kThreads, bytes, stream>>>(call, sums_grad);
    const int64_t parts = parts_of<Own>(sizes);
    const Partials partials = {empty_workspace<A>(parts * sizes.channels * (sizes.width + 1), like), parts};
    const unsigned shares = grid_of(parts * ceil_divide(sizes.channels, int64_t{Own::kLanes}) *
                                        ceil_divide(sizes.width, int64_t{kTapsOfBlock}),
                                    "causal_conv1d_backward");
    const int elements = Own::size(Own::kTimes + kTapsOfBlock) + Own::size(Own::kTimes);
    const size_t of_shares = std::max(elements, (kOwn + 1) * kThreads) * sizeof(A);
    weight_grad_kernel<T, Own><<<shares, kThreads, of_shares, stream>>>(
        call, sums_grad, mutable_data_of<A>(partials.memory), parts);
    return partials;
  });
}

#define INSTANTIATE(T)                                            \
  template void forward_wide<T>(const Forward<T>&, cudaStream_t); \
  template Partials backward_wide<T>(const Backward<T>&, accumulate_t<T>*, const Tensor&, cudaStream_t);
INSTANTIATE(double)
INSTANTIATE(float)
INSTANTIATE(Half)
INSTANTIATE(BFloat16)
#undef INSTANTIATE

}  // namespace torchgraft::causal_conv1d
