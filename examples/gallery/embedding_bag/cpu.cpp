// embedding_bag on CPU: rows of a table are summed into bags, and gradients of bags into rows.
//
// Forward a thread owns some of the bags. Backward it owns some of the columns and goes through all indices
// in order, so that no two threads add to one address, and sums do not depend on the number of threads.
// float16 and bfloat16 are summed in float32. All indices and offsets are looked at before the first is used.

#include <torchgraft/cpu.h>
#include <torchgraft/dispatch.h>
#include <torchgraft/empty.h>
#include <torchgraft/layout.h>
#include <torchgraft/registration.h>
#include <torchgraft/text.h>

#include <algorithm>
#include <vector>

namespace torchgraft {
namespace {

// Another thread joins in only for at least this many sums.
constexpr int64_t kGrain = 32768;

// Indices in bags, checked.
struct Bags {
  Tensor index_tensor, offset_tensor;
  const int64_t *indices, *offsets;
  int64_t index_count, count;
  bool is_mean;

  Bags(const Tensor& index_argument, const Tensor& offset_argument, int64_t rows, const Text& mode)
      : index_tensor(checked(index_argument, "indices")),
        offset_tensor(checked(offset_argument, "offsets")),
        indices(data_of<int64_t>(index_tensor)),
        offsets(data_of<int64_t>(offset_tensor)),
        index_count(index_tensor.numel()),
        count(offset_tensor.numel()),
        is_mean(mode == "mean") {
    TORCHGRAFT_CHECK(is_mean || mode == "sum", "mode must be sum or mean");
    TORCHGRAFT_CHECK(index_count == 0 || count > 0, "offsets must have an element, as there are indices");
    for (int64_t i = 0; i < index_count; ++i) {
      TORCHGRAFT_CHECK(indices[i] >= 0 && indices[i] < rows, "indices must lie between 0 and ", rows - 1);
    }
    for (int64_t bag = 0; bag < count; ++bag) {
      TORCHGRAFT_CHECK(offsets[bag] >= 0 && offsets[bag] <= end(bag) && end(bag) <= index_count,
                       "offsets must not fall, nor exceed the number of indices");
    }
    TORCHGRAFT_CHECK(count == 0 || offsets[0] == 0, "offsets must begin with 0");
  }

  static Tensor checked(const Tensor& tensor, const char* name) {
    check_dim(tensor, 1, name);
    TORCHGRAFT_CHECK(tensor.scalar_type() == ScalarType::Long, name, " must be int64");
    return to_contiguous(tensor, name);
  }

  // Behind the last index of a bag.
  int64_t end(int64_t bag) const { return bag + 1 < count ? offsets[bag + 1] : index_count; }

  // What each row of a bag is divided by.
  int64_t divisor(int64_t bag) const { return is_mean ? std::max<int64_t>(end(bag) - offsets[bag], 1) : 1; }
};

// The sums or means of one bag. Some columns at a time, whose sums stay in registers. Rows lie anywhere in
// the table, so those of the next indices are asked for ahead, in the next bags too: there are `ahead` more.
template <int kVectorBytes, typename T>
TORCHGRAFT_INLINE void sum_bag(const T* table, int64_t columns, const int64_t* indices, int64_t count,
                               int64_t ahead, accumulate_t<T> divisor, T* result) {
  using A = accumulate_t<T>;
  constexpr int64_t kColumns = 4 * kVectorBytes / sizeof(A), kAhead = 16;
  int64_t column = 0;
  for (; column + kColumns <= columns; column += kColumns) {
    A sums[kColumns] = {};
    for (int64_t i = 0; i < count; ++i) {
      const T* const row = table + indices[i] * columns + column;
      if (i + kAhead < count + ahead) {
        const T* const next = table + indices[i + kAhead] * columns + column;
        for (int64_t c = 0; c < kColumns; c += 64 / sizeof(T)) __builtin_prefetch(next + c);
      }
      for (int64_t c = 0; c < kColumns; ++c) sums[c] += static_cast<A>(row[c]);
    }
    for (int64_t c = 0; c < kColumns; ++c) result[column + c] = static_cast<T>(sums[c] / divisor);
  }
  for (; column < columns; ++column) {
    A sum = 0;
    for (int64_t i = 0; i < count; ++i) sum += static_cast<A>(table[indices[i] * columns + column]);
    result[column] = static_cast<T>(sum / divisor);
  }
}

// Once for each instruction set: torchgraft/cpu.h.
#define EMBEDDING_BAG_SUM(T)                                                                               \
  TORCHGRAFT_VECTOR_CLONES(void run_bag(const T* table, int64_t columns, const int64_t* indices,           \
                                        int64_t count, int64_t ahead, accumulate_t<T> divisor, T* result), \
                           sum_bag<kVectorBytes>(table, columns, indices, count, ahead, divisor, result);)
EMBEDDING_BAG_SUM(double)
EMBEDDING_BAG_SUM(float)
EMBEDDING_BAG_SUM(Half)
EMBEDDING_BAG_SUM(BFloat16)
#undef EMBEDDING_BAG_SUM

Tensor embedding_bag_cpu(Tensor weight, Tensor indices, Tensor offsets, Text mode) {
  check_dim(weight, 2, "weight");
  const int64_t columns = weight.size(1);
  const Bags bags(indices, offsets, weight.size(0), mode);
  return dispatch_floating(weight.scalar_type(), "embedding_bag", [&](auto tag) {
    using T = typename decltype(tag)::type;
    using A = accumulate_t<T>;
    const Tensor source = to_contiguous(weight, "weight");
    Tensor output = empty_contiguous({bags.count, columns}, source);
    const T* const from = data_of<T>(source);
    T* const to = mutable_data_of<T>(output);
    const int64_t work = columns * std::max<int64_t>(bags.index_count, 1) / std::max<int64_t>(bags.count, 1);
    parallel_for(0, bags.count, std::max<int64_t>(kGrain / std::max<int64_t>(work, 1), 1),
                 [&](int64_t first, int64_t last) {
                   for (int64_t bag = first; bag < last; ++bag) {
                     const int64_t begin = bags.offsets[bag];
                     run_bag(from, columns, bags.indices + begin, bags.end(bag) - begin,
                             bags.index_count - bags.end(bag), static_cast<A>(bags.divisor(bag)),
                             to + bag * columns);
                   }
                 });
    return output;
  });
}

Tensor embedding_bag_backward_cpu(Tensor grad, Tensor indices, Tensor offsets, int64_t rows, Text mode) {
  check_dim(grad, 2, "grad");
  TORCHGRAFT_CHECK(rows >= 0, "rows must not be negative");
  const Bags bags(indices, offsets, rows, mode);
  TORCHGRAFT_CHECK(grad.size(0) == bags.count, "grad must have a row for each bag");
  const int64_t columns = grad.size(1);
  return dispatch_floating(grad.scalar_type(), "embedding_bag_backward", [&](auto tag) {
    using T = typename decltype(tag)::type;
    using A = accumulate_t<T>;
    const Tensor source = to_contiguous(grad, "grad");
    Tensor output = empty_contiguous({rows, columns}, source);
    const T* const from = data_of<T>(source);
    T* const to = mutable_data_of<T>(output);
    const int64_t work = std::max<int64_t>(bags.index_count + rows, 1);
    parallel_for(0, columns, std::max<int64_t>(kGrain / work, 1), [&](int64_t first, int64_t last) {
      const int64_t width = last - first;
      std::vector<A> sums(rows * width);
      for (int64_t bag = 0; bag < bags.count; ++bag) {
        const A divisor = static_cast<A>(bags.divisor(bag));
        const T* const row = from + bag * columns + first;
        for (int64_t i = bags.offsets[bag]; i < bags.end(bag); ++i) {
          A* const sum = sums.data() + bags.indices[i] * width;
          for (int64_t c = 0; c < width; ++c) sum[c] += static_cast<A>(row[c]) / divisor;
        }
      }
      for (int64_t row = 0; row < rows; ++row) {
        for (int64_t c = 0; c < width; ++c) {
          to[row * columns + first + c] = static_cast<T>(sums[row * width + c]);
        }
      }
    });
    return output;
  });
}

}  // namespace

TORCHGRAFT_KERNEL(gallery_embedding_bag, CPU, embedding_bag, embedding_bag_cpu)
TORCHGRAFT_KERNEL(gallery_embedding_bag, CPU, embedding_bag_backward, embedding_bag_backward_cpu)

}  // namespace torchgraft
