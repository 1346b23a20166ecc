// The recurrence of a whole sequence forward on the whole grid, with weight_hh in shared memory, in float.
//
// A block owns kUnits units: their rows of weight_hh, three gates a unit, lie in its shared memory from the
// first step to the last, 12 * units bytes a unit. A step is
//
//     h of all units from L2 -> sums of the own gates -> own h, c, activations -> barrier of the grid
//
// All blocks must be resident at once, which a cooperative launch guarantees or refuses.
//
// On an H200 a step costs 1.0 us for the barrier, batch * units * 4 bytes a block from L2, and 3 * batch *
// units**2 / blocks multiply-adds a block, at half of the peak because of shared memory: 14 us for 64 rows of
// 1024 units. It takes 19 us, as reading rows from L2 and multiplying them do not overlap well with so few
// warps.

#include "rows.cuh"

namespace torchgraft::lltm::cuda {
namespace {

template <int kUnits, bool kWhole>
__global__ void __launch_bounds__(kBlock, 1) grid_forward(ForwardPass pass) {
  constexpr int kColumns = 3 * kUnits;
  const int units = static_cast<int>(pass.units);
  const int batch = static_cast<int>(pass.batch);
  const int pitch = padded_depth(units);
  const int first_unit = static_cast<int>(blockIdx.x) * kUnits;
  float* weights = shared_memory<float>();
  float* sums = weights + kColumns * pitch;

  const float* weight = pass.weight.floats();
  for (int i = static_cast<int>(threadIdx.x); i < kColumns * pitch; i += kBlock) {
    const int k = i % pitch;
    const int unit = first_unit + i / pitch % kUnits;
    const int gate = i / pitch / kUnits;
    const bool is_there = k < units && unit < units;
    weights[i] = is_there ? weight[(static_cast<int64_t>(gate) * units + unit) * units + k] : 0.0f;
  }
  __syncthreads();

  const auto grid = cooperative_groups::this_grid();
  const int64_t state = static_cast<int64_t>(batch) * units;
  const float* bias = pass.bias.floats();
  float* output = pass.output.floats();
  const float* h = pass.h0.floats();
  const float* c = pass.c0.floats();
  for (int64_t step = 0; step < pass.steps; ++step) {
    const int64_t t = pass.reverse ? pass.steps - 1 - step : step;
    multiply_rows<kColumns, kWhole>(h, weights, sums, batch, units);
    __syncthreads();
    for (int i = static_cast<int>(threadIdx.x); i < batch * kUnits; i += kBlock) {
      const int row = i / kUnits;
      const int unit = first_unit + i % kUnits;
      if (unit >= units) continue;
      const int64_t place = static_cast<int64_t>(row) * units + unit;
      float* activations = pass.activations + (t * batch + row) * 3 * units + unit;
      float gates[3];
#pragma unroll
      for (int g = 0; g < 3; ++g) {
        gates[g] = activations[g * units] + sum_of_parts<kColumns>(sums, batch, row, g * kUnits + i % kUnits);
        if (bias != nullptr) gates[g] += bias[g * units + unit];
      }
      float c_after = c[place];
      const float h_after = step_forward(gates[0], gates[1], gates[2], c_after);
#pragma unroll
      for (int g = 0; g < 3; ++g) activations[g * units] = gates[g];
      pass.cells[t * state + place] = c_after;
      output[t * state + place] = h_after;
    }
    h = output + t * state;
    c = pass.cells + t * state;
    if (step + 1 < pass.steps) grid.sync();
  }
}

}  // namespace

int resident_grid_forward(const Problem& problem, Kernel kernel, int64_t shared_bytes) {
  return with_grid_shape(problem, kernel, [&]<typename S>(Tag<S>, auto whole) {
    return resident_groups<S>(reinterpret_cast<const void*>(grid_forward<S::kUnits, whole>), 1, shared_bytes);
  });
}

void launch_grid_forward(const Problem& problem, Kernel kernel, ForwardTensors& tensors) {
  with_grid_shape(problem, kernel, [&]<typename S>(Tag<S>, auto whole) {
    launch_on_grid<S>(grid_forward<S::kUnits, whole>, problem, ForwardPass(tensors), tensors.stream);
  });
}

}  // namespace torchgraft::lltm::cuda
