// The recurrence of a whole sequence forward in float, up to 64 units, by one block alone for each few rows.
//
// A step is
//
//     h of all units in shared memory -> sums in registers, of all gates of a unit -> own c, h
//     -> own h to shared memory
//
// What a step needs of device memory comes two steps ahead, into registers.

#include <torchgraft/async_copy.cuh>
#include <torchgraft/cuda.cuh>
#include <torchgraft/ptx.cuh>

#include "../groups.cuh"
#include "member.cuh"

namespace torchgraft::lltm::cuda {
namespace {

template <typename S, int kRows>
class Forward : FewUnitsMember<S, kRows> {
  using Member = FewUnitsMember<S, kRows>;
  using Member::add_up, Member::gate_of, Member::has_unit, Member::meet, Member::next_row, Member::place_of,
      Member::row_of, Member::state_of, Member::stores;
  using Member::kAlike, Member::kOwn, Member::first_, Member::first_row_, Member::part_, Member::rows_,
      Member::steps_, Member::stride_, Member::unit_, Member::units_;
  using Gates = float[kOwn][3];
  static constexpr uint32_t kBuffer = kRows * S::kPitch;

 public:
  __device__ __forceinline__ explicit Forward(const ForwardPass& pass)
      : Member(pass, pass.reverse), pass_(pass) {}

  // `h`: of two steps by turns, in shared memory. `last_h`, `last_c`: for what the last step leaves.
  __device__ __forceinline__ void run(bool is_aligned, uint32_t h, const DynamicOutput& last_h,
                                      const DynamicOutput& last_c) {
    visit_weight(pass_.weight, is_aligned,
                 [&](const auto* weight, auto at_once) { load_weights(weight, at_once); });
#pragma unroll
    for (int g = 0; g < 3; ++g) bias_[g] = pass_.bias && has_unit() ? pass_.bias[g * units_ + unit_] : 0.0f;
    for (int i = static_cast<int>(threadIdx.x); i < kRows * S::kUnits; i += S::kBlock) {
      const int row = i / S::kUnits, unit = i % S::kUnits;
      const bool is_there = row < rows_ && unit < units_;
      ptx::store_shared(h + static_cast<uint32_t>(row) * S::kPitch + place_of(unit),
                        is_there ? pass_.h0[int64_t{first_row_ + row} * units_ + unit] : 0.0f);
    }
    of_part_ = h + place_of(part_ * S::kPart);
    own_h_ = h + static_cast<uint32_t>(row_of(0)) * S::kPitch + place_of(unit_);
    ptx::keep(of_part_);
    ptx::keep(own_h_);
    fetched_ = pass_.activations + 3 * first_ + gate_of(0);
    stored_gates_ = pass_.activations + 3 * (first_ - stride_) + gate_of(0);
    stored_cells_ = pass_.cells + (first_ - stride_) + state_of(0);
    element_ = pass_.output.is_float() ? 4 : 2;
    stored_output_ = pass_.output.template as<char>() + element_ * (first_ - stride_ + state_of(0));
    Gates even, odd;
    fetch(0, even);
    fetch(1, odd);
#pragma unroll
    for (int own = 0; own < kOwn; ++own) c_[own] = pass_.c0[state_of(own)];
    meet();
    for (int step = 0; step < steps_; step += 2) {
      advance(step, of_part_, own_h_ + kBuffer, even);
      if (step + 1 == steps_) break;
      advance(step + 1, of_part_ + kBuffer, own_h_, odd);
    }
    store(true);
#pragma unroll
    for (int own = 0; own < kOwn; ++own) {
      if (!stores(own)) continue;
      last_h.store(state_of(own), h_[own]);
      last_c.store(state_of(own), c_[own]);
    }
  }

 private:
  template <typename Bits, bool kAtOnce>
  __device__ __forceinline__ void load_weights(const Bits* weight, std::bool_constant<kAtOnce>) {
    // All are on their way before the first is converted.
    Bits bits[3][S::kPart] = {};
#pragma unroll
    for (int g = 0; g < 3; ++g) {
#pragma unroll
      for (int d = 0; d < S::kPart; d += 4) {
        const int k = part_ * S::kPart + d;
        const Bits* from = weight + (int64_t{g} * units_ + unit_) * units_ + k;
        Bits four[4] = {};
        load_four<kAtOnce>(four, from, has_unit() ? units_ - k : 0);
#pragma unroll
        for (int e = 0; e < 4; ++e) bits[g][d + e] = four[e];
      }
    }
#pragma unroll
    for (int g = 0; g < 3; ++g) {
#pragma unroll
      for (int d = 0; d < S::kPart; ++d) weights_[g][d] = pass_.weight.value_of(bits[g][d]);
    }
  }

  // The inputs' part of the gates of a step, and goes on to the next one if there is one.
  __device__ __forceinline__ void fetch(int step, Gates& gates) {
#pragma unroll
    for (int own = 0; own < kOwn; ++own) {
#pragma unroll
      for (int g = 0; g < 3; ++g) gates[own][g] = fetched_[3 * next_row(own) + g * units_];
    }
    fetched_ += step + 1 < steps_ ? 3 * stride_ : 0;
  }

  // The results of a step, and goes on to the next one.
  __device__ __forceinline__ void store(bool wanted) {
#pragma unroll
    for (int own = 0; own < kOwn; ++own) {
      const bool here = wanted && stores(own);
      const int further = next_row(own);
#pragma unroll
      for (int g = 0; g < 3; ++g) {
        ptx::store_global_if(here, stored_gates_ + 3 * further + g * units_, gates_[own][g]);
      }
      ptx::store_global_if(here, stored_cells_ + further, c_[own]);
      char* const to = stored_output_ + element_ * further;
      ptx::store_global_if(here && element_ == 4, reinterpret_cast<float*>(to), h_[own]);
      ptx::store_global_if(here && element_ == 2, reinterpret_cast<uint16_t*>(to),
                           pass_.output.bits_of(h_[own]));
    }
    stored_gates_ += 3 * stride_;
    stored_cells_ += stride_;
    stored_output_ += element_ * stride_;
  }

  // One step, from h before it to h after it, where that of the first part of the depth lies and where own h
  // goes to. `gates` then holds those of the step after the next. What the step before it computed is stored
  // while this one multiplies.
  __device__ __forceinline__ void advance(int step, uint32_t before, uint32_t after, Gates& gates) {
    Gates given;
#pragma unroll
    for (int own = 0; own < kOwn; ++own) {
#pragma unroll
      for (int g = 0; g < 3; ++g) given[own][g] = gates[own][g] + bias_[g];
    }
    float sums[kRows][3] = {};
    float more[kRows][3] = {};
#pragma unroll
    for (int d = 0; d < S::kPart; d += 4) {
      float4 four[kRows];
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        four[r] = ptx::load_shared_four(before + static_cast<uint32_t>(r) * S::kPitch + 4u * d);
      }
      if (d == 16) {
        store(step > 0);
        fetch(step + 2, gates);
      }
#pragma unroll
      for (int e = 0; e < 4; e += 2) {
#pragma unroll
        for (int r = 0; r < kRows; ++r) {
#pragma unroll
          for (int g = 0; g < 3; ++g) {
            sums[r][g] = fmaf(element_of(four[r], e), weights_[g][d + e], sums[r][g]);
            more[r][g] = fmaf(element_of(four[r], e + 1), weights_[g][d + e + 1], more[r][g]);
          }
        }
      }
    }
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
#pragma unroll
      for (int g = 0; g < 3; ++g) sums[r][g] += more[r][g];
    }
    add_up(gates_, sums);
#pragma unroll
    for (int own = 0; own < kOwn; ++own) {
#pragma unroll
      for (int g = 0; g < 3; ++g) gates_[own][g] += given[own][g];
      h_[own] = step_forward_quick(gates_[own][0], gates_[own][1], gates_[own][2], c_[own]);
      // Where there is no unit an infinite h0 times weights of zero is NaN.
      if (!kAlike || part_ == 0) {
        ptx::store_shared(after + static_cast<uint32_t>(own * S::kParts) * S::kPitch,
                          has_unit() ? h_[own] : 0.0f);
      }
    }
    meet();
  }

  ForwardPass pass_;
  uint32_t of_part_;
  uint32_t own_h_;
  // Where the next step to fetch, and to store, has what this thread's first row has.
  const float* fetched_;
  float* stored_gates_;
  float* stored_cells_;
  char* stored_output_;
  int64_t element_;  // bytes of one of the output
  // Of the last step.
  Gates gates_;
  float h_[kOwn];
  float c_[kOwn];
  float bias_[3];
  float weights_[3][S::kPart];
};

template <typename S, int kRows>
__global__ void __launch_bounds__(S::kBlock, S::kBlocks)
    few_units_forward(ForwardPass pass, bool is_aligned, DynamicOutput last_h, DynamicOutput last_c) {
  __shared__ __align__(16) char h[2 * kRows * S::kPitch];
  Forward<S, kRows>(pass).run(is_aligned, shared_address(h), last_h, last_c);
}

}  // namespace

void launch_few_units_forward(const Problem& problem, Kernel kernel, ForwardTensors& tensors) {
  const ForwardPass pass(tensors);
  const auto empty_state = [&] {
    return empty_of({problem.batch, problem.units}, tensors.h0.scalar_type(), tensors.h0);
  };
  auto& last = tensors.last.emplace(std::array<Tensor, 2>{empty_state(), empty_state()});
  with_shape(FewUnitsShapes{}, kernel, [&]<typename S>(Tag<S>) {
    with_few_units_rows<S>(problem, [&](auto rows) {
      const auto blocks = static_cast<unsigned>(ceil_divide<int64_t>(problem.batch, rows()));
      few_units_forward<S, rows()><<<blocks, S::kBlock, 0, tensors.stream>>>(
          pass, reads_float4(pass), DynamicOutput(last[0]), DynamicOutput(last[1]));
    });
    check_launch("lltm");
  });
}

}  // namespace torchgraft::lltm::cuda
