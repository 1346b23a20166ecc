// Barriers in shared memory that count arrivals and bytes (mbarrier), and writes into the shared memory of
// another block of the cluster that such a barrier counts.
//
// A phase of a barrier ends when all arrivals have come, and all bytes that they said to expect.

#include "machine.h"

namespace emulation {
namespace {

constexpr const char* kAtCounting = "a barrier that counts bytes";
// The bits of a cluster's address above this one hold the rank of the block and one, so that no address of
// the block's own shared memory looks like it.
constexpr int kRankShift = 24;

struct Counting {
  int32_t bytes;  // that are expected and have not come; negative if they came before they were expected
  uint16_t missing;
  uint8_t count;
  uint8_t phase;
};
static_assert(sizeof(Counting) == 8, "an mbarrier takes eight bytes of shared memory");

Counting& counting_at(uint32_t barrier) { return *static_cast<Counting*>(shared_pointer(barrier, 8, 8)); }

void* pointer_in_cluster(uint32_t address, size_t bytes) {
  if (address >> kRankShift == 0) fail("an address that is not of the cluster's shared memory");
  const uint32_t own = address & ((1u << kRankShift) - 1);
  return in_block_of_cluster(shared_pointer(own, bytes, std::min<size_t>(bytes, 16)),
                             (address >> kRankShift) - 1);
}

void end_phase_if_all_came(Counting& counting, Block& block) {
  if (counting.missing != 0 || counting.bytes != 0) return;
  counting.missing = counting.count;
  counting.phase ^= 1;
  block.epoch = ++machine().epochs;
  wake_all(block, kAtCounting);
}

}  // namespace

uint32_t shared_of_cluster(uint32_t shared, uint32_t rank) {
  if (rank >= blocks_of_cluster()) fail("there is no such block in the cluster");
  return (rank + 1) << kRankShift | shared;
}

void begin_counting(uint32_t barrier, uint32_t count) {
  counting_at(barrier) = {0, static_cast<uint16_t>(count), static_cast<uint8_t>(count), 0};
}

void count_arrival(uint32_t barrier, uint32_t bytes) {
  Counting& counting = counting_at(barrier);
  if (counting.missing == 0) fail("more arrivals at a barrier than it counts");
  if (bytes >= 1u << 20) fail("more bytes for a barrier to count than it can");
  --counting.missing;
  counting.bytes += static_cast<int32_t>(bytes);
  end_phase_if_all_came(counting, *running().block);
}

void wait_for_phase(uint32_t barrier, uint32_t parity) {
  const Counting& counting = counting_at(barrier);
  while (counting.phase == parity) wait(kAtCounting);
}

void store_and_count(uint32_t address, const void* value, size_t bytes, uint32_t barrier) {
  if (address >> kRankShift != barrier >> kRankShift) fail("a write and its barrier in different blocks");
  void* to = pointer_in_cluster(address, bytes);
  // This write is not watched: a thread that waits for its barrier does not race with it.
  std::memcpy(to, value, bytes);
  auto& counting = *static_cast<Counting*>(pointer_in_cluster(barrier, 8));
  counting.bytes -= static_cast<int32_t>(bytes);
  end_phase_if_all_came(counting, block_of_rank((barrier >> kRankShift) - 1));
}

}  // namespace emulation
