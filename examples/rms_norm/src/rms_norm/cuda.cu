// rms_norm on CUDA, with and without an addition before it, and the gradient of both.
//
// A row of blockDim.x threads owns a row of the input, or takes one after the other, and keeps it in
// registers, kVectors vectors of sixteen bytes a thread, between its sums and its results: each byte is read
// once and written once. Rows of 32 threads or fewer share a block, and sum by shuffles alone; wider rows
// have a block each, of at most 512 threads. Rows that are wider still are streamed: read twice, the second
// time from the cache.
//
// The gradient of the weight is a sum over all rows. A block goes over many rows and keeps its part of that
// sum in registers; then the parts of all blocks, a row each of `partials`, are summed in their order. So the
// result has the same bits at each run.

#include <torchgraft/registration.h>
#include <torchgraft/cuda.cuh>
#include <torchgraft/packed.cuh>
#include <torchgraft/sums.cuh>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <type_traits>

#include "host.h"

namespace rms_norm {
namespace {

constexpr int kWarp = 32;
// A row of threads has at most this many, and where rows share a block, the block has so many.
constexpr int kMostThreads = 512, kSharedThreads = 256;
// With as many vectors a thread, accumulators of the weight's gradient still fit into 128 registers.
constexpr int kMostVectors = 4;
// Threads of a multiprocessor whose registers hold two vectors of a row and of the next one; of four vectors
// five eighths of them.
constexpr int kForwardThreads = 1024;
// Threads of a multiprocessor in the backward pass. More blocks are more partial sums to write and to read.
constexpr int kBackwardThreads = 512;

template <typename T, int kElements>
__device__ const Vector<T, kElements>* vectors_of(const T* row) {
  return reinterpret_cast<const Vector<T, kElements>*>(row);
}
template <typename T, int kElements>
__device__ Vector<T, kElements>* vectors_of(T* row) {
  return reinterpret_cast<Vector<T, kElements>*>(row);
}

// The vectors of a row that one thread owns: those at threadIdx.x, a row of threads further, and so on.
template <typename T, int kElements, int kVectors>
struct Share {
  Packed<T, kElements> vectors[kVectors];

  // The first `count` vectors of the row are there; zeros stand for the others, and for a row that is null.
  __device__ void load(const T* row, int count) {
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      vectors[v] = {};
      const int place = v * blockDim.x + threadIdx.x;
      if (row != nullptr && place < count) vectors[v].load(row + place * kElements);
    }
  }
  __device__ accumulate_t<T> at(int v, int e) const { return vectors[v][e]; }
};

template <typename T>
__device__ const T* row_of(const T* matrix, int64_t row, int64_t columns) {
  return matrix == nullptr ? nullptr : matrix + row * columns;
}

// Where results are rounded to two bytes the quick functions do, which are off by some 1e-7 of it.
template <typename T>
__device__ accumulate_t<T> mean_of(const Problem<T>& problem, accumulate_t<T> sum) {
  const auto columns = static_cast<accumulate_t<T>>(problem.columns);
  if constexpr (sizeof(T) == 2) {
    return __fdividef(sum, columns);
  } else {
    return sum / columns;
  }
}

template <typename T>
__device__ accumulate_t<T> scale_of(const Problem<T>& problem, accumulate_t<T> squares) {
  const accumulate_t<T> mean = mean_of(problem, squares) + problem.epsilon;
  if constexpr (sizeof(T) == 2) {
    return rsqrtf(mean);
  } else {
    return accumulate_t<T>{1} / std::sqrt(mean);
  }
}

// Rows of two-byte elements are so short a time under way that a block goes over many and reads the next one
// while it sums this one. Otherwise each row has threads of its own.
template <typename T>
constexpr bool reads_ahead(bool adds) {
  return sizeof(T) == 2 && !adds;
}

// What is read of a row before its sum.
template <typename T, int kElements, int kVectors, bool kAdds>
struct ForwardShare {
  Share<T, kElements, kVectors> input, residual;

  // A block's last rows may not be there; its threads take part in the sums all the same.
  __device__ void load(const Problem<T>& problem, int64_t row) {
    const int count = row < problem.rows ? static_cast<int>(problem.columns / kElements) : 0;
    input.load(row_of(problem.input, row, problem.columns), count);
    if constexpr (kAdds) residual.load(row_of(problem.residual, row, problem.columns), count);
  }
};

template <typename T, int kElements, int kVectors, bool kAdds>
__global__ void __launch_bounds__(kMostThreads) rms_norm_rows(Problem<T> problem) {
  using A = accumulate_t<T>;
  constexpr bool kReadsAhead = reads_ahead<T>(kAdds);
  const int count = static_cast<int>(problem.columns / kElements);
  const int64_t step = static_cast<int64_t>(gridDim.x) * blockDim.y;
  ForwardShare<T, kElements, kVectors, kAdds> next;
  if (kReadsAhead) next.load(problem, static_cast<int64_t>(blockIdx.x) * blockDim.y + threadIdx.y);
  Share<T, kElements, kVectors> weight;
  if (kReadsAhead) weight.load(problem.weight, count);
  int turn = 0;
  for (int64_t first = static_cast<int64_t>(blockIdx.x) * blockDim.y; first < problem.rows; first += step) {
    const int64_t row = first + threadIdx.y;
    if (!kReadsAhead) next.load(problem, row);
    A totals[kVectors][kElements], squares[1] = {};
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
#pragma unroll
      for (int e = 0; e < kElements; ++e) {
        totals[v][e] = next.input.at(v, e);
        if constexpr (kAdds) totals[v][e] += next.residual.at(v, e);
        squares[0] += totals[v][e] * totals[v][e];
      }
    }
    // They are under way while the threads wait for each other.
    if (kReadsAhead) {
      next.load(problem, row + step);
    } else {
      weight.load(problem.weight, count);
    }
    sum_over_x<kMostThreads>(squares, turn);
    turn ^= 1;
    const A scale = scale_of(problem, squares[0]);
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      const int place = v * blockDim.x + threadIdx.x;
      if (row >= problem.rows || place >= count) continue;
      Vector<T, kElements> output, total;
#pragma unroll
      for (int e = 0; e < kElements; ++e) {
        output[e] = static_cast<T>(totals[v][e] * scale * weight.at(v, e));
        total[e] = static_cast<T>(totals[v][e]);
      }
      vectors_of<T, kElements>(problem.output + row * problem.columns)[place] = output;
      if constexpr (kAdds) vectors_of<T, kElements>(problem.total + row * problem.columns)[place] = total;
    }
  }
}

// What the backward pass reads of a row before its sums.
template <typename T, int kElements, int kVectors, bool kAdds>
struct BackwardShare {
  Share<T, kElements, kVectors> input, output_grad, residual;

  __device__ void load(const Problem<T>& problem, int64_t row) {
    const int count = row < problem.rows ? static_cast<int>(problem.columns / kElements) : 0;
    input.load(row_of(problem.input, row, problem.columns), count);
    output_grad.load(row_of(problem.output_grad, row, problem.columns), count);
    if constexpr (kAdds) residual.load(row_of(problem.residual, row, problem.columns), count);
  }
  __device__ accumulate_t<T> total(int v, int e) const {
    if constexpr (kAdds) return input.at(v, e) + residual.at(v, e);
    return input.at(v, e);
  }
};

template <typename T, int kElements, int kVectors, bool kAdds>
__global__ void __launch_bounds__(kMostThreads) rms_norm_backward_rows(Problem<T> problem) {
  using A = accumulate_t<T>;
  // The next row is read while this one is summed, where there are registers for both.
  constexpr bool kReadsAhead = kVectors <= 2 && !(kAdds && kElements == 8);
  const int count = static_cast<int>(problem.columns / kElements);
  Share<T, kElements, kVectors> weight;
  weight.load(problem.weight, count);
  A weight_grad[kVectors][kElements] = {};
  const int64_t step = static_cast<int64_t>(gridDim.x) * blockDim.y;
  int turn = 0;
  BackwardShare<T, kElements, kVectors, kAdds> next;
  if (kReadsAhead) next.load(problem, static_cast<int64_t>(blockIdx.x) * blockDim.y + threadIdx.y);
  for (int64_t first = static_cast<int64_t>(blockIdx.x) * blockDim.y; first < problem.rows; first += step) {
    const int64_t row = first + threadIdx.y;
    if (!kReadsAhead) next.load(problem, row);
    const BackwardShare<T, kElements, kVectors, kAdds> now = next;
    if (kReadsAhead) next.load(problem, row + step);
    A sums[2] = {};
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
#pragma unroll
      for (int e = 0; e < kElements; ++e) {
        const A total = now.total(v, e);
        sums[0] += total * total;
        sums[1] += now.output_grad.at(v, e) * weight.at(v, e) * total;
      }
    }
    Share<T, kElements, kVectors> total_grad;
    if constexpr (kAdds) {
      total_grad.load(row_of(problem.total_grad, row, problem.columns), row < problem.rows ? count : 0);
    }
    sum_over_x<kMostThreads>(sums, turn);
    turn ^= 1;
    const A scale = scale_of(problem, sums[0]);
    const A mean = mean_of(problem, sums[1]) * scale;
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      const int place = v * blockDim.x + threadIdx.x;
      if (row >= problem.rows || place >= count) continue;
      Vector<T, kElements> input_grad;
#pragma unroll
      for (int e = 0; e < kElements; ++e) {
        const A normalized = now.total(v, e) * scale, output_grad = now.output_grad.at(v, e);
        A grad = scale * (output_grad * weight.at(v, e) - normalized * mean);
        if constexpr (kAdds) grad += total_grad.at(v, e);
        input_grad[e] = static_cast<T>(grad);
        weight_grad[v][e] += output_grad * normalized;
      }
      vectors_of<T, kElements>(problem.output + row * problem.columns)[place] = input_grad;
    }
  }
  if (!sum_over_y(weight_grad)) return;
  A* const partials = problem.partials + blockIdx.x * problem.columns;
#pragma unroll
  for (int v = 0; v < kVectors; ++v) {
    const int place = v * blockDim.x + threadIdx.x;
    if (place >= count) continue;
#pragma unroll
    for (int e = 0; e < kElements; ++e) partials[place * kElements + e] = weight_grad[v][e];
  }
}

// One vector of a row that is streamed: the sum of input and residual.
template <typename T, int kElements>
__device__ Vector<accumulate_t<T>, kElements> total_at(const Problem<T>& problem, int64_t row,
                                                       int64_t place) {
  Vector<accumulate_t<T>, kElements> totals;
  const Vector<T, kElements> input = vectors_of<T, kElements>(problem.input + row * problem.columns)[place];
  Vector<T, kElements> residual = {};
  if (problem.residual != nullptr) {
    residual = vectors_of<T, kElements>(problem.residual + row * problem.columns)[place];
  }
#pragma unroll
  for (int e = 0; e < kElements; ++e) {
    totals[e] = static_cast<accumulate_t<T>>(input[e]) + static_cast<accumulate_t<T>>(residual[e]);
  }
  return totals;
}

template <typename T, int kElements>
__global__ void __launch_bounds__(kMostThreads) rms_norm_streamed(Problem<T> problem) {
  using A = accumulate_t<T>;
  const int64_t row = blockIdx.x, count = problem.columns / kElements;
  A squares[1] = {};
  for (int64_t place = threadIdx.x; place < count; place += kMostThreads) {
    const Vector<A, kElements> totals = total_at<T, kElements>(problem, row, place);
#pragma unroll
    for (int e = 0; e < kElements; ++e) squares[0] += totals[e] * totals[e];
  }
  sum_over_x<kMostThreads>(squares);
  const A scale = scale_of(problem, squares[0]);
  for (int64_t place = threadIdx.x; place < count; place += kMostThreads) {
    const Vector<A, kElements> totals = total_at<T, kElements>(problem, row, place);
    const Vector<T, kElements> weight = vectors_of<T, kElements>(problem.weight)[place];
    Vector<T, kElements> output, total;
#pragma unroll
    for (int e = 0; e < kElements; ++e) {
      output[e] = static_cast<T>(totals[e] * scale * static_cast<A>(weight[e]));
      total[e] = static_cast<T>(totals[e]);
    }
    vectors_of<T, kElements>(problem.output + row * problem.columns)[place] = output;
    if (problem.total != nullptr) {
      vectors_of<T, kElements>(problem.total + row * problem.columns)[place] = total;
    }
  }
}

template <typename T, int kElements>
__global__ void __launch_bounds__(kMostThreads) rms_norm_backward_streamed(Problem<T> problem) {
  using A = accumulate_t<T>;
  const int64_t count = problem.columns / kElements;
  A* const partials = problem.partials + blockIdx.x * problem.columns;
  int turn = 0;
  for (int64_t row = blockIdx.x; row < problem.rows; row += gridDim.x) {
    const T* const output_grads = problem.output_grad + row * problem.columns;
    A sums[2] = {};
    for (int64_t place = threadIdx.x; place < count; place += kMostThreads) {
      const Vector<A, kElements> totals = total_at<T, kElements>(problem, row, place);
      const Vector<T, kElements> weight = vectors_of<T, kElements>(problem.weight)[place];
      const Vector<T, kElements> output_grad = vectors_of<T, kElements>(output_grads)[place];
#pragma unroll
      for (int e = 0; e < kElements; ++e) {
        sums[0] += totals[e] * totals[e];
        sums[1] += static_cast<A>(output_grad[e]) * static_cast<A>(weight[e]) * totals[e];
      }
    }
    sum_over_x<kMostThreads>(sums, turn);
    turn ^= 1;
    const A scale = scale_of(problem, sums[0]);
    const A mean = mean_of(problem, sums[1]) * scale;
    for (int64_t place = threadIdx.x; place < count; place += kMostThreads) {
      const Vector<A, kElements> totals = total_at<T, kElements>(problem, row, place);
      const Vector<T, kElements> weight = vectors_of<T, kElements>(problem.weight)[place];
      const Vector<T, kElements> output_grad = vectors_of<T, kElements>(output_grads)[place];
      Vector<T, kElements> total_grad = {}, input_grad;
      if (problem.total_grad != nullptr) {
        total_grad = vectors_of<T, kElements>(problem.total_grad + row * problem.columns)[place];
      }
#pragma unroll
      for (int e = 0; e < kElements; ++e) {
        const A normalized = totals[e] * scale, grad = static_cast<A>(output_grad[e]);
        input_grad[e] = static_cast<T>(scale * (grad * static_cast<A>(weight[e]) - normalized * mean) +
                                       static_cast<A>(total_grad[e]));
        A& partial = partials[place * kElements + e];
        partial = (row < gridDim.x ? A{0} : partial) + grad * normalized;
      }
      vectors_of<T, kElements>(problem.output + row * problem.columns)[place] = input_grad;
    }
  }
}

// How rows are cut: vectors a thread, none where rows are streamed, and the threads of a block.
struct Plan {
  int vectors;
  dim3 block;
};

// A thread takes two vectors of rows that are no wider than `narrow`, and four of others.
Plan plan_of(int64_t vectors, int64_t narrow) {
  if (vectors > kMostVectors * kMostThreads) return {0, dim3(kMostThreads)};
  const int each = vectors <= narrow ? 2 : kMostVectors;
  const int threads = static_cast<int>(ceil_divide(vectors, each));
  if (threads > kWarp) return {each, dim3(round_up(threads, kWarp))};
  unsigned width = 1;
  while (width < static_cast<unsigned>(threads)) width *= 2;
  return {each, dim3(width, kSharedThreads / width)};
}

// Calls `function` with how many elements a vector has, which 16 bytes hold where all pointers allow it.
template <typename T, typename Function>
void with_elements(const Problem<T>& problem, const Function& function) {
  const T* const pointers[] = {problem.input,      problem.residual, problem.weight, problem.output_grad,
                               problem.total_grad, problem.output,   problem.total};
  if (problem.columns % kVectorElements<T> == 0 &&
      std::all_of(std::begin(pointers), std::end(pointers), [](const T* at) { return is_aligned(at, 16); })) {
    function(std::integral_constant<int, kVectorElements<T>>{});
  } else {
    function(std::integral_constant<int, 1>{});
  }
}

struct Cuda {
  template <typename T>
  static void forward(const Problem<T>& problem, const Tensor& like) {
    const Launch scope(like);
    const bool adds = problem.residual != nullptr;
    with_elements(problem, [&](auto elements) {
      constexpr int kElements = decltype(elements)::value;
      const Plan plan = plan_of(problem.columns / kElements, kMostThreads);
      auto* const kernel = plan.vectors == 0           ? rms_norm_streamed<T, kElements>
                           : plan.vectors == 2 && adds ? rms_norm_rows<T, kElements, 2, true>
                           : plan.vectors == 2         ? rms_norm_rows<T, kElements, 2, false>
                           : adds                      ? rms_norm_rows<T, kElements, kMostVectors, true>
                                                       : rms_norm_rows<T, kElements, kMostVectors, false>;
      auto blocks = ceil_divide<int64_t>(problem.rows, plan.block.y);
      if (reads_ahead<T>(adds) && plan.vectors > 0) {
        const int threads = static_cast<int>(plan.block.x * plan.block.y);
        const int resident = plan.vectors == 2 ? kForwardThreads : kForwardThreads * 5 / 8;
        blocks =
            std::min<int64_t>(blocks, current_device().multiprocessors * std::max(resident / threads, 1));
      }
      kernel<<<grid_of(blocks, "rms_norm"), plan.block, 0, scope.stream()>>>(problem);
    });
    check_launch("rms_norm");
  }

  template <typename T>
  static void backward(Problem<T> problem, const Tensor& like) {
    const Launch scope(like);
    const bool adds = problem.residual != nullptr || problem.total_grad != nullptr;
    with_elements(problem, [&](auto elements) {
      constexpr int kElements = decltype(elements)::value;
      const Plan plan = plan_of(problem.columns / kElements, 2 * kMostThreads);
      const int threads = static_cast<int>(plan.block.x * plan.block.y);
      const int most = current_device().multiprocessors * std::max(kBackwardThreads / threads, 1);
      const auto rows = ceil_divide<int64_t>(problem.rows, plan.block.y);
      const int blocks = static_cast<int>(std::min<int64_t>(rows, most));
      const auto workspace = empty_workspace<accumulate_t<T>>(blocks * problem.columns, like);
      problem.partials = mutable_data_of<accumulate_t<T>>(workspace);
      auto* const kernel = plan.vectors == 0           ? rms_norm_backward_streamed<T, kElements>
                           : plan.vectors == 2 && adds ? rms_norm_backward_rows<T, kElements, 2, true>
                           : plan.vectors == 2         ? rms_norm_backward_rows<T, kElements, 2, false>
                           : adds ? rms_norm_backward_rows<T, kElements, kMostVectors, true>
                                  : rms_norm_backward_rows<T, kElements, kMostVectors, false>;
      if (blocks > 0) {
        kernel<<<static_cast<unsigned>(blocks), plan.block, 0, scope.stream()>>>(problem);
        check_launch("rms_norm_backward");
      }
      sum_partials(problem.partials, blocks, problem.columns, problem.weight_grad, scope.stream(),
                   "rms_norm_backward");
    });
  }
};

}  // namespace

TORCHGRAFT_KERNEL(rms_norm, CUDA, rms_norm, rms_norm<Cuda>)
TORCHGRAFT_KERNEL(rms_norm, CUDA, add_rms_norm, add_rms_norm<Cuda>)
TORCHGRAFT_KERNEL(rms_norm, CUDA, rms_norm_backward, rms_norm_backward<Cuda>)

}  // namespace rms_norm
