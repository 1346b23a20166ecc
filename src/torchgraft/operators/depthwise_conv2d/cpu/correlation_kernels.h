// The kernels and biases of a correlation on CPU, laid out for its loops: a vector for the channels of a
// block.
#pragma once

#include <torchgraft/cpu.h>
#include <torchgraft/dispatch.h>

#include <algorithm>
#include <cstdint>
#include <vector>

#include "blocks.h"
#include "correlation.h"

namespace torchgraft::depthwise::cpu {

// Multiply-adds that are worth a thread.
inline constexpr int64_t kGrain = 1 << 18;

// Kernels as [block][source][tap][lane] and bias as [block][lane].
template <typename T>
class PackedKernels {
 public:
  using A = accumulate_t<T>;

  // bias may be null.
  PackedKernels(const T* weight, const T* bias, const Correlation& correlation, const Blocks& blocks)
      : correlation_(correlation),
        blocks_(blocks),
        kernels_(blocks.count * correlation.sources() * correlation.taps() * blocks.lanes),
        bias_(blocks.count * blocks.lanes) {
    const int64_t work = correlation.sources() * correlation.taps() * blocks.lanes;
    parallel_for(0, blocks.count, std::max<int64_t>(kGrain / work, 1), [&](int64_t begin, int64_t end) {
      for (int64_t block = begin; block < end; ++block) pack(block, weight, bias);
    });
  }

  // A plane of the kernels that a block has for one of its sources; its rows lie `row_elements()` apart.
  const A* plane(int64_t block, int64_t source, int64_t plane) const {
    return kernels_.data() + first(block, source) + plane * correlation_.height.kernel * row_elements();
  }
  int64_t row_elements() const { return correlation_.width.kernel * blocks_.block_lanes(); }
  const A* bias(int64_t block) const { return bias_.data() + block * blocks_.lanes; }

 private:
  void pack(int64_t block, const T* weight, const T* bias) {
    const int64_t taps = correlation_.taps();
    Channels<const T> channels = {weight, {}, 0, 1};
    for (int64_t source = 0; source < correlation_.sources(); ++source) {
      channels.count = 0;
      const int64_t begin = blocks_.begin(block);
      for (int64_t lane = begin; lane < std::min(begin + blocks_.lanes, blocks_.channels); ++lane) {
        const int64_t channel = lane % correlation_.destination_channels;
        channels.offsets[channels.count++] = correlation_.kernel(channel, source) * taps;
        if (bias != nullptr) bias_[block * blocks_.lanes + lane - begin] = static_cast<A>(bias[channel]);
      }
      gather(channels, 0, kernels_.data() + first(block, source), blocks_.block_lanes(), taps);
    }
  }

  int64_t first(int64_t block, int64_t source) const {
    return (block * correlation_.sources() * blocks_.lanes + source * blocks_.block_lanes()) *
           correlation_.taps();
  }

  const Correlation& correlation_;
  const Blocks& blocks_;
  std::vector<A> kernels_;
  std::vector<A> bias_;
};

}  // namespace torchgraft::depthwise::cpu
