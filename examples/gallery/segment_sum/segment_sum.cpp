// segment_sum and its gradient as functions of tvm-ffi, which any host that has tvm-ffi can call.
//
// A segment is a range of rows. Sums are in double, in the order of the rows. What the loops depend on is
// checked before a row is read, as any program may call these functions.

#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/error.h>
#include <tvm/ffi/function.h>

#include <cstdint>
#include <type_traits>
#include <vector>

namespace {

using tvm::ffi::TensorView;

// The segments: segment s holds the rows from starts[s] up to starts[s + 1], and the last one those up to the
// end.
struct Segments {
  const int64_t* starts;
  int64_t count, rows;

  // `sums` has a row for each segment, and `values` has the rows.
  Segments(TensorView starts, TensorView sums, TensorView values)
      : starts(static_cast<const int64_t*>(starts.data_ptr())), count(starts.size(0)), rows(values.size(0)) {
    if (sums.size(0) != count || sums.size(1) != values.size(1)) {
      TVM_FFI_THROW(ValueError) << "sums must have a row for each of " << count
                                << " segments, and the columns of values";
    }
    if (count == 0 ? rows > 0 : this->starts[0] != 0) TVM_FFI_THROW(ValueError) << "starts must begin with 0";
    for (int64_t s = 0; s < count; ++s) {
      if (begin(s) > begin(s + 1))
        TVM_FFI_THROW(ValueError) << "starts must not fall, or exceed " << rows << " rows";
    }
  }

  int64_t begin(int64_t segment) const { return segment < count ? starts[segment] : rows; }
};

template <typename T>
void sum(TensorView values, TensorView starts, TensorView sums) {
  const Segments segments(starts, sums, values);
  const int64_t columns = values.size(1);
  const T* const from = static_cast<const T*>(values.data_ptr());
  T* const to = static_cast<T*>(sums.data_ptr());
  std::vector<double> totals(columns);
  for (int64_t s = 0; s < segments.count; ++s) {
    totals.assign(columns, 0);
    for (int64_t row = segments.begin(s); row < segments.begin(s + 1); ++row) {
      for (int64_t c = 0; c < columns; ++c) totals[c] += from[row * columns + c];
    }
    for (int64_t c = 0; c < columns; ++c) to[s * columns + c] = static_cast<T>(totals[c]);
  }
}

template <typename T>
void spread(TensorView sums_grad, TensorView starts, TensorView values_grad) {
  const Segments segments(starts, sums_grad, values_grad);
  const int64_t columns = sums_grad.size(1);
  const T* const from = static_cast<const T*>(sums_grad.data_ptr());
  T* const to = static_cast<T*>(values_grad.data_ptr());
  for (int64_t s = 0; s < segments.count; ++s) {
    for (int64_t row = segments.begin(s); row < segments.begin(s + 1); ++row) {
      for (int64_t c = 0; c < columns; ++c) to[row * columns + c] = from[s * columns + c];
    }
  }
}

// Calls a function with a null pointer of the type of the elements.
template <typename Function>
void dispatch(TensorView tensor, Function function) {
  const DLDataType dtype = tensor.dtype();
  if (dtype.code != kDLFloat || (dtype.bits != 32 && dtype.bits != 64)) {
    TVM_FFI_THROW(TypeError) << "values must be float32 or float64";
  }
  dtype.bits == 32 ? function(static_cast<float*>(nullptr)) : function(static_cast<double*>(nullptr));
}

void segment_sum(TensorView values, TensorView starts, TensorView sums) {
  dispatch(values, [&](auto* tag) { sum<std::remove_pointer_t<decltype(tag)>>(values, starts, sums); });
}

// The number of rows is the size of `values_grad`.
void segment_sum_backward(TensorView sums_grad, TensorView starts, int64_t rows, TensorView values_grad) {
  dispatch(sums_grad,
           [&](auto* tag) { spread<std::remove_pointer_t<decltype(tag)>>(sums_grad, starts, values_grad); });
}

}  // namespace

TVM_FFI_DLL_EXPORT_TYPED_FUNC(segment_sum, segment_sum);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(segment_sum_backward, segment_sum_backward);
