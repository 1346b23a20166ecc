// The unit's arithmetic on CUDA, in the type that sums are kept in, and kernels that take one step
// elementwise.
//
// A thread owns one unit of one row. Of each step the gates are read from what two products left, activations
// are written over the first; so a step moves about nine numbers a unit and is bound by memory, or by its
// launch where it is small.
#pragma once

#include <torchgraft/dispatch.h>
#include <torchgraft/cuda.cuh>

namespace torchgraft::lltm::cuda {

constexpr int kThreads = 256;

// Gates become activations, and c becomes c'; h' is returned.
template <typename T>
__device__ __forceinline__ T step_forward(T& i, T& o, T& z, T& c) {
  i = T(1) / (T(1) + exp(-i));
  o = T(1) / (T(1) + exp(-o));
  z = z > T(0) ? z : expm1(z);
  c += z * i;
  return tanh(c) * o;
}

// As step_forward in float, without branches, so that gates are computed side by side: within three units of
// the last place.
__device__ __forceinline__ float step_forward_quick(float& i, float& o, float& z, float& c) {
  i = __fdividef(1.0f, 1.0f + expf(-i));
  o = __fdividef(1.0f, 1.0f + expf(-o));
  // expm1, of little by its series.
  float series = fmaf(z, 1.0f / 5040, 1.0f / 720);
  series = fmaf(series, z, 1.0f / 120);
  series = fmaf(series, z, 1.0f / 24);
  series = fmaf(series, z, 1.0f / 6);
  series = fmaf(series, z, 0.5f);
  series = fmaf(series * z, z, z);
  const float below = z > -0.35f ? series : expf(z) - 1.0f;
  z = z > 0.0f ? z : below;
  c = fmaf(z, i, c);
  // tanh, of little by a polynomial.
  const float size = fabsf(c);
  const float square = c * c;
  float small = fmaf(square, 1.57394409e-2f, -5.23025580e-2f);
  small = fmaf(small, square, 1.33152470e-1f);
  small = fmaf(small, square, -3.33327681e-1f);
  small = fmaf(small * square, size, size);
  const float large = 1.0f - __fdividef(2.0f, 1.0f + expf(2.0f * size));
  return copysignf(size < 0.55f ? small : large, c) * o;
}

// What a unit's step back is made of before any gradient is known: of which gradient, h's or c's, each gate
// and c are how much.
template <typename T>
struct Slopes {
  T c_of_h;
  T i_of_c;
  T o_of_h;
  T z_of_c;

  __device__ __forceinline__ Slopes(T i, T o, T z, T c_after) {
    const T squashed = tanh(c_after);
    c_of_h = o * (T(1) - squashed * squashed);
    i_of_c = z * i * (T(1) - i);
    o_of_h = squashed * o * (T(1) - o);
    z_of_c = i * (z > T(0) ? T(1) : z + T(1));
  }

  // The gradients of gates, and c_grad becomes that of the c before.
  __device__ __forceinline__ void step_back(T& i, T& o, T& z, T h_grad, T& c_grad) const {
    c_grad += h_grad * c_of_h;
    i = c_grad * i_of_c;
    o = h_grad * o_of_h;
    z = c_grad * z_of_c;
  }
};

// Activations become the gradients of gates, and c_grad that of the c before.
template <typename T>
__device__ __forceinline__ void step_back(T& i, T& o, T& z, T c_after, T h_grad, T& c_grad) {
  Slopes<T>(i, o, z, c_after).step_back(i, o, z, h_grad, c_grad);
}

template <typename T>
struct ForwardStep {
  using Kept = accumulate_t<T>;
  const Kept* of_hidden;  // (batch, 3 units), h @ weight_hh.T
  const T* bias;          // (3 units), or null
  const T* c;             // (batch, units)
  Kept* activations;      // (batch, 3 units), in which the gates of the input come
  T* h_after;             // (batch, units)
  T* c_after;             // (batch, units)
  T* h_again;             // (batch, units), or null: h_after where the next product reads it
  int64_t count;          // batch * units
  int64_t units;
};

template <typename T>
__global__ void __launch_bounds__(kThreads) elementwise_forward(ForwardStep<T> step) {
  using Kept = accumulate_t<T>;
  const int64_t index = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (index >= step.count) return;
  const int64_t unit = index % step.units;
  const int64_t first = (index - unit) * 3 + unit;
  Kept gates[3];
#pragma unroll
  for (int g = 0; g < 3; ++g) {
    const int64_t place = first + g * step.units;
    gates[g] = step.activations[place] + step.of_hidden[place];
    if (step.bias != nullptr) gates[g] += static_cast<Kept>(step.bias[g * step.units + unit]);
  }
  Kept c = static_cast<Kept>(step.c[index]);
  const Kept h = step_forward(gates[0], gates[1], gates[2], c);
#pragma unroll
  for (int g = 0; g < 3; ++g) step.activations[first + g * step.units] = gates[g];
  step.h_after[index] = static_cast<T>(h);
  if (step.h_again != nullptr) step.h_again[index] = static_cast<T>(h);
  step.c_after[index] = static_cast<T>(c);
}

template <typename T, typename State = T>
struct BackwardStep {
  const T* activations;      // (batch, 3 units)
  const State* c;            // (batch, units), before the step, or after it where kAfter
  const State* h_grad;       // (batch, units), or null
  const State* output_grad;  // (batch, units), more of it, or null
  const State* c_grad;       // (batch, units), or null
  T* gates_grad;             // (batch, 3 units)
  State* c_before_grad;      // (batch, units)
  T* gates_grad_again;       // (batch, 3 units), or null: gates_grad where the next product reads it
  int64_t count;
  int64_t units;
};

template <typename T, bool kAfter, typename State>
__global__ void __launch_bounds__(kThreads) elementwise_backward(BackwardStep<T, State> step) {
  using Kept = accumulate_t<T>;
  const int64_t index = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (index >= step.count) return;
  const int64_t unit = index % step.units;
  const int64_t first = (index - unit) * 3 + unit;
  Kept gates[3];
#pragma unroll
  for (int g = 0; g < 3; ++g) gates[g] = static_cast<Kept>(step.activations[first + g * step.units]);
  Kept c_after = static_cast<Kept>(step.c[index]);
  if constexpr (!kAfter) c_after += gates[2] * gates[0];
  Kept h_grad = step.h_grad != nullptr ? static_cast<Kept>(step.h_grad[index]) : Kept(0);
  if (step.output_grad != nullptr) h_grad += static_cast<Kept>(step.output_grad[index]);
  Kept c_grad = step.c_grad != nullptr ? static_cast<Kept>(step.c_grad[index]) : Kept(0);
  step_back(gates[0], gates[1], gates[2], c_after, h_grad, c_grad);
#pragma unroll
  for (int g = 0; g < 3; ++g) {
    step.gates_grad[first + g * step.units] = static_cast<T>(gates[g]);
    if (step.gates_grad_again != nullptr) {
      step.gates_grad_again[first + g * step.units] = static_cast<T>(gates[g]);
    }
  }
  step.c_before_grad[index] = static_cast<State>(c_grad);
}

template <typename T>
void launch(const ForwardStep<T>& step, cudaStream_t stream) {
  if (step.count == 0) return;
  elementwise_forward<T>
      <<<grid_of(ceil_divide<int64_t>(step.count, kThreads), "lltm"), kThreads, 0, stream>>>(step);
  check_launch("lltm");
}

template <typename T, bool kAfter, typename State = T>
void launch(const BackwardStep<T, State>& step, cudaStream_t stream) {
  if (step.count == 0) return;
  elementwise_backward<T, kAfter, State>
      <<<grid_of(ceil_divide<int64_t>(step.count, kThreads), "lltm"), kThreads, 0, stream>>>(step);
  check_launch("lltm");
}

}  // namespace torchgraft::lltm::cuda
