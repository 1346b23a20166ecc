// Barriers of a block: __syncthreads, its variants that count, and named barriers of some of the threads.
//
// A thread that arrives waits until as many threads are there as the barrier expects. The last one wakes the
// others, and from then on all accesses before the barrier are ordered before all accesses behind it.

#include "machine.h"

namespace emulation {

void block_barrier(int name, int threads) {
  Fibre& fibre = running();
  Block& block = *fibre.block;
  if (name < 0 || name > 15) fail("a block has barriers 0 to 15");
  Barrier& barrier = block.barriers[static_cast<size_t>(name)];
  const int expected = threads < 0 ? static_cast<int>(block.fibres.size()) : threads;
  if (barrier.waiting.empty()) {
    barrier.threads = expected;
  } else if (barrier.threads != expected) {
    fail("a barrier that threads expect different numbers of threads at");
  }
  barrier.waiting.push_back(&fibre);
  if (static_cast<int>(barrier.waiting.size()) < expected) {
    wait(name == 0 ? "__syncthreads" : "a named barrier");
    return;
  }
  block.epoch = ++machine().epochs;
  for (Fibre* each : barrier.waiting) wake(*each);
  barrier.waiting.clear();
}

int block_barrier_count(bool predicate) {
  Block& block = *running().block;
  block.counted += predicate ? 1 : 0;
  block_barrier();
  // The first thread that reads keeps the count for the others, and starts the next count.
  if (block.readers == 0) {
    block.count = block.counted;
    block.counted = 0;
  }
  const int count = block.count;
  block.readers = (block.readers + 1) % static_cast<int>(block.fibres.size());
  block_barrier();
  return count;
}

}  // namespace emulation
