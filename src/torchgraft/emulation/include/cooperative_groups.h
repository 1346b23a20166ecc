// The cooperative groups that kernels use: the block, the cluster and the grid.
#pragma once

#include "cuda_runtime.h"

namespace cooperative_groups {

struct grid_group {
  void sync() const { emulation::grid_barrier(); }
};
struct cluster_group {
  void sync() const {
    emulation::cluster_arrive();
    emulation::cluster_wait();
  }
  static void barrier_arrive() { emulation::cluster_arrive(); }
  static void barrier_wait() { emulation::cluster_wait(); }
  static unsigned block_rank() { return emulation::block_of_cluster(); }
  static unsigned num_blocks() { return emulation::blocks_of_cluster(); }
  template <typename T>
  static T* map_shared_rank(T* pointer, unsigned rank) {
    return static_cast<T*>(emulation::in_block_of_cluster(pointer, rank));
  }
};
struct thread_block {
  void sync() const { __syncthreads(); }
};

inline grid_group this_grid() { return {}; }
inline cluster_group this_cluster() { return {}; }
inline thread_block this_thread_block() { return {}; }

}  // namespace cooperative_groups
