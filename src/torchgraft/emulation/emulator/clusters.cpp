// Several blocks at once: clusters, which reach each other's shared memory, and the barriers of a cluster and
// of the whole grid of a cooperative launch.
//
// The blocks of a cluster, or of a cooperative launch, are alive together. They lie one after the other in
// Machine::blocks, in the order of their ranks.

#include <algorithm>

#include "machine.h"

namespace emulation {
namespace {

constexpr const char* kAtCluster = "a barrier of the cluster";
constexpr const char* kAtGrid = "a barrier of the grid";

// Notes an arrival. The last of `all` ends the generation and wakes everybody who waits for `what`; whether
// it was the last.
bool arrive(Crossing& crossing, int64_t all, const char* what) {
  Machine& m = machine();
  if (++crossing.arrived < all) return false;
  crossing.arrived = 0;
  ++crossing.generation;
  watched.grid_epoch = ++m.grid_epochs;
  for (const auto& block : m.blocks) wake_all(*block, what);
  return true;
}

}  // namespace

unsigned blocks_of_cluster() { return static_cast<unsigned>(count_of(machine().launch->cluster)); }

unsigned block_of_cluster() { return running().block->rank_of_cluster; }

Block& block_of_rank(unsigned rank) {
  const Machine& m = machine();
  const Block& block = *running().block;
  if (rank >= blocks_of_cluster()) fail("there is no such block in the cluster");
  const auto is_this = [&](const auto& each) { return each.get() == &block; };
  const auto found = std::find_if(m.blocks.begin(), m.blocks.end(), is_this);
  return **(found - block.rank_of_cluster + rank);
}

void* in_block_of_cluster(void* pointer, unsigned rank) {
  return block_of_rank(rank).arena + (static_cast<unsigned char*>(pointer) - running().block->arena);
}

void cluster_arrive() {
  Machine& m = machine();
  if (m.launch->cooperative && blocks_of_cluster() > 1) {
    fail("clusters of cooperative launches are not emulated");
  }
  if (m.arrived_cluster.contains(&running())) fail("a thread arrives at a cluster's barrier twice");
  m.arrived_cluster[&running()] = m.cluster.generation;
  arrive(m.cluster, static_cast<int64_t>(count_of(m.launch->cluster) * count_of(blockDim)), kAtCluster);
}

void cluster_wait() {
  Machine& m = machine();
  const auto found = m.arrived_cluster.find(&running());
  if (found == m.arrived_cluster.end()) {
    fail("a thread waits at a cluster's barrier where it has not arrived");
  }
  const int64_t generation = found->second;
  m.arrived_cluster.erase(found);
  while (m.cluster.generation == generation) wait(kAtCluster);
}

void grid_barrier() {
  Machine& m = machine();
  if (!m.launch->cooperative) fail("a barrier of the grid in a launch that is not cooperative");
  const int64_t generation = m.grid.generation;
  if (arrive(m.grid, static_cast<int64_t>(count_of(gridDim) * count_of(blockDim)), kAtGrid)) return;
  while (m.grid.generation == generation) wait(kAtGrid);
}

}  // namespace emulation
