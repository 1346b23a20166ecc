// CPU kernels: sums whose bits are the same at each run, on any number of threads.
//
// A sum of floating-point numbers depends on the order of its additions. Here that order follows from the
// sizes alone.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <vector>

#include "cpu.h"
#include "numbers.h"

namespace torchgraft {

// value(0) + value(1) + ... + value(count - 1), in type A, on the calling thread. Element i is added to lane
// i % 16, so that a compiler can use vectors; then the lanes are added in order, in float64. Call it in a
// function with TORCHGRAFT_CLONES, and let `value` only read and multiply.
template <typename A, typename Value>
TORCHGRAFT_INLINE double sum_of(int64_t count, const Value& value) {
  constexpr int64_t kLanes = 16;
  A lanes[kLanes] = {};
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    for (int64_t lane = 0; lane < kLanes; ++lane) lanes[lane] += value(i + lane);
  }
  for (int64_t lane = 0; i + lane < count; ++lane) lanes[lane] += value(i + lane);
  double sum = 0;
  for (int64_t lane = 0; lane < kLanes; ++lane) sum += static_cast<double>(lanes[lane]);
  return sum;
}

// For each s, results[s][c] = sum s of column c over all rows: the gradients of a weight and of a bias, in
// one pass over the rows. The rows are divided into chunks that depend on the sizes alone. For each chunk a
// thread calls `add_rows(first, last, sums)`, which adds the rows [first, last) to `columns` sums of type A
// at each sums[s]; they start at zero. Then the sums of the chunks are added in order. Without rows the
// results are zero. A result that is a null pointer is not wanted, and is not written. `grain` is the least
// number of elements for which another thread is worth it. `add_rows` may also write a result for each of its
// rows, as a gradient does.
template <typename A, typename T, int kSums, typename AddRows>
void sum_rows(int64_t rows, int64_t columns, int64_t grain, T* const (&results)[kSums],
              const AddRows& add_rows) {
  // Each chunk has a row of each sum: more than these would cost too much, and fewer rows would not pay for
  // one.
  constexpr int64_t kMostChunks = 64, kLeastRowsOfChunk = 4;
  if (columns == 0) return;
  const int64_t rows_of_chunk = std::max(ceil_divide(rows, kMostChunks), kLeastRowsOfChunk);
  const int64_t chunks = ceil_divide(rows, rows_of_chunk);
  std::vector<A> partials(static_cast<size_t>(chunks * kSums * columns));
  parallel_for(0, chunks, grain / (rows_of_chunk * columns), [&](int64_t first, int64_t last) {
    for (int64_t chunk = first; chunk < last; ++chunk) {
      const int64_t begin = chunk * rows_of_chunk;
      A* sums[kSums];
      for (int s = 0; s < kSums; ++s) sums[s] = partials.data() + (chunk * kSums + s) * columns;
      A* const(&each)[kSums] = sums;
      add_rows(begin, std::min(begin + rows_of_chunk, rows), each);
    }
  });
  parallel_for(0, columns, std::max<int64_t>(grain / std::max<int64_t>(chunks * kSums, 1), 1),
               [&](int64_t first, int64_t last) {
                 std::vector<A> sums(static_cast<size_t>(last - first));
                 for (int s = 0; s < kSums; ++s) {
                   if (results[s] == nullptr) continue;
                   std::fill(sums.begin(), sums.end(), A{});
                   for (int64_t chunk = 0; chunk < chunks; ++chunk) {
                     const A* const partial = partials.data() + (chunk * kSums + s) * columns + first;
                     for (int64_t c = 0; c < last - first; ++c) sums[c] += partial[c];
                   }
                   std::transform(sums.begin(), sums.end(), results[s] + first,
                                  [](A sum) { return static_cast<T>(sum); });
                 }
               });
}

// The same for one sum: `add_rows(first, last, sums)` adds rows to `columns` sums.
template <typename A, typename T, typename AddRows>
  requires(!std::is_pointer_v<T>)
void sum_rows(int64_t rows, int64_t columns, int64_t grain, T* result, const AddRows& add_rows) {
  T* const results[] = {result};
  sum_rows<A>(rows, columns, grain, results,
              [&](int64_t first, int64_t last, A* const(&sums)[1]) { add_rows(first, last, sums[0]); });
}

}  // namespace torchgraft
