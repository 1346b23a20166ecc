// rms_norm on CPU, with and without an addition before it, and the gradient of both.
//
// A thread owns some of the rows. A row is read twice, for its sums and for its results, the second time from
// the cache. The gradient of the weight is summed by `sum_rows`: it has the same bits on any number of
// threads.

#include <torchgraft/cpu.h>
#include <torchgraft/cpu_stream.h>
#include <torchgraft/registration.h>
#include <torchgraft/sums.h>

#include <cmath>

#include "host.h"

namespace rms_norm {
namespace {

// Another thread joins in only for at least this many elements.
constexpr int64_t kGrain = 32768;

// Row `row` of a problem, and where the sums of its chunk are.
template <typename T>
struct Row {
  using A = accumulate_t<T>;

  const T *input, *residual, *weight, *output_grad, *total_grad;
  T *output, *total;
  A* partials;
  int64_t columns;
  bool streams;  // results past the caches, which could not hold them

  Row(const Problem<T>& problem, int64_t row)
      : input(problem.input + row * problem.columns),
        residual(at(problem.residual, row * problem.columns)),
        weight(problem.weight),
        output_grad(at(problem.output_grad, row * problem.columns)),
        total_grad(at(problem.total_grad, row * problem.columns)),
        output(problem.output + row * problem.columns),
        total(at(problem.total, row * problem.columns)),
        partials(problem.partials),
        columns(problem.columns),
        streams(problem.rows * columns * static_cast<int64_t>(sizeof(T)) >= kStreamedBytes &&
                is_aligned(output) && is_aligned(total)) {}

  static bool is_aligned(const T* start) { return reinterpret_cast<uintptr_t>(start) % 64 == 0; }

  template <typename Pointer>
  static Pointer at(Pointer start, int64_t offset) {
    return start == nullptr ? nullptr : start + offset;
  }
};

template <typename V, typename T>
TORCHGRAFT_INLINE void load_total(V& total, const Row<T>& row, int64_t column) {
  load_converted<V, accumulate_t<T>>(total, row.input + column);
  if (row.residual != nullptr) {
    V residual;
    load_converted<V, accumulate_t<T>>(residual, row.residual + column);
    total += residual;
  }
}

template <typename V, typename T>
TORCHGRAFT_INLINE void store_result(const V& result, T* to, bool streams) {
  if (streams) {
    stream_converted<accumulate_t<T>>(result, to);
  } else {
    store_converted<accumulate_t<T>>(result, to);
  }
}

// Each of these goes on from `column` for as long as kVectors vectors V fit into the row. Sums over a
// vector's lanes are in float64, so that of a result's few roundings none is theirs.
template <typename V, int kVectors, typename T>
TORCHGRAFT_INLINE void add_squares(const Row<T>& row, int64_t& column, double& squares) {
  using A = accumulate_t<T>;
  constexpr int64_t kLanes = sizeof(V) / sizeof(A);
  V sums[kVectors] = {};
  for (; column + kVectors * kLanes <= row.columns; column += kVectors * kLanes) {
    TORCHGRAFT_UNROLL
    for (int v = 0; v < kVectors; ++v) {
      V total;
      load_total(total, row, column + v * kLanes);
      sums[v] += total * total;
    }
  }
  for (int v = 0; v < kVectors; ++v) {
    for (int64_t lane = 0; lane < kLanes; ++lane) squares += sums[v][lane];
  }
}

template <typename V, typename T, typename A>
TORCHGRAFT_INLINE void write_outputs(const Row<T>& row, int64_t& column, A scale) {
  constexpr int64_t kLanes = sizeof(V) / sizeof(A);
  for (; column + kLanes <= row.columns; column += kLanes) {
    V total, weight;
    load_total(total, row, column);
    load_converted<V, A>(weight, row.weight + column);
    store_result(V(total * scale * weight), row.output + column, row.streams);
    if (row.total != nullptr) store_result(total, row.total + column, row.streams);
  }
}

template <typename V, int kVectors, typename T>
TORCHGRAFT_INLINE void add_products(const Row<T>& row, int64_t& column, double& squares, double& products) {
  using A = accumulate_t<T>;
  constexpr int64_t kLanes = sizeof(V) / sizeof(A);
  V square_sums[kVectors] = {}, product_sums[kVectors] = {};
  for (; column + kVectors * kLanes <= row.columns; column += kVectors * kLanes) {
    TORCHGRAFT_UNROLL
    for (int v = 0; v < kVectors; ++v) {
      V total, weight, output_grad;
      load_total(total, row, column + v * kLanes);
      load_converted<V, A>(weight, row.weight + column + v * kLanes);
      load_converted<V, A>(output_grad, row.output_grad + column + v * kLanes);
      square_sums[v] += total * total;
      product_sums[v] += output_grad * weight * total;
    }
  }
  for (int v = 0; v < kVectors; ++v) {
    for (int64_t lane = 0; lane < kLanes; ++lane) {
      squares += square_sums[v][lane];
      products += product_sums[v][lane];
    }
  }
}

template <typename V, typename T, typename A>
TORCHGRAFT_INLINE void write_gradients(const Row<T>& row, int64_t& column, A scale, A mean) {
  constexpr int64_t kLanes = sizeof(V) / sizeof(A);
  for (; column + kLanes <= row.columns; column += kLanes) {
    V total, weight, output_grad, partial;
    load_total(total, row, column);
    load_converted<V, A>(weight, row.weight + column);
    load_converted<V, A>(output_grad, row.output_grad + column);
    const V normalized = total * scale;
    V input_grad = scale * (output_grad * weight - normalized * mean);
    if (row.total_grad != nullptr) {
      V total_grad;
      load_converted<V, A>(total_grad, row.total_grad + column);
      input_grad += total_grad;
    }
    store_result(input_grad, row.output + column, row.streams);
    load(partial, row.partials + column);
    store(V(partial + output_grad * normalized), row.partials + column);
  }
}

template <typename T>
TORCHGRAFT_INLINE double scale_of(const Problem<T>& problem, double squares) {
  return 1 / std::sqrt(squares / static_cast<double>(problem.columns) + problem.epsilon);
}

template <int kVectorBytes, typename T>
TORCHGRAFT_INLINE void forward(const Problem<T>& problem, int64_t first, int64_t last) {
  using A = accumulate_t<T>;
  using Wide = Vector<A, kVectorBytes>;
  using One = Vector<A, sizeof(A)>;
  for (int64_t index = first; index < last; ++index) {
    const Row<T> row(problem, index);
    double squares = 0;
    int64_t column = 0;
    add_squares<Wide, 4>(row, column, squares);
    add_squares<Wide, 1>(row, column, squares);
    add_squares<One, 1>(row, column, squares);
    const A scale = static_cast<A>(scale_of(problem, squares));
    column = 0;
    write_outputs<Wide>(row, column, scale);
    write_outputs<One>(row, column, scale);
  }
  end_streams();
}

template <int kVectorBytes, typename T>
TORCHGRAFT_INLINE void backward(const Problem<T>& problem, int64_t first, int64_t last) {
  using A = accumulate_t<T>;
  using Wide = Vector<A, kVectorBytes>;
  using One = Vector<A, sizeof(A)>;
  for (int64_t index = first; index < last; ++index) {
    const Row<T> row(problem, index);
    double squares = 0, products = 0;
    int64_t column = 0;
    add_products<Wide, 4>(row, column, squares, products);
    add_products<Wide, 1>(row, column, squares, products);
    add_products<One, 1>(row, column, squares, products);
    const double exact_scale = scale_of(problem, squares);
    const A scale = static_cast<A>(exact_scale);
    const A mean = static_cast<A>(products / static_cast<double>(problem.columns) * exact_scale);
    column = 0;
    write_gradients<Wide>(row, column, scale, mean);
    write_gradients<One>(row, column, scale, mean);
  }
  end_streams();
}

// Once for each instruction set: torchgraft/cpu.h.
#define RMS_NORM_ROWS(T)                                                                              \
  TORCHGRAFT_VECTOR_CLONES(void run_forward(const Problem<T>& problem, int64_t first, int64_t last),  \
                           forward<kVectorBytes>(problem, first, last);)                              \
  TORCHGRAFT_VECTOR_CLONES(void run_backward(const Problem<T>& problem, int64_t first, int64_t last), \
                           backward<kVectorBytes>(problem, first, last);)
RMS_NORM_ROWS(double)
RMS_NORM_ROWS(float)
RMS_NORM_ROWS(Half)
RMS_NORM_ROWS(BFloat16)
#undef RMS_NORM_ROWS

struct Cpu {
  template <typename T>
  static void forward(const Problem<T>& problem, const Tensor& /*like*/) {
    parallel_for(0, problem.rows, kGrain / problem.columns,
                 [&](int64_t first, int64_t last) { run_forward(problem, first, last); });
  }

  template <typename T>
  static void backward(const Problem<T>& problem, const Tensor& /*like*/) {
    sum_rows<accumulate_t<T>>(problem.rows, problem.columns, kGrain, problem.weight_grad,
                              [&](int64_t first, int64_t last, accumulate_t<T>* sums) {
                                Problem<T> part = problem;
                                part.partials = sums;
                                run_backward(part, first, last);
                              });
  }
};

}  // namespace

TORCHGRAFT_KERNEL(rms_norm, CPU, rms_norm, rms_norm<Cpu>)
TORCHGRAFT_KERNEL(rms_norm, CPU, add_rms_norm, add_rms_norm<Cpu>)
TORCHGRAFT_KERNEL(rms_norm, CPU, rms_norm_backward, rms_norm_backward<Cpu>)

}  // namespace rms_norm
