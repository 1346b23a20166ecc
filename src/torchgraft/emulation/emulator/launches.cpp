// Launches: from the arguments of a launch to blocks and threads that run.
//
// A launch that a device would refuse leaves an error. Blocks run one cluster after the other; a block
// without a cluster is a cluster of one. All blocks of a cooperative launch are alive at once. Where launches
// are only written to a file, one thread of each kernel begins, so that what the kernel declares is known.

#include <fstream>
#include <sstream>
#include <stdexcept>

#include "machine.h"

uint3 threadIdx;
uint3 blockIdx;
dim3 blockDim;
dim3 gridDim;

namespace emulation {
namespace {

// The position of a number, counted along x first.
uint3 position(uint64_t number, const dim3& size) {
  const auto along = [](uint64_t value) { return static_cast<unsigned>(value); };
  return {along(number % size.x), along(number / size.x % size.y), along(number / size.x / size.y)};
}

void write_launch(const Launch& launch) {
  ++machine().launches;
  std::ostringstream line;
  line << launch.kernel << '\t' << launch.grid.x << ' ' << launch.grid.y << ' ' << launch.grid.z << '\t'
       << launch.block.x << ' ' << launch.block.y << ' ' << launch.block.z << '\t' << launch.dynamic_shared
       << '\n';
  const std::string text = line.str();
  static std::ofstream file(launches_only(), std::ios::app);
  file.write(text.data(), static_cast<std::streamsize>(text.size()));
}

// Writes down a launch of a kernel whose declarations are known; whether they are.
bool write_known_launch(const Launch& launch, const void* function) {
  Machine& m = machine();
  const auto known = m.declared.find(function);
  if (known == m.declared.end() || function == nullptr) return false;
  const cudaError_t refused = refuse_declared(launch, function, known->second);
  if (refused == cudaSuccess) {
    write_launch(launch);
  } else {
    m.error = refused;
  }
  return true;
}

void begin_launch(const Launch& launch, const void* function, const std::function<void()>& body) {
  Machine& m = machine();
  const int seed = from_environment("TORCHGRAFT_EMULATION_ORDER", 0);
  m.shuffled = seed != 0;
  m.random.seed(static_cast<unsigned>(seed));
  m.launch = &launch;
  m.function = function;
  m.body = &body;
  m.failed = false;
  m.grid = m.cluster = {};
  m.arrived_cluster.clear();
  watched.grid_epoch = ++m.grid_epochs;
  blockDim = launch.block;
  gridDim = launch.grid;
}

void begin_warps(Block& block, size_t threads) {
  block.warps.resize((threads + kWarp - 1) / kWarp);
  for (Warp& warp : block.warps) {
    warp.lanes.clear();
    warp.finished = 0;
    warp.open.clear();
    warp.unused = warp.all;
    warp.epoch = 1;
  }
  // The last warp may have fewer lanes.
  if (const size_t lanes = threads % kWarp; lanes > 0) block.warps.back().finished = kAllLanes << lanes;
}

void begin_thread(Block& block, size_t rank, Fibre& fibre) {
  Machine& m = machine();
  fibre.thread = position(rank, m.launch->block);
  fibre.lane = static_cast<int>(rank % kWarp);
  fibre.rank = static_cast<unsigned>(rank);
  fibre.block = &block;
  fibre.warp = &block.warps[rank / kWarp];
  fibre.warp->lanes.push_back(&fibre);
  block.fibres[rank] = &fibre;
  begin_fibre(fibre);
}

// Begins the block that is alive under a number; blocks of later launches use its memory again.
void begin_block(Block& block, size_t number) {
  Machine& m = machine();
  const size_t threads = count_of(m.launch->block);
  if (m.arenas.size() <= number) m.arenas.push_back(static_cast<unsigned char*>(map_memory(kArenaBytes)));
  block.arena = m.arenas[number];
  block.finished = 0;
  block.epoch = ++m.epochs;
  for (Barrier& barrier : block.barriers) barrier.waiting.clear();
  block.counted = block.count = block.readers = 0;
  begin_shared_memory(block, m.launch->dynamic_shared);
  block.fibres.resize(threads);
  begin_warps(block, threads);
  const size_t first = number * threads;
  while (m.fibres.size() < first + threads) m.fibres.push_back(std::make_unique<Fibre>());
  while (m.stacks.size() < first + threads) m.stacks.emplace_back(m.stacks.size());
  for (size_t rank = 0; rank < threads; ++rank) {
    Fibre& fibre = *m.fibres[first + rank];
    fibre.stack = m.stacks[first + rank].memory;
    begin_thread(block, rank, fibre);
  }
}

// Begins the blocks of a cluster, behind those that are alive already.
void begin_cluster(uint64_t number, std::vector<Block*>& alive) {
  Machine& m = machine();
  const dim3& grid = m.launch->grid;
  const dim3& cluster = m.launch->cluster;
  const uint3 at = position(number, {grid.x / cluster.x, grid.y / cluster.y, grid.z / cluster.z});
  for (unsigned rank = 0; rank < blocks_of_cluster(); ++rank) {
    if (m.blocks.size() <= alive.size()) m.blocks.push_back(std::make_unique<Block>());
    Block& block = *m.blocks[alive.size()];
    const uint3 within = position(rank, cluster);
    block.index = {at.x * cluster.x + within.x, at.y * cluster.y + within.y, at.z * cluster.z + within.z};
    block.rank_of_cluster = rank;
    begin_block(block, alive.size());
    alive.push_back(&block);
  }
}

void throw_if_failed() {
  const Machine& m = machine();
  if (m.failed) {
    throw std::runtime_error(std::string("emulation: ") + m.launch->kernel + ": " + m.failure);
  }
}

// Runs blocks that have begun until all have finished, and lets others take their place.
void run_alive(std::vector<Block*>& alive) {
  Machine& m = machine();
  run_blocks(alive);
  for (Block* block : alive) {
    if (m.failed) break;
    try {
      check_guards(*block);
    } catch (const std::runtime_error& error) {
      m.failed = true;
      m.failure = error.what();
    }
  }
  if (m.failed) {
    for (Block* block : alive) sanitizer::allow(block->arena, kArenaBytes);
  }
  throw_if_failed();
  alive.clear();
  m.cluster = {};
  m.arrived_cluster.clear();
}

void run_first_thread() {
  std::vector<Block*> alive;
  begin_cluster(0, alive);
  enter_fibre(*alive[0]->fibres[0]);
  throw_if_failed();
}

void run_all_threads() {
  const Launch& launch = *machine().launch;
  const uint64_t clusters = count_of(launch.grid) / count_of(launch.cluster);
  std::vector<Block*> alive;
  for (uint64_t number = 0; number < clusters; ++number) {
    begin_cluster(number, alive);
    const bool is_last = number + 1 == clusters;
    if (!launch.cooperative || is_last) run_alive(alive);
  }
}

}  // namespace

void run(const Launch& launch, const void* function, const std::function<void()>& body) {
  Machine& m = machine();
  const std::lock_guard lock(m.mutex);
  if (const cudaError_t refused = refuse_launch(launch, function); refused != cudaSuccess) {
    m.error = refused;
    return;
  }
  if (!runs_launches()) {
    if (write_known_launch(launch, function)) return;
    write_launch(launch);
  }
  begin_launch(launch, function, body);
  if (runs_launches()) {
    run_all_threads();
  } else {
    run_first_thread();
  }
}

void expect_bounds(int most_threads, int) {
  Machine& m = machine();
  m.declared[m.function].most_threads = most_threads;
  const int threads = static_cast<int>(running().block->fibres.size());
  if (threads > most_threads) {
    fail(std::to_string(threads) + " threads a block are more than the " + std::to_string(most_threads) +
         " that the kernel is compiled for");
  }
}

}  // namespace emulation

// How many launches were written down so far, for programs that count them.
extern "C" __attribute__((visibility("default"))) int64_t torchgraft_emulated_launches() {
  return emulation::machine().launches;
}
