// causal_conv1d, its gradient, and a step of decoding on CPU: host functions, work for threads, registration.
//
// The kernels lie in cpu/, by how the input lies in memory. They compute one sequence at a time, whether it
// is an item of a batch or one of several that are packed in it. Backward, each unit of work leaves its sums
// for the gradients of weight and bias, which are added up here in their order: on any number of threads the
// bits are the same.

#include <torchgraft/cpu.h>
#include <torchgraft/registration.h>

#include <algorithm>
#include <sstream>
#include <vector>

#include "cpu/kernels.h"
#include "host.h"

namespace torchgraft::causal_conv1d {
namespace {

// Another thread joins in only for at least this many elements, of a weight of four taps.
constexpr int64_t kGrain = 8192;

int64_t grain_of(int64_t units, int64_t elements, int64_t width) {
  const int64_t grain = kGrain * 4 / std::max<int64_t>(width, 4);
  return std::max<int64_t>(grain * units / std::max<int64_t>(elements, 1), 1);
}

int64_t offset_at(const Packing& packing, int64_t i) {
  return packing.has_wide_offsets ? static_cast<const int64_t*>(packing.offsets)[i]
                                  : static_cast<const int32_t*>(packing.offsets)[i];
}

// Numbers as Python writes a list of them.
std::string in_words(const std::vector<int64_t>& numbers) {
  std::ostringstream list;
  for (size_t i = 0; i < numbers.size(); ++i) list << (i == 0 ? "" : ", ") << numbers[i];
  return "[" + list.str() + "]";
}

void add_packed(const char* name, const Sizes& sizes, const Packing& packing,
                std::vector<Segment>& segments) {
  std::vector<int64_t> offsets;
  for (int64_t i = 0; i <= sizes.states; ++i) offsets.push_back(offset_at(packing, i));
  TORCHGRAFT_CHECK(offsets.front() == 0 && offsets.back() == sizes.length && std::ranges::is_sorted(offsets),
                   name, ": cu_seqlens must begin with 0, never fall, and end with ", sizes.length, ", got ",
                   in_words(offsets));
  for (int64_t i = 0; i < sizes.states; ++i) {
    segments.push_back({0, offsets[i], offsets[i + 1] - offsets[i], i, i, false});
  }
}

// The runs of equal ids in an item. The first one goes on from the initial state, and the last one is
// that of the final state.
void add_runs(const Sizes& sizes, const int32_t* ids, int64_t item, std::vector<Segment>& segments) {
  int64_t begin = 0;
  do {
    int64_t end = begin;
    while (end < sizes.length && ids[end] == ids[begin]) ++end;
    segments.push_back({item, begin, end - begin, begin == 0 ? item : -1, end == sizes.length ? item : -1,
                        begin < end && ids[begin] < 0});
    begin = end;
  } while (begin < sizes.length);
}

std::vector<Segment> segments_of(const char* name, const Sizes& sizes, const Packing& packing) {
  std::vector<Segment> segments;
  if (packing.offsets != nullptr) {
    add_packed(name, sizes, packing, segments);
    return segments;
  }
  for (int64_t item = 0; item < sizes.batch; ++item) {
    if (packing.ids != nullptr) {
      add_runs(sizes, packing.ids + item * sizes.length, item, segments);
    } else {
      segments.push_back({item, 0, sizes.length, item, item, false});
    }
  }
  return segments;
}

Work work_of(const char* name, const Sizes& sizes, const Packing& packing) {
  const Blocks blocks = blocks_of(compiled_width(sizes.width), sizes.channels_last);
  Work work;
  // A row is read from its beginning to its end by one thread. Channels side by side are one tile where there
  // are few, so there the time is divided, too.
  std::vector<int64_t> borders = {0};
  for (const Segment& segment : segments_of(name, sizes, packing)) {
    int64_t from = 0;
    do {
      const int64_t to = std::min(from + blocks.times, segment.length);
      work.pieces.push_back({segment, from, to});
      from = to;
      if (sizes.channels_last || to == segment.length)
        borders.push_back(static_cast<int64_t>(work.pieces.size()));
    } while (from < segment.length);
  }
  // Backward, each group has sums of its own for each tap of each channel.
  const int64_t most = sizes.width > 8 ? 16 : 64, parts = static_cast<int64_t>(borders.size()) - 1;
  const int64_t groups = std::min(most, parts);
  for (int64_t group = 0; group <= groups; ++group) {
    work.groups.push_back(borders[groups == 0 ? 0 : group * parts / groups]);
  }
  work.tiles = ceil_divide(sizes.channels, blocks.channels);
  work.grain = grain_of(work.units(), sizes.batch * sizes.channels * sizes.length, sizes.width);
  return work;
}

std::tuple<Tensor, Tensor> forward_cpu(Tensor input, Tensor weight, std::optional<Tensor> bias,
                                       std::optional<Tensor> initial_state, Sequences sequences, bool silu) {
  return forward(input, weight, bias, initial_state, sequences, silu, []<typename T>(const Forward<T>& call) {
    const Work work = work_of("causal_conv1d_packed", call.sizes, call.packing);
    parallel_for(0, work.units(), work.grain, [&](int64_t begin, int64_t end) {
      call.sizes.channels_last ? run_channels_last(call, work, begin, end)
                               : run_channels_first(call, work, begin, end);
    });
  });
}

// Adds up what the groups left: the gradients of a channel's weight and then that of its bias.
template <typename A, typename W>
void sum_groups(const std::vector<A>& partials, const Sizes& sizes, W* weight_grad, W* bias_grad) {
  const int64_t width = sizes.width, columns = sizes.channels * (width + 1);
  const int64_t groups = static_cast<int64_t>(partials.size()) / columns;
  parallel_for(0, columns, kGrain, [&](int64_t begin, int64_t end) {
    for (int64_t column = begin; column < end; ++column) {
      A sum = 0;
      for (int64_t group = 0; group < groups; ++group) sum += partials[group * columns + column];
      const int64_t channel = column / (width + 1), tap = column % (width + 1);
      (tap < width ? weight_grad[channel * width + tap] : bias_grad[channel]) = static_cast<W>(sum);
    }
  });
}

std::tuple<Tensor, Tensor, Tensor, Tensor> backward_cpu(Tensor output_grad,
                                                        std::optional<Tensor> final_state_grad, Tensor input,
                                                        Tensor weight, std::optional<Tensor> bias,
                                                        std::optional<Tensor> initial_state,
                                                        Sequences sequences, bool silu,
                                                        std::optional<ScalarType> dtype) {
  return backward(
      output_grad, final_state_grad, input, weight, bias, initial_state, sequences, silu, dtype,
      []<typename T>(const Backward<T>& call, const Tensor& weight_grad, const Tensor& bias_grad) {
        const Work work = work_of("causal_conv1d_packed_backward", call.sizes, call.packing);
        const int64_t groups = static_cast<int64_t>(work.groups.size()) - 1;
        std::vector<accumulate_t<T>> partials(
            static_cast<size_t>(groups * call.sizes.channels * (call.sizes.width + 1)));
        parallel_for(0, work.units(), work.grain, [&](int64_t begin, int64_t end) {
          call.sizes.channels_last ? run_channels_last(call, work, begin, end, partials.data())
                                   : run_channels_first(call, work, begin, end, partials.data());
        });
        dispatch_floating(weight_grad.scalar_type(), "causal_conv1d_backward", [&]<typename W>(Tag<W>) {
          sum_groups(partials, call.sizes, mutable_data_of<W>(weight_grad), mutable_data_of<W>(bias_grad));
        });
      });
}

std::tuple<Tensor, Tensor> causal_conv1d_cpu(Tensor input, Tensor weight, std::optional<Tensor> bias,
                                             std::optional<Tensor> initial_state,
                                             std::optional<Tensor> seq_idx, bool silu) {
  return forward_cpu(input, weight, bias, initial_state, {seq_idx, std::nullopt}, silu);
}

std::tuple<Tensor, Tensor> causal_conv1d_packed_cpu(Tensor input, Tensor weight, std::optional<Tensor> bias,
                                                    std::optional<Tensor> initial_state, Tensor cu_seqlens,
                                                    bool silu) {
  return forward_cpu(input, weight, bias, initial_state, {std::nullopt, cu_seqlens}, silu);
}

std::tuple<Tensor, Tensor, Tensor, Tensor> causal_conv1d_backward_cpu(
    Tensor output_grad, std::optional<Tensor> final_state_grad, Tensor input, Tensor weight,
    std::optional<Tensor> bias, std::optional<Tensor> initial_state, std::optional<Tensor> seq_idx, bool silu,
    std::optional<ScalarType> dtype) {
  return backward_cpu(output_grad, final_state_grad, input, weight, bias, initial_state,
                      {seq_idx, std::nullopt}, silu, dtype);
}

std::tuple<Tensor, Tensor, Tensor, Tensor> causal_conv1d_packed_backward_cpu(
    Tensor output_grad, std::optional<Tensor> final_state_grad, Tensor input, Tensor weight,
    std::optional<Tensor> bias, std::optional<Tensor> initial_state, Tensor cu_seqlens, bool silu,
    std::optional<ScalarType> dtype) {
  return backward_cpu(output_grad, final_state_grad, input, weight, bias, initial_state,
                      {std::nullopt, cu_seqlens}, silu, dtype);
}

// Refuses rows that are not there, a row that two items would write to, and lengths that are negative.
template <typename T>
void check_contents(const Update<T>& call) {
  const char* const name = "causal_conv1d_update: ";
  std::vector<int64_t> lengths, rows;
  for (int64_t item = 0; item < call.batch; ++item) {
    if (call.cache_lengths != nullptr) lengths.push_back(call.cache_lengths[item]);
    if (call.rows != nullptr && call.rows[item] >= 0) rows.push_back(call.rows[item]);
  }
  TORCHGRAFT_CHECK(std::ranges::all_of(lengths, [](int64_t length) { return length >= 0; }), name,
                   "cache_seqlens must not be negative, got ", in_words(lengths));
  TORCHGRAFT_CHECK(std::ranges::all_of(rows, [&](int64_t row) { return row < call.state_rows; }), name,
                   "state_indices must be below the ", call.state_rows, " rows of state, got ",
                   in_words(rows));
  std::vector<int64_t> sorted = rows;
  std::ranges::sort(sorted);
  TORCHGRAFT_CHECK(std::ranges::adjacent_find(sorted) == sorted.end(), name,
                   "state_indices must name each row of state once at most, got ", in_words(rows));
}

Tensor causal_conv1d_update_cpu(Tensor input, Tensor state, Tensor weight, std::optional<Tensor> bias,
                                std::optional<Tensor> cache_seqlens, std::optional<Tensor> state_indices,
                                bool silu) {
  return update(
      input, state, weight, bias, cache_seqlens, state_indices, silu, []<typename T>(const Update<T>& call) {
        check_contents(call);
        const int64_t units = call.batch * update_tiles(call.channels, call.width);
        const int64_t grain = grain_of(units, call.batch * call.channels * call.length, call.width);
        parallel_for(0, units, grain, [&](int64_t begin, int64_t end) { run_update(call, begin, end); });
      });
}

}  // namespace

TORCHGRAFT_KERNEL(torchgraft, CPU, causal_conv1d, causal_conv1d_cpu)
TORCHGRAFT_KERNEL(torchgraft, CPU, causal_conv1d_backward, causal_conv1d_backward_cpu)
TORCHGRAFT_KERNEL(torchgraft, CPU, causal_conv1d_packed, causal_conv1d_packed_cpu)
TORCHGRAFT_KERNEL(torchgraft, CPU, causal_conv1d_packed_backward, causal_conv1d_packed_backward_cpu)
TORCHGRAFT_KERNEL(torchgraft, CPU, causal_conv1d_update, causal_conv1d_update_cpu)

}  // namespace torchgraft::causal_conv1d
