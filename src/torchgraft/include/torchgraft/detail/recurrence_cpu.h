// A recurrence on CPU: threads share out the rows of a step, and the compiler vectorizes over the units.
#pragma once

#include <algorithm>
#include <cmath>

#include "../cpu.h"
#include "../elementwise.h"
#include "../vector_math.h"

#define TORCHGRAFT_CELL_FUNCTION TORCHGRAFT_INLINE
#include "recurrence_passes.h"

namespace torchgraft::recurrence {

// The functions that a printed cell calls. The last four are calls for each number.
struct CpuMath {
  template <typename T>
  static TORCHGRAFT_INLINE T exp(T x) {
    return vector_math::exp(x);
  }
  template <typename T>
  static TORCHGRAFT_INLINE T expm1(T x) {
    return vector_math::expm1(x);
  }
  template <typename T>
  static TORCHGRAFT_INLINE T log(T x) {
    return vector_math::log(x);
  }
  template <typename T>
  static TORCHGRAFT_INLINE T log1p(T x) {
    return vector_math::log1p(x);
  }
  template <typename T>
  static TORCHGRAFT_INLINE T tanh(T x) {
    return vector_math::tanh(x);
  }
  template <typename T>
  static TORCHGRAFT_INLINE T sigmoid(T x) {
    return vector_math::sigmoid(x);
  }
  template <typename T>
  static TORCHGRAFT_INLINE T reciprocal(T x) {
    return T(1) / x;
  }
  template <typename T>
  static TORCHGRAFT_INLINE T erf(T x) {
    return vector_math::erf(x);
  }
  // Computed as in sigmoid, so that a compiler sees that its slope needs the same exponential.
  template <typename T>
  static TORCHGRAFT_INLINE T abs(T x) {
    T size;
    vector_math::magnitude(size, x);
    return size;
  }
  // With the exponential of tanh, which compilers compute once for both. Beyond kNearOne, where it stops, the
  // slope is nothing beside one.
  template <typename T>
  static TORCHGRAFT_INLINE T tanh_slope(T x) {
    using C = vector_math::internal::ConstantsOf<T>;
    T size, bounded, twice[1], power[1], fraction[1], scale;
    vector_math::magnitude(size, x);
    bounded = size > C::kNearOne ? C::kNearOne : size;
    twice[0] = bounded * -2;
    vector_math::reduce_exp(twice, power, fraction);
    vector_math::power_of_two(scale, power[0]);
    const T below = (1 + scale) + scale * fraction[0];
    return size > C::kNearOne ? T(0) : 4 * (scale + scale * fraction[0]) / (below * below);
  }
  template <typename T>
  static TORCHGRAFT_INLINE T sqrt(T x) {
    return std::sqrt(x);
  }
  template <typename T>
  static TORCHGRAFT_INLINE T sin(T x) {
    return std::sin(x);
  }
  template <typename T>
  static TORCHGRAFT_INLINE T cos(T x) {
    return std::cos(x);
  }
  template <typename T>
  static TORCHGRAFT_INLINE T atan(T x) {
    return std::atan(x);
  }
  template <typename T>
  static TORCHGRAFT_INLINE T pow(T x, T y) {
    return std::pow(x, y);
  }
};

}  // namespace torchgraft::recurrence

#include "recurrence_cpu_steps.h"

namespace torchgraft::recurrence {

// The units of one row, from `first_unit` on.
template <typename Pass, typename T, size_t... kRead, size_t... kWritten>
void run_units(const Step<Pass, T>& step, int64_t row, int64_t first_unit, int64_t count,
               std::index_sequence<kRead...>, std::index_sequence<kWritten...>) {
  for_each_element(
      count,
      [](auto&... values) {
        const auto all = std::tie(values...);
        const T read[] = {std::get<kRead>(all)...};
        T written[Pass::kWrites];
        Pass::template unit<CpuMath>(read, written);
        ((std::get<Pass::kReads + kWritten>(all) = written[kWritten]), ...);
      },
      (step.read[kRead].first + row * step.read[kRead].stride + first_unit)...,
      (step.written[kWritten].first + row * step.written[kWritten].stride + first_unit)...);
}

struct OnCpu {
  template <typename Pass, typename T>
  void operator()(const Step<Pass, T>& step) const {
    // Few rows of many units are shared out too. A piece is whole vectors.
    constexpr int64_t kPiece = 1024;
    // So many units take some microseconds, as long as to wake a thread.
    constexpr int64_t kGrain = 4096;
    const int64_t pieces = (step.units + kPiece - 1) / kPiece;
    const int64_t grain = std::max<int64_t>(1, kGrain / std::min(step.units, kPiece));
    parallel_for(0, step.rows * pieces, grain, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const int64_t first = i % pieces * kPiece;
        run_units(step, i / pieces, first, std::min(kPiece, step.units - first),
                  std::make_index_sequence<Pass::kReads>(), std::make_index_sequence<Pass::kWrites>());
      }
    });
  }

  // result = input @ weight.T + bias. Returns whether the bias was added.
  bool multiply_inputs(const Tensor& input, const Tensor& weight, const std::optional<Tensor>& bias,
                       Tensor& result) const {
    const ScalarType computed = result.scalar_type();
    multiply_on_cpu(converted(input, computed), transposed(converted(weight, computed)), bias, result);
    return true;
  }
  // left @ right of factors that are one matrix.
  void multiply_factors(const Factor& left, const Factor& right, Tensor& result) const {
    multiply_on_cpu(left.matrix, right.matrix, std::nullopt, result);
  }
  // A tensor of a call as the factor that multiplies one in the type that is computed in.
  Factor factor_beside(const Factor&, const Tensor& tensor, ScalarType computed) const {
    return {converted(tensor, computed)};
  }

  // How many steps are run at once if nothing is kept of them, each with so many bytes of gates in a row of
  // the batch: enough for the gates to be worth a pass of threads, and so few that they lie in the caches.
  int64_t steps_of_piece(int64_t steps, int64_t batch, int64_t row_bytes) const {
    constexpr int64_t kCacheBytes = 1 << 20;  // a thread
    constexpr int64_t kFewRows = 256;         // a thread
    const int64_t threads = torch::stable::get_num_threads();
    const int64_t rows = threads * std::max(kFewRows, kCacheBytes / row_bytes);
    const int64_t piece = std::max<int64_t>(1, rows / std::max<int64_t>(1, batch));
    // Pieces of about the same length.
    const int64_t pieces = (steps + piece - 1) / piece;
    return (steps + pieces - 1) / pieces;
  }

  // Runs all steps.
  template <typename Cell, typename T>
  bool at_once(ForwardSteps& steps) const {
    const Sizes& sizes = steps.sizes;
    const int64_t panel = Group<Cell>::template kMostUnits<T>;
    const RoundsOf rounds = rounds_of<Cell, T>(sizes, panel, sizes.steps);
    if (!steps.packed.has_value()) {
      steps.packed = empty_contiguous({(sizes.units + panel) * Cell::kGates * sizes.units}, steps.gates);
      const T* const weight = data_of<T>(steps.weight_hh);
      T* const panels = mutable_data_of<T>(*steps.packed);
      pack_units(rounds, [&](int64_t begin, int64_t end) {
        OnBestVectors<PackForward<Cell, T>>::call(weight, panels, sizes.units, begin, end);
      });
    }
    Tensor other_message = empty_contiguous({sizes.batch, sizes.units}, steps.gates);
    const ForwardRows<Cell, T> rows(steps);
    const ForwardPass<T> pass = {data_of<T>(*steps.packed),
                                 {mutable_data_of<T>(steps.message), mutable_data_of<T>(other_message)}};
    run_rounds(rounds, [&](const Share& share, int64_t begin, int64_t end) {
      OnBestVectors<ForwardRounds<Cell, T>>::call(rows, pass, sizes, share, begin, end);
    });
    // An odd number of steps leaves what the next one is told in the other place.
    if (sizes.steps % 2 == 1) steps.message = other_message;
    return true;
  }
  template <typename Cell, typename T>
  bool at_once(BackwardSteps& steps) const {
    const Sizes& sizes = steps.sizes;
    const int64_t panel = 3 * cpu_products::kMostLanes<T>;
    const RoundsOf rounds = rounds_of<Cell, T>(sizes, panel, sizes.steps + 1);
    const int64_t width = Cell::kGates * sizes.units;
    Tensor packed = empty_contiguous({(sizes.units + panel) * width}, steps.gates);
    const T* const weight = data_of<T>(steps.weight_hh);
    T* const panels = mutable_data_of<T>(packed);
    pack_units(rounds, [&](int64_t begin, int64_t end) {
      OnBestVectors<PackBackward<T>>::call(weight, panels, width, sizes.units, begin, end);
    });
    const BackwardRows<Cell, T> rows(steps);
    const BackwardPass<T> pass = {panels, mutable_data_of<T>(steps.message_grad)};
    run_rounds(rounds, [&](const Share& share, int64_t begin, int64_t end) {
      OnBestVectors<BackwardRounds<Cell, T>>::call(rows, pass, sizes, share, begin, end);
    });
    rows.leave(steps);
    return true;
  }

 private:
  template <typename Cell, typename T>
  static RoundsOf rounds_of(const Sizes& sizes, int64_t panel, int64_t rounds) {
    const int64_t weights = Cell::kGates * sizes.units * sizes.units;
    return {rounds, sizes.batch, sizes.units, panel, weights, weights * static_cast<int64_t>(sizeof(T))};
  }

  // result = left @ right + bias. Not PyTorch's product: on some processors it cuts the depth into as many
  // parts as there are threads, and then the last bits of a sum follow their number.
  static void multiply_on_cpu(const Tensor& left, const Tensor& right, const std::optional<Tensor>& bias,
                              Tensor& result) {
    dispatch_computed(result, [&]<typename T>(Tag<T>) {
      if (result.numel() == 0) return;
      if (left.size(1) == 0) {
        torch::stable::zero_(result);
        if (bias.has_value()) torch::stable::copy_(result, *bias);
        return;
      }
      const cpu_products::Product<T> product = {{data_of<T>(left), left.stride(0), left.stride(1)},
                                                {data_of<T>(right), right.stride(0), right.stride(1)},
                                                mutable_data_of<T>(result),
                                                left.size(1),
                                                right.size(1),
                                                bias.has_value() ? data_of<T>(*bias) : nullptr};
      cpu_products::share_out(product, left.size(0), [&](const Share& share) {
        OnBestVectors<MultiplyShare<T>>::call(product, share);
      });
    });
  }
};

}  // namespace torchgraft::recurrence
