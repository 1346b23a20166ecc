// The state of the emulator: the threads, warps and blocks of the launch that runs, and what outlives a
// launch.
//
// A launch runs on one thread of the host, and only one launch runs at a time. The files beside this one
// share this state; the functions that they call of each other are declared at the end.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "../races.h"
#include "context.h"
#include "device.h"
#include "emulation.h"

namespace emulation {

// Shared memory is filled with these bytes before it is used: no number, in every floating type.
constexpr unsigned char kPoison = 0xff;
// The bytes of poison between arrays of shared memory, where a write is found afterwards.
constexpr size_t kGuardBytes = 256;
// The memory in which a block has its arrays, with their guards.
constexpr size_t kArenaBytes = kMostShared + 64 * kGuardBytes;

struct Block;
struct Warp;

// An asynchronous copy that has begun and not arrived.
struct Copy {
  uint32_t shared;  // the address that it writes to
  const void* global;
  int bytes;
  int source_bytes;   // the rest is filled with zeros
  const void* place;  // in the program, where it began
};

enum class State { ready, waiting, finished };

// A thread of the device.
struct Fibre {
  Context context = {};
  char* stack = nullptr;
  uint3 thread = {};
  int lane = 0;
  unsigned rank = 0;  // of the thread in its block
  Block* block = nullptr;
  Warp* warp = nullptr;
  State state = State::ready;
  const char* waits_for = "";
  Meeting* meeting = nullptr;  // of its warp, at which it waits
  // Groups of copies. The last group is still open.
  std::deque<std::vector<Copy>> copies;
  void* sanitizer_stack = nullptr;
};

struct Warp {
  std::vector<Fibre*> lanes;
  std::vector<Meeting*> all;  // meetings that the warp has ever used, to be used again
  std::vector<Meeting*> open;
  std::vector<Meeting*> unused;
  unsigned finished = 0;  // lanes that have returned, or that the warp does not have
  uint32_t epoch = 1;     // grows with every __syncwarp of all lanes
};

// An array of shared memory: the bytes [begin, end) of the block's arena.
struct Array {
  const void* key;  // the address that tells variables from each other; null for dynamic shared memory
  size_t begin, end;
};

// One of the sixteen barriers of a block.
struct Barrier {
  int threads = 0;
  std::vector<Fibre*> waiting;
};

struct Block {
  uint3 index = {};
  unsigned rank_of_cluster = 0;
  unsigned char* arena = nullptr;
  std::vector<Array> arrays;  // the first one is dynamic shared memory
  uint32_t epoch = 0;         // grows with every barrier of the block; no other block has had the same
  size_t end = 0;             // bytes of the arena that are in use
  std::vector<Fibre*> fibres;
  std::vector<Warp> warps;
  int finished = 0;
  std::array<Barrier, 16> barriers;
  // __syncthreads_count: the count that grows, the count that threads read, and how many have read it.
  int counted = 0;
  int count = 0;
  int readers = 0;
};

// The arrivals at the barrier of a cluster, or of the whole grid.
struct Crossing {
  int64_t arrived = 0;
  int64_t generation = 0;
};

struct Machine {
  // State that outlives a launch.
  std::mutex mutex;
  uint32_t epochs = 0;
  uint32_t grid_epochs = 0;
  std::vector<Stack> stacks;
  std::vector<unsigned char*> arenas;
  std::vector<std::unique_ptr<Block>> blocks;
  std::vector<std::unique_ptr<Fibre>> fibres;
  // Meetings lie in one place, so that races.cpp can tell them from memory of kernels.
  static constexpr size_t kMostMeetings = 1 << 18;
  Meeting* meetings = nullptr;
  size_t made_meetings = 0;
  // By compute capability and kernel, as host functions have asked.
  std::map<std::pair<int, const void*>, int> allowed_shared;
  std::set<std::pair<int, const void*>> allowed_large_clusters;
  std::map<const void*, Declarations> declared;
  int64_t launches = 0;  // that were written down
  cudaError_t error = cudaSuccess;

  // The launch that runs.
  const Launch* launch = nullptr;
  const void* function = nullptr;
  const std::function<void()>* body = nullptr;
  Crossing grid;
  Crossing cluster;
  std::map<const Fibre*, int64_t> arrived_cluster;
  Fibre* running = nullptr;
  Context scheduler = {};
  std::string failure;
  bool failed = false;
  bool paused = false;  // the fibre that ran last gives its turn to another warp
  std::mt19937 random;
  bool shuffled = false;  // the order of threads and of copies is drawn
  void* sanitizer_stack = nullptr;
  const void* scheduler_bottom = nullptr;
  size_t scheduler_bytes = 0;
};

inline Machine& machine() {
  static Machine* const only = new Machine;
  return *only;
}

inline Fibre& running() { return *machine().running; }

// fibres.cpp: a fibre runs from enter_fibre until it waits or has finished.
void begin_fibre(Fibre& fibre);
void enter_fibre(Fibre& fibre);
void leave_fibre(bool for_good);
void wait(const char* what);
inline void wake(Fibre& fibre) { fibre.state = State::ready; }
// Wakes all fibres of a block that wait for `what`: the same pointer that they gave to `wait`.
void wake_all(Block& block, const char* what);

// scheduler.cpp: runs blocks until all their threads have finished, or until the launch has failed.
void run_blocks(const std::vector<Block*>& blocks);

// warps.cpp: what happens at the open meetings of a warp when a lane has finished.
void leave_warp(Fibre& fibre);

// shared_memory.cpp
void begin_shared_memory(Block& block, size_t dynamic);
// Throws if something was written between the arrays of a block.
void check_guards(Block& block);

// clusters.cpp: the block of a rank, in the cluster of the block that runs.
Block& block_of_rank(unsigned rank);

}  // namespace emulation
