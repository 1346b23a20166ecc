// The recurrence of a whole sequence back in float, up to 64 units, by one block alone for each few rows.
//
// A step is
//
//     own gradient of h -> own gradients of gates -> those to shared memory
//     -> the gradient of own h before, from those of all units
//
// What a step needs of device memory comes three steps ahead, into registers; a step ahead, what follows from
// it without any gradient is computed.

#include <torchgraft/async_copy.cuh>
#include <torchgraft/cuda.cuh>
#include <torchgraft/ptx.cuh>

#include "../groups.cuh"
#include "member.cuh"

namespace torchgraft::lltm::cuda {
namespace {

template <typename S, int kRows>
class Backward : FewUnitsMember<S, kRows> {
  using Member = FewUnitsMember<S, kRows>;
  using Member::add_up, Member::gate_of, Member::has_unit, Member::meet, Member::next_row, Member::place_of,
      Member::row_of, Member::state_of, Member::stores;
  using Member::kAlike, Member::kOwn, Member::first_, Member::part_, Member::steps_, Member::stride_,
      Member::unit_, Member::units_;
  static constexpr uint32_t kRow = 3 * S::kPitch;
  static constexpr uint32_t kBuffer = kRows * kRow;

  // What a step reads of a unit.
  struct Values {
    float gates[3] = {};
    float c = 0;
    DynamicInput::Bits output_grad;
  };

 public:
  __device__ __forceinline__ explicit Backward(const BackwardPass& pass)
      : Member(pass, !pass.reverse), pass_(pass) {}

  // `shared`: for the gradients of gates, of two steps by turns.
  __device__ __forceinline__ void run(uint32_t shared) {
    pass_.weight.visit([&](const auto* weight) { load_weights(weight); });
    of_part_ = shared + place_of(part_ * S::kPart);
    own_gates_ = shared + static_cast<uint32_t>(row_of(0)) * kRow + place_of(unit_);
    ptx::keep(of_part_);
    ptx::keep(own_gates_);
    fetched_gates_ = pass_.activations + 3 * first_ + gate_of(0);
    fetched_state_ = first_ + state_of(0);
    stored_ = pass_.gates_grad + 3 * (first_ - stride_) + gate_of(0);
    Values even[kOwn], odd[kOwn];
    fetch(0, even);
    fetch(1, odd);
    prepare(even);
    fetch(2, even);
#pragma unroll
    for (int own = 0; own < kOwn; ++own) {
      h_grad_[own] = pass_.h_grad[state_of(own)];
      c_grad_[own] = pass_.c_grad[state_of(own)];
    }
    for (int step = 0; step < steps_; step += 2) {
      advance(step, 0, odd);
      if (step + 1 == steps_) break;
      advance(step + 1, kBuffer, even);
    }
#pragma unroll
    for (int own = 0; own < kOwn; ++own) {
      if (!stores(own)) continue;
      pass_.h_grad[state_of(own)] = h_grad_[own];
      pass_.c_grad[state_of(own)] = c_grad_[own];
    }
  }

 private:
  template <typename Bits>
  __device__ __forceinline__ void load_weights(const Bits* weight) {
    // All are on their way before the first is converted.
    Bits bits[3][S::kPart] = {};
#pragma unroll
    for (int g = 0; g < 3; ++g) {
#pragma unroll
      for (int d = 0; d < S::kPart; ++d) {
        const int from = part_ * S::kPart + d;
        if (has_unit() && from < units_) bits[g][d] = weight[(int64_t{g} * units_ + from) * units_ + unit_];
      }
    }
#pragma unroll
    for (int g = 0; g < 3; ++g) {
#pragma unroll
      for (int d = 0; d < S::kPart; ++d) weights_[g][d] = pass_.weight.value_of(bits[g][d]);
    }
  }

  // What a step reads, and goes on to the next one if there is one.
  __device__ __forceinline__ void fetch(int step, Values (&values)[kOwn]) {
#pragma unroll
    for (int own = 0; own < kOwn; ++own) {
#pragma unroll
      for (int g = 0; g < 3; ++g) values[own].gates[g] = fetched_gates_[3 * next_row(own) + g * units_];
      const int64_t state = fetched_state_ + next_row(own);
      values[own].c = pass_.cells[state];
      if (pass_.output_grad) pass_.output_grad.load(state, values[own].output_grad);
    }
    const int64_t further = step + 1 < steps_ ? stride_ : 0;
    fetched_gates_ += 3 * further;
    fetched_state_ += further;
  }

  // What a step can compute before any gradient is known.
  __device__ __forceinline__ void prepare(const Values (&values)[kOwn]) {
#pragma unroll
    for (int own = 0; own < kOwn; ++own) {
      const Values& of = values[own];
      slopes_[own] = Slopes<float>(of.gates[0], of.gates[1], of.gates[2], of.c);
      // They are not to be computed where they are used.
      ptx::keep(slopes_[own].c_of_h);
      ptx::keep(slopes_[own].i_of_c);
      ptx::keep(slopes_[own].o_of_h);
      ptx::keep(slopes_[own].z_of_c);
      given_[own] = pass_.output_grad ? pass_.output_grad.value_of(of.output_grad) : 0.0f;
    }
  }

  // One step; `buffer` is where its gradients of gates begin in shared memory. `next` has what the next step
  // reads, and then what the step two after that reads.
  __device__ __forceinline__ void advance(int step, uint32_t buffer, Values (&next)[kOwn]) {
    stored_ += 3 * stride_;
    float grads[kOwn][3];
#pragma unroll
    for (int own = 0; own < kOwn; ++own) {
      slopes_[own].step_back(grads[own][0], grads[own][1], grads[own][2], given_[own] + h_grad_[own],
                             c_grad_[own]);
#pragma unroll
      for (int g = 0; g < 3; ++g) {
        if (!kAlike || part_ == 0) {
          ptx::store_shared(own_gates_ + buffer + static_cast<uint32_t>(own * S::kParts) * kRow +
                                static_cast<uint32_t>(g) * S::kPitch,
                            has_unit() ? grads[own][g] : 0.0f);
        }
      }
    }
    meet();
    float sums[kRows][4] = {};
#pragma unroll
    for (int g = 0; g < 3; ++g) {
#pragma unroll
      for (int d = 0; d < S::kPart; d += 4) {
        // While the first are multiplied.
        if (g == 0 && d == 16) {
          prepare(next);
          fetch(step + 3, next);
          store(grads);
        }
#pragma unroll
        for (int r = 0; r < kRows; ++r) {
          const float4 four =
              ptx::load_shared_four(of_part_ + buffer + static_cast<uint32_t>(r) * kRow +
                                    static_cast<uint32_t>(g) * S::kPitch + 4 * static_cast<uint32_t>(d));
#pragma unroll
          for (int e = 0; e < 4; ++e) sums[r][e] = fmaf(element_of(four, e), weights_[g][d + e], sums[r][e]);
        }
      }
    }
    float total[kRows][1];
#pragma unroll
    for (int r = 0; r < kRows; ++r) total[r][0] = (sums[r][0] + sums[r][1]) + (sums[r][2] + sums[r][3]);
    float own_total[kOwn][1];
    add_up(own_total, total);
#pragma unroll
    for (int own = 0; own < kOwn; ++own) h_grad_[own] = own_total[own][0];
  }

  __device__ __forceinline__ void store(const float (&grads)[kOwn][3]) const {
#pragma unroll
    for (int own = 0; own < kOwn; ++own) {
#pragma unroll
      for (int g = 0; g < 3; ++g) {
        ptx::store_global_if(stores(own), stored_ + 3 * next_row(own) + g * units_, grads[own][g]);
      }
    }
  }

  BackwardPass pass_;
  uint32_t of_part_;
  uint32_t own_gates_;
  // Where the next step to fetch, and the one at hand, has what this thread's first row has.
  const float* fetched_gates_;
  int64_t fetched_state_;
  float* stored_;
  // Of the step that comes next.
  Slopes<float> slopes_[kOwn];
  float given_[kOwn];
  float h_grad_[kOwn];
  float c_grad_[kOwn];
  float weights_[3][S::kPart];
};

template <typename S, int kRows>
__global__ void __launch_bounds__(S::kBlock, S::kBlocks) few_units_backward(BackwardPass pass) {
  __shared__ __align__(16) char shared[2 * kRows * 3 * S::kPitch];
  Backward<S, kRows>(pass).run(shared_address(shared));
}

}  // namespace

void launch_few_units_backward(const Problem& problem, Kernel kernel, BackwardTensors& tensors) {
  const BackwardPass pass(tensors);
  with_shape(FewUnitsShapes{}, kernel, [&]<typename S>(Tag<S>) {
    with_few_units_rows<S>(problem, [&](auto rows) {
      const auto blocks = static_cast<unsigned>(ceil_divide<int64_t>(problem.batch, rows()));
      few_units_backward<S, rows()><<<blocks, S::kBlock, 0, tensors.stream>>>(pass);
    });
    check_launch("lltm");
  });
}

}  // namespace torchgraft::lltm::cuda
