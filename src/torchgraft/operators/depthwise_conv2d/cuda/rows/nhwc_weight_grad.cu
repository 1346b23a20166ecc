// Weight gradient on rows in NHWC, of any stride and dilation.
//
// A thread owns one, two or four neighbouring channels of up to eight taps, which neighbouring sources meet,
// and walks along rows of the output gradient: of four gradients and the sources of all its taps it keeps the
// latter in registers from step to step, so that a step of four results loads four gradients and four
// sources. Lanes lie along channels. The threads of a block with the same channels have other taps, or other
// parts of the rows: those with other taps read the same sources, which come from L1. In the end a block adds
// up its threads' sums in order through shared memory and writes one chunk of partial sums for the second
// pass, or, if there is but one chunk, the gradient itself.
#include "../chunks.cuh"
#include "../kernels.h"

#include <torchgraft/device.cuh>
#include <torchgraft/packed.cuh>

#include "../index.cuh"
#include "nhwc.cuh"

namespace torchgraft::depthwise::cuda {
namespace {

struct NhwcWeightGradParameters {
  int source, result, kernel, stride, padding, dilation;
  int channels;
  int result_step, source_step, tap_step;  // of a row (SharingSteps)
  int groups;                              // of taps, each a thread's
  int stretch;                             // results of a unit
  int units, units_of_chunk;
  int pitch;  // of the sums of a slot in shared memory
  FastDivisor lanes, channel_groups, group_blocks, groups_of_block, groups_of_run;
  FastDivisor stretches, classes;
};

constexpr int kGradsAtOnce = 4;

// The taps of a thread.
struct OwnTaps {
  int first, count;

  __device__ OwnTaps(const NhwcWeightGradParameters& parameters, int group, int owned) {
    int of_run = group;
    const int run = split(of_run, parameters.groups_of_run);
    first = run + of_run * owned * parameters.tap_step;
    const int left = parameters.kernel - first;
    count = group < parameters.groups && left > 0
                ? min(owned, (left + parameters.tap_step - 1) / parameters.tap_step)
                : 0;
  }
};

template <typename T, int kChannels, int kTaps>
class PixelTapSums {
 public:
  // Adds the products of a stretch of so many gradients, from places x on, with the sources from `place` on.
  __device__ __forceinline__ void add(const NhwcWeightGradParameters& parameters, const T* grads,
                                      const T* sources, int x, int place, int count) {
    constexpr int kHeld = kTaps - 1, kWindow = kHeld + kGradsAtOnce;
    const int channels = parameters.channels;
    float window[kWindow][kChannels];
    const auto load_source = [&](int at, Packed<T, kChannels>& source) {
      source = {};
      if (is_inside(at, parameters.source)) source.load(sources + at * channels);
    };
    const auto widen = [](const Packed<T, kChannels>& packed, float (&values)[kChannels]) {
#pragma unroll
      for (int k = 0; k < kChannels; ++k) values[k] = packed[k];
    };
    {
      Packed<T, kChannels> first[kHeld];
#pragma unroll
      for (int i = 0; i < kHeld; ++i) load_source(place + i * parameters.source_step, first[i]);
#pragma unroll
      for (int i = 0; i < kHeld; ++i) widen(first[i], window[i]);
    }
    place += kHeld * parameters.source_step;
#pragma unroll 1
    for (int left = count; left > 0; left -= kGradsAtOnce) {
      Packed<T, kChannels> grad[kGradsAtOnce], source[kGradsAtOnce];
#pragma unroll
      for (int i = 0; i < kGradsAtOnce; ++i) {
        grad[i] = {};
        if (i < left) grad[i].load(grads + (x + i * parameters.result_step) * channels);
        load_source(place + i * parameters.source_step, source[i]);
      }
#pragma unroll
      for (int i = 0; i < kGradsAtOnce; ++i) widen(source[i], window[kHeld + i]);
#pragma unroll
      for (int i = 0; i < kGradsAtOnce; ++i) {
        // A source that no gradient meets may be infinite.
        if (i >= left) break;
#pragma unroll
        for (int k = 0; k < kChannels; ++k) {
          const float of_result = grad[i][k];
#pragma unroll
          for (int tap = 0; tap < kTaps; ++tap) {
            sums_[tap][k] = fmaf(of_result, window[i + tap][k], sums_[tap][k]);
          }
        }
      }
#pragma unroll
      for (int i = 0; i < kHeld; ++i) {
#pragma unroll
        for (int k = 0; k < kChannels; ++k) window[i][k] = window[i + kGradsAtOnce][k];
      }
      x += kGradsAtOnce * parameters.result_step;
      place += kGradsAtOnce * parameters.source_step;
    }
  }

  // Writes the sums as [tap][slot][channel of the block].
  __device__ void share(float* shared, int slot, int slots, int pitch, int channel) const {
#pragma unroll
    for (int tap = 0; tap < kTaps; ++tap) {
#pragma unroll
      for (int k = 0; k < kChannels; ++k) shared[(tap * slots + slot) * pitch + channel + k] = sums_[tap][k];
    }
  }

 private:
  float sums_[kTaps][kChannels] = {};
};

template <typename T, int kChannels, int kTaps>
__global__ void __launch_bounds__(kPixelThreads, 2)
    rows_nhwc_weight_grad(const T* __restrict__ output_grad, const T* __restrict__ input,
                          float* __restrict__ partial, T* __restrict__ weight_grad,
                          const __grid_constant__ NhwcWeightGradParameters parameters) {
  const int lanes = parameters.lanes.divisor(), slots = kPixelThreads / lanes;
  const int groups_of_block = parameters.groups_of_block.divisor();
  int channel_group = static_cast<int>(blockIdx.x);
  int group_block = split(channel_group, parameters.channel_groups);
  const int chunk = split(group_block, parameters.group_blocks);
  const int first_channel = channel_group * lanes * kChannels;
  const int channels = min(lanes * kChannels, parameters.channels - first_channel);
  int lane = static_cast<int>(threadIdx.x);
  const int slot = split(lane, parameters.lanes), channel = lane * kChannels;
  int of_block = slot;
  const int part = split(of_block, parameters.groups_of_block), parts = slots / groups_of_block;
  const OwnTaps taps(parameters, group_block * groups_of_block + of_block, kTaps);

  PixelTapSums<T, kChannels, kTaps> sums;
  const bool has_work = slot < slots && part < parts && channel < channels && taps.count > 0;
  const int end = has_work ? min(parameters.units, (chunk + 1) * parameters.units_of_chunk) : 0;
#pragma unroll 1
  for (int unit = chunk * parameters.units_of_chunk + part; unit < end; unit += parts) {
    int of_class = unit;
    int stretch = split(of_class, parameters.classes);
    const int image = split(stretch, parameters.stretches);
    const int first = stretch * parameters.stretch;
    const int x = of_class + first * parameters.result_step;
    if (x >= parameters.result) continue;
    const int count = min(parameters.stretch,
                          (parameters.result - x + parameters.result_step - 1) / parameters.result_step);
    const int64_t own = first_channel + channel;
    sums.add(parameters,
             output_grad + static_cast<int64_t>(image) * parameters.result * parameters.channels + own,
             input + static_cast<int64_t>(image) * parameters.source * parameters.channels + own, x,
             x * parameters.stride - parameters.padding + taps.first * parameters.dilation, count);
  }
  float* const shared = shared_memory<float>();
  if (slot < slots && channel < channels) sums.share(shared, slot, slots, parameters.pitch, channel);
  __syncthreads();

  const int64_t all_weights = static_cast<int64_t>(parameters.channels) * parameters.kernel;
  const int count = groups_of_block * kTaps * channels;
  for (int i = static_cast<int>(threadIdx.x); i < count; i += kPixelThreads) {
    const int rest = i / channels, of_channel = i - rest * channels;
    const int of_group = rest / kTaps, tap = rest - of_group * kTaps;
    const OwnTaps own(parameters, group_block * groups_of_block + of_group, kTaps);
    if (tap >= own.count) continue;
    const float sum = sum_in_order(shared + (tap * slots + of_group) * parameters.pitch + of_channel, parts,
                                   groups_of_block * parameters.pitch);
    const int64_t index = static_cast<int64_t>(first_channel + of_channel) * parameters.kernel + own.first +
                          tap * parameters.tap_step;
    if (weight_grad != nullptr) {
      weight_grad[index] = static_cast<T>(sum);
    } else {
      partial[chunk * all_weights + index] = sum;
    }
  }
}

template <typename T, int kChannels, int kTaps>
void launch(const WeightGrad<T>& pass, const PixelTaps& taps) {
  const Geometry& geometry = pass.geometry;
  const SharingSteps steps(geometry.width, /*transposed=*/false);
  NhwcWeightGradParameters parameters = {};
  const Extent& width = geometry.width;
  parameters.source = static_cast<int>(width.input);
  parameters.result = static_cast<int>(width.output);
  parameters.kernel = static_cast<int>(width.kernel);
  parameters.stride = static_cast<int>(width.stride);
  parameters.padding = static_cast<int>(width.padding);
  parameters.dilation = static_cast<int>(width.dilation);
  parameters.channels = static_cast<int>(geometry.channels);
  parameters.result_step = steps.results;
  parameters.source_step = steps.sources;
  parameters.tap_step = steps.taps;
  parameters.groups = taps.groups();
  const PixelWeightGradPlan plan(geometry, taps, kChannels, current_device().multiprocessors,
                                 most_chunks(geometry, Layout::channels_last));
  parameters.stretch = plan.stretch;
  parameters.units = plan.units;
  parameters.units_of_chunk = plan.units_of_chunk;
  parameters.pitch = plan.lanes.lanes * kChannels;
  parameters.lanes = FastDivisor(plan.lanes.lanes);
  parameters.channel_groups = FastDivisor(plan.lanes.groups);
  parameters.group_blocks = FastDivisor(plan.group_blocks);
  parameters.groups_of_block = FastDivisor(plan.groups_of_block);
  parameters.groups_of_run = FastDivisor(taps.groups_of_run);
  parameters.stretches = FastDivisor(plan.stretches);
  parameters.classes = FastDivisor(plan.classes);
  const unsigned grid = grid_of(int64_t{plan.chunks} * plan.group_blocks * plan.lanes.groups, pass.kName);
  const int64_t bytes =
      int64_t{kTaps} * plan.lanes.slots() * parameters.pitch * static_cast<int64_t>(sizeof(float));
  rows_nhwc_weight_grad<T, kChannels, kTaps><<<grid, kPixelThreads, bytes, pass.stream>>>(
      pass.output_grad, pass.input, pass.weight_grad.partials(plan.chunks, pass.workspace),
      pass.weight_grad.direct(plan.chunks), parameters);
  check_launch(pass.kName);
  if (plan.chunks > 1)
    launch_sum_chunks(pass.workspace, pass.weight_grad, geometry, plan.chunks, pass.stream);
}

}  // namespace

template <typename T>
void launch_rows_nhwc_weight_grad(const WeightGrad<T>& pass) {
  const PixelTaps taps(pass.geometry.width);
  with_pixel_channels<T>(pass.geometry.channels, common_alignment(pass.output_grad, pass.input),
                         [&]<int kChannels>() {
                           switch (taps.owned) {
                             case 2:
                               return launch<T, kChannels, 2>(pass, taps);
                             case 3:
                               return launch<T, kChannels, 3>(pass, taps);
                             case 4:
                               return launch<T, kChannels, 4>(pass, taps);
                             case 6:
                               return launch<T, kChannels, 6>(pass, taps);
                             default:
                               return launch<T, kChannels, kPixelTapsAtOnce>(pass, taps);
                           }
                         });
}

template void launch_rows_nhwc_weight_grad(const WeightGrad<float>&);
template void launch_rows_nhwc_weight_grad(const WeightGrad<Half>&);
template void launch_rows_nhwc_weight_grad(const WeightGrad<BFloat16>&);

}  // namespace torchgraft::depthwise::cuda
