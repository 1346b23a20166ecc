// The recurrence of a whole sequence back on the whole grid, with weight_hh in shared memory, in float.
//
// A block owns kUnits units, whose columns of weight_hh lie in its shared memory. A step is
//
//     own gradients of gates -> barrier of the grid -> those of all units from L2 -> own gradients of h
//
// which reads three times as much as going forward (forward.cu). 64 rows of 1024 units take 17 to 23 us.

#include "rows.cuh"

namespace torchgraft::lltm::cuda {
namespace {

template <int kUnits, bool kWhole>
__global__ void __launch_bounds__(kBlock, 1) grid_backward(BackwardPass pass) {
  const int units = static_cast<int>(pass.units);
  const int batch = static_cast<int>(pass.batch);
  const int depth = 3 * units;
  const int pitch = padded_depth(depth);
  const int first_unit = static_cast<int>(blockIdx.x) * kUnits;
  float* weights = shared_memory<float>();
  float* sums = weights + kUnits * pitch;

  const float* weight = pass.weight.floats();
  const float* output_grad = pass.output_grad.floats();
  for (int i = static_cast<int>(threadIdx.x); i < kUnits * pitch; i += kBlock) {
    const int k = i / kUnits;
    const int unit = first_unit + i % kUnits;
    const bool is_there = k < depth && unit < units;
    weights[i % kUnits * pitch + k] = is_there ? weight[static_cast<int64_t>(k) * units + unit] : 0.0f;
  }
  __syncthreads();

  const auto grid = cooperative_groups::this_grid();
  const int64_t state = static_cast<int64_t>(batch) * units;
  for (int64_t step = 0; step < pass.steps; ++step) {
    const int64_t t = pass.reverse ? step : pass.steps - 1 - step;
    for (int i = static_cast<int>(threadIdx.x); i < batch * kUnits; i += kBlock) {
      const int row = i / kUnits;
      const int unit = first_unit + i % kUnits;
      if (unit >= units) continue;
      const int64_t place = static_cast<int64_t>(row) * units + unit;
      const int64_t first = (t * batch + row) * 3 * units + unit;
      float gates[3];
#pragma unroll
      for (int g = 0; g < 3; ++g) gates[g] = pass.activations[first + g * units];
      float h_grad = step == 0 ? pass.h_grad[place] : sum_of_parts<kUnits>(sums, batch, row, i % kUnits);
      if (output_grad != nullptr) h_grad += output_grad[t * state + place];
      float c_grad = pass.c_grad[place];
      step_back(gates[0], gates[1], gates[2], pass.cells[t * state + place], h_grad, c_grad);
#pragma unroll
      for (int g = 0; g < 3; ++g) pass.gates_grad[first + g * units] = gates[g];
      pass.c_grad[place] = c_grad;
    }
    grid.sync();
    multiply_rows<kUnits, kWhole>(pass.gates_grad + t * 3 * state, weights, sums, batch, depth);
    __syncthreads();
  }
  for (int i = static_cast<int>(threadIdx.x); i < batch * kUnits; i += kBlock) {
    const int row = i / kUnits;
    const int unit = first_unit + i % kUnits;
    if (unit >= units) continue;
    pass.h_grad[static_cast<int64_t>(row) * units + unit] =
        sum_of_parts<kUnits>(sums, batch, row, i % kUnits);
  }
}

}  // namespace

int resident_grid_backward(const Problem& problem, Kernel kernel, int64_t shared_bytes) {
  return with_grid_shape(problem, kernel, [&]<typename S>(Tag<S>, auto whole) {
    return resident_groups<S>(reinterpret_cast<const void*>(grid_backward<S::kUnits, whole>), 1,
                              shared_bytes);
  });
}

void launch_grid_backward(const Problem& problem, Kernel kernel, BackwardTensors& tensors) {
  with_grid_shape(problem, kernel, [&]<typename S>(Tag<S>, auto whole) {
    launch_on_grid<S>(grid_backward<S::kUnits, whole>, problem, BackwardPass(tensors), tensors.stream);
  });
}

}  // namespace torchgraft::lltm::cuda
