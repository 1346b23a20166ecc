// Weight gradient for any geometry, layout and dtype, 32 bits inside an image.
//
// A block owns some channels, a group of taps (3 x 3, 5 x 5, 7 x 7 or 1 x 5) and a chunk of the output pixels
// of all images; a thread owns that group of taps of one channel, at every so-manyeth place of the chunk,
// with its sums in registers. A place is one pixel, or four or eight of a column that share rows of the
// input: 22 loads for 36 multiply-adds of 3 x 3 taps, 44 for 100 of 5 x 5. In NHWC a power of two of lanes
// lies along channels, in NCHW all lie along places. At the end lanes of one channel are added up by shuffles
// and warps through shared memory, in a fixed order. Where one chunk will do, the block writes the gradient
// itself: for small problems a second pass costs more than parallelism gains. Else there are enough chunks to
// fill a large device, added up by a second pass (chunks.cuh).
//
// Bound by instructions, some 50 a pixel for 3 x 3 taps and 90 for 5 x 5: (64,96,56x56,k3,dilation 2)
// predicted 0.04 ms fp32 and bf16 (floors 0.037 and 0.019).

#include "../kernels.h"

#include "../chunks.cuh"
#include "../index.cuh"

namespace torchgraft::depthwise::cuda {
namespace {

// Taps of a thread, and pixels of a place: neighbours among these lie kStep taps apart in the input.
template <int kRowCount, int kColumnCount, int kPixelCount, int kStepCount = 1>
struct TapGroup {
  static constexpr int kRows = kRowCount;
  static constexpr int kColumns = kColumnCount;
  static constexpr int kTaps = kRowCount * kColumnCount;
  static constexpr int kPixels = kPixelCount;
  static constexpr int kStep = kStepCount;
  static constexpr int kWindow = (kPixels - 1) * kStep + kRows;  // rows of the input under a place
  static constexpr int kLoads = kWindow * kColumns + kPixels;
  // As many as may have the registers for all loads of a place.
  static constexpr int kMostThreadBits = kTaps > 25 ? 8 : kTaps * kPixels > 36 ? 9 : 10;
  static constexpr int kMostThreads = 1 << kMostThreadBits;
};

// What lies between neighbours, in elements; a row and a pixel are of the same image.
struct ImagePitches {
  int image, channel, row, pixel;
};

struct GatherWeightGradParameters {
  int input_height, input_width, output_height;
  FastDivisor columns, rows;  // of places, of an image
  FastDivisor spacing;        // rows between the pixels of a place
  int stride_y, stride_x, padding_y, padding_x, dilation_y, dilation_x;
  int kernel_height, kernel_width;
  FastDivisor multiplier;
  int output_channels;
  ImagePitches input, output_grad;
  int row_step, column_step;          // elements of the input between two taps
  int grad_step;                      // elements of the output gradient between two pixels of a place
  FastDivisor slices;                 // of the channels
  FastDivisor groups, column_groups;  // of the taps, in all and of a kernel row
  int lane_bits;                      // 2**lane_bits lanes lie along channels
  int places, places_of_chunk;
  bool single_chunk;
};

// One thread: a group of taps of one channel, at its share of the places of a chunk. Arrays of a thread are
// local variables of its methods: while a loop over one is not unrolled, the compiler keeps the whole object
// that holds it in memory.
template <typename T, typename Group>
class GatherWeightGrad {
 public:
  using Accumulate = accumulate_t<T>;
  using Sums = Accumulate[Group::kRows][Group::kColumns];

  __device__ explicit GatherWeightGrad(const GatherWeightGradParameters& parameters)
      : parameters_(parameters) {
    int slice = static_cast<int>(blockIdx.x);
    int group = split(slice, parameters.slices);
    chunk_ = split(group, parameters.groups);
    const int group_row = parameters.column_groups.divide(group);
    first_row_ = group_row * Group::kRows;
    first_column_ = (group - group_row * parameters.column_groups.divisor()) * Group::kColumns;
    thread_ = static_cast<int>(threadIdx.x);
    threads_ = static_cast<int>(blockDim.x);
    lanes_ = 1 << parameters.lane_bits;
    channel_lane_ = thread_ & (lanes_ - 1);
    first_channel_ = slice << parameters.lane_bits;
  }

  __device__ void run(const T* output_grad, const T* input, T* weight_grad, Accumulate* partial) const {
    Sums sums = {};
    const int channel = first_channel_ + channel_lane_;
    if (channel < parameters_.output_channels) {
      add_places(kept(output_grad + static_cast<int64_t>(channel) * parameters_.output_grad.channel),
                 kept(input + static_cast<int64_t>(parameters_.multiplier.divide(channel)) *
                                  parameters_.input.channel),
                 sums);
    }
    share_sums(sums);
    __syncthreads();
    store_sums(weight_grad, partial);
  }

 private:
  // Adds the products of all places of this thread.
  __device__ void add_places(const T* channel_grad, const T* channel_input, Sums& sums) const {
    const int begin = chunk_ * parameters_.places_of_chunk;
    const int end = min(begin + parameters_.places_of_chunk, parameters_.places);
    const int first_y = first_row_ * parameters_.dilation_y - parameters_.padding_y;
    const int first_x = first_column_ * parameters_.dilation_x - parameters_.padding_x;
#pragma unroll 1
    for (int place = begin + (thread_ >> parameters_.lane_bits); place < end;
         place += threads_ >> parameters_.lane_bits) {
      int x = place;
      int y = split(x, parameters_.columns);
      const int image = split(y, parameters_.rows);
      if constexpr (Group::kPixels > 1) {
        y += parameters_.spacing.divide(y) * (Group::kPixels - 1) * parameters_.spacing.divisor();
      }
      Accumulate grads[Group::kPixels];
      load_grads(kept(channel_grad + static_cast<int64_t>(image) * parameters_.output_grad.image), y, x,
                 grads);
      const int column = x * parameters_.stride_x + first_x;
      const int row = y * parameters_.stride_y + first_y;
      add_window(kept(channel_input + static_cast<int64_t>(image) * parameters_.input.image), row, column,
                 grads, sums);
    }
  }

  // Loads the gradients of a place's pixels.
  __device__ void load_grads(const T* grads_of_place, int y, int x,
                             Accumulate (&grads)[Group::kPixels]) const {
    const int grad_offset = y * parameters_.output_grad.row + x * parameters_.output_grad.pixel;
#pragma unroll
    for (int k = 0; k < Group::kPixels; ++k) {
      // The first pixel may lie below the image as well: rows are rounded up to whole places.
      grads[k] =
          load_if(Group::kPixels == 1 || y + k * parameters_.spacing.divisor() < parameters_.output_height,
                  grads_of_place + (grad_offset + k * parameters_.grad_step));
    }
  }

  // Adds the products of a place's gradients and the inputs under it. Taps beside the kernel are summed too,
  // and thrown away.
  __device__ void add_window(const T* window, int row, int column, const Accumulate (&grads)[Group::kPixels],
                             Sums& sums) const {
    const int offset = row * parameters_.input.row + column * parameters_.input.pixel;
#pragma unroll
    for (int i = 0; i < Group::kWindow; ++i) {
      const bool is_row = is_inside(row + i * parameters_.dilation_y, parameters_.input_height);
      Accumulate values[Group::kColumns];
#pragma unroll
      for (int j = 0; j < Group::kColumns; ++j) {
        const bool is_source =
            is_row && is_inside(column + j * parameters_.dilation_x, parameters_.input_width);
        values[j] =
            load_if(is_source, window + (offset + i * parameters_.row_step + j * parameters_.column_step));
      }
#pragma unroll
      for (int k = 0; k < Group::kPixels; ++k) {
        const int tap_row = i - k * Group::kStep;
        if (tap_row < 0 || tap_row >= Group::kRows) continue;
#pragma unroll
        for (int j = 0; j < Group::kColumns; ++j) sums[tap_row][j] += grads[k] * values[j];
      }
    }
  }

  // Adds up the lanes of a channel in each warp; shared memory then holds [warp][tap][channel].
  __device__ void share_sums(Sums& sums) const {
    Accumulate* shared = shared_memory<Accumulate>();
#pragma unroll 1
    for (int distance = 16; distance >= lanes_; distance /= 2) {
#pragma unroll
      for (int i = 0; i < Group::kRows; ++i) {
#pragma unroll
        for (int j = 0; j < Group::kColumns; ++j) {
          sums[i][j] += __shfl_down_sync(0xffffffff, sums[i][j], distance);
        }
      }
    }
    if (thread_ % 32 < lanes_) {
      Accumulate* own = shared + thread_ / 32 * (Group::kTaps * lanes_) + channel_lane_;
#pragma unroll
      for (int i = 0; i < Group::kRows; ++i) {
#pragma unroll
        for (int j = 0; j < Group::kColumns; ++j) own[(i * Group::kColumns + j) * lanes_] = sums[i][j];
      }
    }
  }

  // Adds up the warps, and stores the sums. Neighbouring threads have neighbouring taps of one channel, as
  // they lie in device memory.
  __device__ void store_sums(T* weight_grad, Accumulate* partial) const {
    const Accumulate* shared = shared_memory<Accumulate>();
    const int warp_sums = Group::kTaps * lanes_;
#pragma unroll 1
    for (int i = thread_; i < warp_sums; i += threads_) {
      const int block_channel = i / Group::kTaps;
      const int tap = i % Group::kTaps;
      const int row = first_row_ + tap / Group::kColumns;
      const int column = first_column_ + tap % Group::kColumns;
      const int output_channel = first_channel_ + block_channel;
      if (output_channel >= parameters_.output_channels || row >= parameters_.kernel_height ||
          column >= parameters_.kernel_width) {
        continue;
      }
      const Accumulate sum = sum_in_order(shared + tap * lanes_ + block_channel, threads_ / 32, warp_sums);
      const int taps = parameters_.kernel_height * parameters_.kernel_width;
      const int64_t index =
          static_cast<int64_t>(output_channel) * taps + row * parameters_.kernel_width + column;
      if (parameters_.single_chunk) {
        weight_grad[index] = static_cast<T>(sum);
      } else {
        partial[static_cast<int64_t>(chunk_) * parameters_.output_channels * taps + index] = sum;
      }
    }
  }

  const GatherWeightGradParameters& parameters_;
  int chunk_;
  int first_row_, first_column_;  // of the group of taps
  int thread_, threads_;
  int lanes_, channel_lane_;  // along channels
  int first_channel_;         // of the block
};

template <typename T, typename Group>
__global__ void __launch_bounds__(Group::kMostThreads, 1)
    gather_weight_grad(const T* __restrict__ output_grad, const T* __restrict__ input,
                       T* __restrict__ weight_grad, accumulate_t<T>* __restrict__ partial,
                       const __grid_constant__ GatherWeightGradParameters parameters) {
  GatherWeightGrad<T, Group>(parameters).run(output_grad, input, weight_grad, partial);
}

// How many places and groups of taps a pass has.
template <typename Group>
struct GroupedPlaces {
  int64_t spacing = 1, rows, places;
  int64_t column_groups, groups;

  explicit GroupedPlaces(const Geometry& geometry) {
    const Extent& height = geometry.height;
    rows = height.output;
    if constexpr (Group::kPixels > 1) {
      spacing = Group::kStep * height.dilation / height.stride;
      rows = ceil_divide(rows, spacing * Group::kPixels) * spacing;
    }
    places = geometry.batch * rows * geometry.width.output;
    column_groups = ceil_divide<int64_t>(geometry.width.kernel, Group::kColumns);
    groups = column_groups * ceil_divide<int64_t>(height.kernel, Group::kRows);
  }
};

// How a pass is cut into threads and chunks, and the cycles that it takes by a rough count.
struct GatherWeightGradPlan {
  int lane_bits, threads;
  Chunks chunks;  // of places
  int64_t cycles = INT64_MAX;
};

// A number divided by a power of two, and rounded up.
constexpr int64_t shifted_up(int64_t number, int bits) { return (number + (int64_t{1} << bits) - 1) >> bits; }

// Shared memory for the sums of all warps, of as many channels as lanes lie along them.
template <typename T, typename Group>
int64_t gather_weight_grad_bytes(int lane_bits, int threads) {
  return int64_t{sizeof(accumulate_t<T>)} * Group::kTaps * ((threads / 32) << lane_bits);
}

// The plan of a group that takes the fewest cycles of the device by a rough count. It is made for each call:
// lanes and threads are powers of two, which spares the host most divisions. A dilation far beyond the image
// makes many places, and a plan that is never the best.
template <typename T, typename Group>
GatherWeightGradPlan plan_gather_weight_grad(const Geometry& geometry, Layout layout,
                                             int64_t multiprocessors) {
  constexpr int kManyThreadBits = 8;  // of a block, where there are many blocks
  constexpr int kFewThreadBits = 6;   // where few places would leave threads of a larger block idle
  constexpr int kWarpBits = 5;
  const int64_t wanted_blocks = 16 * multiprocessors;
  constexpr int64_t kLeastTurns = 4;
  constexpr int64_t kLineBytes = 128;
  // A turn's: addresses and conditions of loads, multiply-adds, and where its place lies.
  constexpr int64_t kInstructions = 5 * Group::kLoads + Group::kTaps * Group::kPixels + 40;
  constexpr int64_t kWaiting = 800 + 2 * kInstructions;  // cycles of a turn, however few threads there are
  constexpr int64_t kWarpSum = 40;       // cycles in which the sums of one warp more are added
  constexpr int64_t kSecondPass = 5000;  // cycles
  const GroupedPlaces<Group> grouped(geometry);
  const int64_t channels = geometry.output_channels();
  const int64_t pixel_bytes = channels * int64_t{sizeof(T)};
  const auto cycles = [&](int lane_bits, int thread_bits, const Chunks& chunks) {
    const int64_t warps = int64_t{1} << (thread_bits - kWarpBits);
    const int64_t blocks = shifted_up(channels, lane_bits) * grouped.groups * chunks.count;
    const int64_t turns = shifted_up(chunks.units_of_chunk, thread_bits - lane_bits);
    // Of one load of a warp a cycle for each line that it touches; of four instructions that a cycle has room
    // for, two are issued.
    const int64_t pixels = int64_t{1} << (kWarpBits - lane_bits);
    const int64_t lines = layout == Layout::contiguous
                              ? 2
                              : std::min(pixels, ceil_divide<int64_t>(pixels * pixel_bytes, kLineBytes));
    const int64_t busy = std::max(Group::kLoads * lines, kInstructions / 2) * warps;
    // Registers hold as many threads as a block may have, in one block or in several.
    const int together_bits = Group::kMostThreadBits - thread_bits;
    const int64_t blocks_of_multiprocessor = ceil_divide(blocks, multiprocessors);
    const int64_t at_once = std::min(int64_t{1} << together_bits, blocks_of_multiprocessor);
    const int64_t shuffles = Group::kTaps * (kWarpBits - lane_bits) * warps * at_once;
    return shifted_up(blocks_of_multiprocessor, together_bits) *
               (turns * std::max(kWaiting, busy * at_once) + shuffles + warps * kWarpSum) +
           (chunks.count > 1 ? kSecondPass : 0);
  };
  const int64_t most = most_chunks(geometry, layout);
  const Chunks one_chunk = make_chunks(grouped.places, grouped.places, 1);
  GatherWeightGradPlan best = {};
  const auto take = [&](int lane_bits, int thread_bits, const Chunks& chunks) {
    constexpr int64_t kSharedBytes = 48 * 1024;
    const int threads = 1 << thread_bits;
    if (gather_weight_grad_bytes<T, Group>(lane_bits, threads) > kSharedBytes) return;
    const int64_t needed = cycles(lane_bits, thread_bits, chunks);
    if (needed < best.cycles) best = {lane_bits, threads, chunks, needed};
  };
  for (int lane_bits = layout == Layout::channels_last ? kWarpBits : 0; lane_bits >= 0; --lane_bits) {
    const int64_t blocks_of_chunk = shifted_up(channels, lane_bits) * grouped.groups;
    take(lane_bits, kManyThreadBits,
         make_chunks(grouped.places, kLeastTurns << (kManyThreadBits - lane_bits),
                     std::min(most, ceil_divide(wanted_blocks, blocks_of_chunk))));
    // One chunk: as many threads as have something to do.
    int thread_bits = kFewThreadBits;
    while (thread_bits < Group::kMostThreadBits && shifted_up(grouped.places, thread_bits - lane_bits) > 1) {
      ++thread_bits;
    }
    take(lane_bits, thread_bits, one_chunk);
  }
  return best;
}

template <typename T, typename Group>
void launch(const WeightGrad<T>& pass, const GatherWeightGradPlan& plan) {
  const auto& [output_grad, input, weight_grad, workspace, geometry, layout, stream] = pass;
  const char* name = pass.kName;
  const Extent& height = geometry.height;
  const Extent& width = geometry.width;
  const GroupedPlaces<Group> grouped(geometry);
  const auto number = [](int64_t value) { return static_cast<int>(value); };
  const auto pitches = [&](int64_t channels, int64_t image_height, int64_t image_width) {
    const int64_t plane = image_height * image_width;
    const int image = number(channels * plane);
    return layout == Layout::channels_last
               ? ImagePitches{image, 1, number(image_width * channels), number(channels)}
               : ImagePitches{image, number(plane), number(image_width), 1};
  };
  GatherWeightGradParameters parameters = {};
  parameters.input_height = number(height.input);
  parameters.input_width = number(width.input);
  parameters.output_height = number(height.output);
  parameters.columns = FastDivisor(number(width.output));
  parameters.rows = FastDivisor(number(grouped.rows));
  parameters.spacing = FastDivisor(number(grouped.spacing));
  parameters.stride_y = number(height.stride);
  parameters.stride_x = number(width.stride);
  parameters.padding_y = number(height.padding);
  parameters.padding_x = number(width.padding);
  parameters.dilation_y = number(height.dilation);
  parameters.dilation_x = number(width.dilation);
  parameters.kernel_height = number(height.kernel);
  parameters.kernel_width = number(width.kernel);
  parameters.multiplier = FastDivisor(number(geometry.multiplier));
  parameters.output_channels = number(geometry.output_channels());
  parameters.input = pitches(geometry.channels, height.input, width.input);
  parameters.output_grad = pitches(geometry.output_channels(), height.output, width.output);
  parameters.row_step = number(height.dilation * parameters.input.row);
  parameters.column_step = number(width.dilation * parameters.input.pixel);
  parameters.grad_step = number(grouped.spacing * parameters.output_grad.row);
  const int64_t slices = ceil_divide(geometry.output_channels(), int64_t{1} << plan.lane_bits);
  parameters.slices = FastDivisor(number(slices));
  parameters.groups = FastDivisor(number(grouped.groups));
  parameters.column_groups = FastDivisor(number(grouped.column_groups));
  parameters.lane_bits = plan.lane_bits;
  parameters.places = number(plan.chunks.units);
  parameters.places_of_chunk = number(plan.chunks.units_of_chunk);
  T* const direct = weight_grad.direct(plan.chunks.count);
  accumulate_t<T>* const partial = weight_grad.partials(plan.chunks.count, workspace);
  parameters.single_chunk = direct != nullptr;
  const int64_t blocks = checked_product(slices * grouped.groups, plan.chunks.count, name);
  const size_t bytes = static_cast<size_t>(gather_weight_grad_bytes<T, Group>(plan.lane_bits, plan.threads));
  gather_weight_grad<T, Group><<<grid_of(blocks, name), plan.threads, bytes, stream>>>(
      output_grad, input, direct, partial, parameters);
  check_launch(name);
  if (plan.chunks.count > 1) {
    launch_sum_chunks(partial, weight_grad, geometry, plan.chunks.count, stream);
  }
}

}  // namespace

template <typename T>
void launch_gather_weight_grad(const WeightGrad<T>& pass) {
  const Geometry& geometry = pass.geometry;
  const int64_t multiprocessors = current_device().multiprocessors;
  GatherWeightGradPlan best = {};
  void (*launch_best)(const WeightGrad<T>&, const GatherWeightGradPlan&) = nullptr;
  const auto consider = [&]<typename Group>(Group) {
    const GatherWeightGradPlan plan =
        plan_gather_weight_grad<T, Group>(geometry, pass.layout, multiprocessors);
    if (plan.cycles >= best.cycles) return;
    best = plan;
    launch_best = launch<T, Group>;
  };
  consider(TapGroup<3, 3, 1>());
  consider(TapGroup<1, 5, 1>());
  if constexpr (!std::is_same_v<T, double>) {
    const Extent& height = geometry.height;
    // Pixels of a place lie one tap apart in the input, or two: that must be whole rows of the output
    // gradient.
    const bool has_places = height.dilation % height.stride == 0;
    const bool has_strided_places = !has_places && 2 * height.dilation % height.stride == 0;
    if (has_places) {
      consider(TapGroup<3, 3, 4>());
      consider(TapGroup<3, 3, 8>());
      consider(TapGroup<5, 5, 4>());
      consider(TapGroup<7, 7, 4>());
    }
    if (has_strided_places) {
      consider(TapGroup<3, 3, 4, 2>());
      consider(TapGroup<5, 5, 4, 2>());
    }
  }
  launch_best(pass, best);
}

template void launch_gather_weight_grad(const WeightGrad<double>&);
template void launch_gather_weight_grad(const WeightGrad<float>&);
template void launch_gather_weight_grad(const WeightGrad<Half>&);
template void launch_gather_weight_grad(const WeightGrad<BFloat16>&);

}  // namespace torchgraft::depthwise::cuda
