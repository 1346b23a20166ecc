// The gradients as products of halves on tensor cores, from gradients of gates in float.
//
// A gradient in float is the sum of two numbers of T (split.cuh). In float16 the matrix is multiplied by a
// power of two for its largest number first. The halves of a row lie side by side, so that
//
//     gates_grad @ weight     is one product of twice the depth, with the weight below itself, or, of few
//     rows,
//                             two products into sums of their own;
//     gates_grad.T @ factor   is one product for both halves, and a second for the lower half of a factor,
//
// and one kernel adds the sums up and rounds them. Where rows are few the halves of a row lie one above the
// other, times a copy of the factor with each row twice, since a copy is less than another sum.
//
// Of 65,536 rows and 768 columns the halves read 200 MB and write as much, 100 us at 4 TB/s, and took 99; h
// and its halves 73; a product 39; what is rounded 33.

#include <torchgraft/cuda.cuh>

#include <optional>

#include "rows.cuh"
#include "sum.cuh"

namespace torchgraft::lltm::cuda {
namespace {

// A matrix of float; with `largest` it is multiplied by the power of two that brings that number near the
// largest of float16.
struct MatrixSource {
  const float* matrix;
  int64_t columns;
  const float* largest;

  struct Row {
    const float* row;
    float power;

    __device__ float operator[](int64_t column) const { return row[column] * power; }
  };

  __device__ Row operator()(int64_t row) const {
    return {matrix + row * columns, largest == nullptr ? 1.0f : power_to_fill_half(*largest)};
  }
};

// A matrix of T as it is.
template <typename T>
struct RowsSource {
  const T* matrix;
  int64_t pitch;

  __device__ const T* operator()(int64_t row) const { return matrix + row * pitch; }
};

// Both halves of each row, or what has no lower half twice.
template <typename T>
struct PairsSink {
  T* matrix;
  int64_t pitch;

  __device__ void store(int64_t row, int64_t column, float value) const {
    const Split<T> split(value);
    store(row, column, split.high, split.low);
  }
  __device__ void store(int64_t row, int64_t column, T value) const { store(row, column, value, value); }
  __device__ void store(int64_t row, int64_t column, T first, T second) const {
    matrix[2 * row * pitch + column] = first;
    matrix[(2 * row + 1) * pitch + column] = second;
  }
};

// A matrix in two bytes, or one in float as the sum of two in two bytes.
struct SplitMatrix {
  Tensor high;
  std::optional<Tensor> low;
};

// The higher or the lower halves of (rows, 2 pitch).
Tensor half_of(const Tensor& halves, int64_t columns, bool is_low) {
  return torch::stable::narrow(const_cast<Tensor&>(halves), 1, is_low ? halves.size(1) / 2 : 0, columns);
}

// sums[part] = left @ right
void multiply_into(const Tensor& sums, int64_t part, const Tensor& left, const Tensor& right) {
  Tensor result = torch::stable::select(sums, 0, part);
  multiply(left, right, result);
}

// The gradients of gates, (rows, 3 units), as halves. Results are rounded once, and have no elements where
// they are not wanted.
template <typename T>
class SplitGateGrads {
 public:
  SplitGateGrads(const Tensor& gates_grad, bool of_bias, cudaStream_t stream)
      : dtype_(dtype_of<T>()),
        stream_(stream),
        width_(gates_grad.size(1)),
        pitch_(padded_to_whole(width_)),
        halves_(empty_of({gates_grad.size(0), 2 * pitch_}, dtype_, gates_grad)),
        bias_(empty_of({0}, dtype_, gates_grad)) {
    float* largest = nullptr;
    if constexpr (std::is_same_v<T, Half>) {
      largest_ = empty_workspace<float>(1, gates_grad);
      largest = mutable_data<float>(*largest_);
      TORCHGRAFT_CHECK(cudaMemsetAsync(largest, 0, sizeof(float), stream) == cudaSuccess,
                       "lltm_grads: memory could not be cleared");
    }
    if (of_bias || largest != nullptr) {
      const Tensor sums = column_sums<T>(gates_grad, largest, stream);
      if (of_bias) bias_ = sums;
    }
    launch_rows(MatrixSource{data<float>(gates_grad), width_, data<float>(largest_)},
                PairsSink<T>{mutable_data<T>(halves_), pitch_}, gates_grad.size(0), width_, stream);
  }

  // The sums over all rows.
  const Tensor& bias() const { return bias_; }

  // gates_grad @ weight
  Tensor matmul(bool is_wanted, const Tensor& weight) const {
    if (!is_wanted) return empty_of({0}, dtype_, halves_);
    const int64_t rows = halves_.size(0);
    const int64_t columns = weight.size(1);
    if (rows < width_) {
      // Two sums are less than a copy of the weight.
      Tensor sums = empty_of({2, rows, columns}, ScalarType::Float, halves_);
      multiply_into(sums, 0, half_of(halves_, width_, false), weight);
      multiply_into(sums, 1, half_of(halves_, width_, true), weight);
      return sum_rounded(sums, rows);
    }
    Tensor stacked = empty_of({2 * pitch_, columns}, dtype_, weight);
    if (pitch_ != width_) torch::stable::zero_(stacked);
    for (const int64_t first : {int64_t{0}, pitch_}) {
      Tensor place = torch::stable::narrow(stacked, 0, first, width_);
      torch::stable::copy_(place, weight);
    }
    Tensor sums = empty_of({1, rows, columns}, ScalarType::Float, halves_);
    multiply_into(sums, 0, halves_, stacked);
    return sum_rounded(sums, rows);
  }

  // gates_grad.T @ factor
  Tensor transposed_matmul(bool is_wanted, const SplitMatrix& factor) const {
    if (!is_wanted) return empty_of({0}, dtype_, halves_);
    const int64_t rows = halves_.size(0);
    const int64_t columns = factor.high.size(1);
    const bool copies = rows < width_;
    const int64_t of_high = copies ? 1 : 2;
    Tensor sums =
        empty_of({of_high + (factor.low.has_value() ? 1 : 0), pitch_, columns}, ScalarType::Float, halves_);
    Tensor all = torch::stable::view(sums, {sums.size(0) * pitch_, columns});
    Tensor high_sums = torch::stable::narrow(all, 0, 0, of_high * pitch_);
    if (copies) {
      const Tensor both = torch::stable::view(halves_, {2 * rows, pitch_});
      multiply(transposed(both), with_rows_twice(factor.high), high_sums);
    } else {
      multiply(transposed(halves_), factor.high, high_sums);
    }
    if (factor.low.has_value()) {
      Tensor low_sums = torch::stable::narrow(all, 0, of_high * pitch_, width_);
      multiply(transposed(half_of(halves_, width_, false)), *factor.low, low_sums);
    }
    return sum_rounded(sums, width_);
  }

 private:
  // Each row of a matrix two times.
  Tensor with_rows_twice(const Tensor& matrix) const {
    const Tensor source = matrix.stride(1) == 1 ? matrix : to_contiguous(matrix);
    const int64_t rows = source.size(0);
    const int64_t columns = source.size(1);
    const int64_t pitch = padded_to_whole(columns);
    Tensor result = empty_of({2 * rows, pitch}, dtype_, source);
    launch_rows(RowsSource<T>{data<T>(source), source.stride(0)},
                PairsSink<T>{mutable_data<T>(result), pitch}, rows, columns, stream_);
    return torch::stable::narrow(result, 1, 0, columns);
  }

  // The sum of (count, at least rows, columns) over the first dimension.
  Tensor sum_rounded(const Tensor& sums, int64_t rows) const {
    Tensor result = empty_of({rows, sums.size(2)}, dtype_, sums);
    if (result.numel() > 0) {
      launch_products_sum<T, /*kElements=*/8, /*kParts=*/2>(sums, data<float>(largest_), result, stream_);
    }
    return result;
  }

  ScalarType dtype_;
  cudaStream_t stream_;
  int64_t width_;
  int64_t pitch_;
  Tensor halves_;  // (rows, 2 pitch): of each row the higher halves, then the lower ones
  Tensor bias_;
  std::optional<Tensor> largest_;  // the largest number, by whose power of two float16 is multiplied
};

// h before each step, (steps * batch, units).
template <typename T>
SplitMatrix split_hidden_before(const GradTensors& tensors) {
  const Sizes& sizes = tensors.sizes;
  const int64_t pitch = padded_to_whole(sizes.units);
  Tensor halves = empty_of({sizes.rows(), 2 * pitch}, dtype_of<T>(), tensors.input);
  launch_rows(HiddenSource<T>(*tensors.states, sizes), PairsSink<T>{mutable_data<T>(halves), pitch},
              sizes.rows(), sizes.units, tensors.stream);
  return {half_of(halves, sizes.units, false), half_of(halves, sizes.units, true)};
}

}  // namespace

template <typename T>
Grads launch_products_halves(const GradTensors& tensors) {
  const Wanted& wanted = tensors.wanted;
  const SplitGateGrads<T> gates(tensors.gates_grad, wanted.bias, tensors.stream);
  SplitMatrix h = {tensors.h.value_or(tensors.input), std::nullopt};
  if (wanted.weight_hh && !tensors.h.has_value()) h = split_hidden_before<T>(tensors);
  return {gates.matmul(wanted.input, tensors.weight_ih),
          tensors.h_grad.has_value() ? converted(wanted.h, *tensors.h_grad, dtype_of<T>())
                                     : gates.matmul(wanted.h, tensors.weight_hh),
          converted(tensors.c_grad, dtype_of<T>()),
          gates.transposed_matmul(wanted.weight_ih, {tensors.input, std::nullopt}),
          gates.transposed_matmul(wanted.weight_hh, h),
          gates.bias()};
}

template Grads launch_products_halves<Half>(const GradTensors&);
template Grads launch_products_halves<BFloat16>(const GradTensors&);

}  // namespace torchgraft::lltm::cuda
