// A kernel that writes the rows of a matrix that it computes as it goes: h before each step of a sequence,
// say.
#pragma once

#include <torchgraft/cuda.cuh>

#include "../kernels.h"

namespace torchgraft::lltm::cuda {

constexpr int kLanes = 32;
constexpr int kRowsOfBlock = 8;
constexpr int kRowsInFlight = 8;  // elements of a thread

// h before each step of a sequence; a result has a row for each row of the batch and step.
template <typename T>
struct HiddenSource {
  using A = accumulate_t<T>;
  const A* activations;
  const A* cells;
  const T* h0;
  int64_t steps;
  int64_t batch;
  int64_t units;
  bool reverse;

  HiddenSource(const HiddenStates& states, const Sizes& sizes)
      : activations(data<A>(states.activations)),
        cells(data<A>(states.cells)),
        h0(data<T>(states.h0)),
        steps(sizes.steps),
        batch(sizes.batch),
        units(sizes.units),
        reverse(states.reverse) {}

  struct Row {
    const A* output_gates;
    const A* cells;
    const T* h0;

    __device__ A operator[](int64_t unit) const {
      if (h0 != nullptr) return static_cast<A>(h0[unit]);
      return tanh(cells[unit]) * output_gates[unit];
    }
  };

  __device__ Row operator()(int64_t row) const {
    const int64_t t = row / batch;
    if (t == (reverse ? steps - 1 : 0)) return {nullptr, nullptr, h0 + (row - t * batch) * units};
    const int64_t before = reverse ? row + batch : row - batch;
    return {activations + (3 * before + 1) * units, cells + before * units, nullptr};
  }
};

// Stores every element of `source`, (rows, columns), to `sink`, and zeros behind each row up to its pitch.
template <typename Source, typename Sink>
__global__ void __launch_bounds__(kLanes* kRowsOfBlock)
    products_rows(Source source, Sink sink, int64_t rows, int64_t columns) {
  const int64_t row = static_cast<int64_t>(blockIdx.x) * kRowsOfBlock + threadIdx.y;
  if (row >= rows) return;
  const int64_t first = static_cast<int64_t>(blockIdx.y) * kLanes * kRowsInFlight + threadIdx.x;
  const auto from = source(row);
  std::decay_t<decltype(from[0])> values[kRowsInFlight];
#pragma unroll
  for (int i = 0; i < kRowsInFlight; ++i) {
    const int64_t column = first + i * kLanes;
    values[i] = column < columns ? from[column] : std::decay_t<decltype(from[0])>(0);
  }
#pragma unroll
  for (int i = 0; i < kRowsInFlight; ++i) {
    const int64_t column = first + i * kLanes;
    if (column < sink.pitch) sink.store(row, column, values[i]);
  }
}

template <typename Source, typename Sink>
void launch_rows(const Source& source, const Sink& sink, int64_t rows, int64_t columns, cudaStream_t stream) {
  if (rows == 0) return;
  const dim3 grid(grid_of(ceil_divide<int64_t>(rows, kRowsOfBlock), "lltm_grads"),
                  grid_of(ceil_divide<int64_t>(sink.pitch, kLanes * kRowsInFlight), "lltm_grads"));
  products_rows<<<grid, dim3(kLanes, kRowsOfBlock), 0, stream>>>(source, sink, rows, columns);
  check_launch("lltm_grads");
}

template <typename A>
struct RowsSink {
  A* matrix;
  int64_t pitch;

  __device__ void store(int64_t row, int64_t column, A value) const { matrix[row * pitch + column] = value; }
};

// h before each step of a sequence, in the dtype of sums.
template <typename T>
Tensor hidden_before(const GradTensors& tensors) {
  using A = accumulate_t<T>;
  const Sizes& sizes = tensors.sizes;
  Tensor result = empty_of({sizes.rows(), sizes.units}, dtype_of<A>(), tensors.input);
  launch_rows(HiddenSource<T>(*tensors.states, sizes), RowsSink<A>{mutable_data<A>(result), sizes.units},
              sizes.rows(), sizes.units, tensors.stream);
  return result;
}

}  // namespace torchgraft::lltm::cuda
