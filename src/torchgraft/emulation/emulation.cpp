// Fibres, blocks, warps, and what they wait for: emulation.h.

#include "emulation.h"

#include <cuda_runtime.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <ctime>
#include <deque>
#include <fstream>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <set>
#include <sstream>
#include <stdexcept>
#include <vector>

#include "races.h"

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#else
#define ASAN_POISON_MEMORY_REGION(address, bytes) ((void)(address), (void)(bytes))
#define ASAN_UNPOISON_MEMORY_REGION(address, bytes) ((void)(address), (void)(bytes))
#endif
#ifndef __x86_64__
#include <ucontext.h>
#endif

uint3 threadIdx;
uint3 blockIdx;
dim3 blockDim;
dim3 gridDim;

namespace emulation {
namespace {

// Not a number, in every floating type.
constexpr unsigned char kPoison = 0xff;
// Beside every array of shared memory; what is written there is seen.
constexpr size_t kGuardBytes = 256;
constexpr const char* kAtCluster = "a barrier of the cluster";
constexpr const char* kAtCounting = "a barrier that counts bytes";
constexpr const char* kAtGrid = "a barrier of the grid";
constexpr size_t kMostSharedUnasked = 48 * 1024;

// What a device of a compute capability has: of the CUDA programming guide.
struct Architecture {
  int capability;          // as 75 or 90
  size_t shared_of_block;  // bytes, for a block that asks
  size_t shared_reserved;  // bytes of a multiprocessor that each block takes besides
  size_t shared_in_all;    // bytes of a multiprocessor
  size_t threads, blocks;  // resident on a multiprocessor
};
constexpr Architecture kArchitectures[] = {
    {75, 64 << 10, 0, 64 << 10, 1024, 16},       {80, 163 << 10, 1024, 164 << 10, 2048, 32},
    {86, 99 << 10, 1024, 100 << 10, 1536, 16},   {87, 163 << 10, 1024, 164 << 10, 1536, 16},
    {89, 99 << 10, 1024, 100 << 10, 1536, 24},   {90, 227 << 10, 1024, 228 << 10, 2048, 32},
    {100, 227 << 10, 1024, 228 << 10, 2048, 32}, {103, 227 << 10, 1024, 228 << 10, 2048, 32},
    {120, 99 << 10, 1024, 100 << 10, 1536, 24},  {121, 99 << 10, 1024, 100 << 10, 1536, 24},
};
constexpr size_t kMostShared = 227 << 10;  // of any
constexpr size_t kArenaBytes = kMostShared + 64 * kGuardBytes;
constexpr int kCompiledFor = EMULATED_CUDA_ARCH / 10;
#ifdef __SANITIZE_ADDRESS__
constexpr size_t kStackBytes = 1024 * 1024;
#else
constexpr size_t kStackBytes = 256 * 1024;
#endif

void* map_memory(size_t bytes) {
  void* memory =
      mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) throw std::runtime_error("emulation: no memory for fibres");
  return memory;
}

// Contexts: a stack of one's own, and where it stopped.

#ifdef __x86_64__
using Context = void*;

// Saves what the ABI has a function keep, on the stack that is left, and takes it from the other one.
asm(R"(
.text
.local emulation_switch
.type emulation_switch, @function
emulation_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq (%rsi), %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size emulation_switch, . - emulation_switch
)");
extern "C" void emulation_switch(Context* from, Context* to);

void prepare(Context& context, char* stack, void (*entry)()) {
  // As if `entry` had been called: a return address lies eight bytes below a sixteen-byte boundary.
  void** top = reinterpret_cast<void**>(stack + kStackBytes) - 1;
  *--top = reinterpret_cast<void*>(entry);
  for (int i = 0; i < 6; ++i) *--top = nullptr;
  context = top;
}

void switch_context(Context& from, Context& to) { emulation_switch(&from, &to); }
#else
using Context = ucontext_t;

void prepare(Context& context, char* stack, void (*entry)()) {
  getcontext(&context);
  context.uc_stack.ss_sp = stack;
  context.uc_stack.ss_size = kStackBytes;
  context.uc_link = nullptr;
  makecontext(&context, entry, 0);
}

void switch_context(Context& from, Context& to) { swapcontext(&from, &to); }
#endif

// Below so many stacks lies a page that nobody may touch, so that one that is too small shows. All threads
// run the same code, and each such page takes two of the 65,530 mappings that Linux gives a process.
constexpr size_t kGuardedStacks = 8192;

struct Stack {
  char* memory;

  explicit Stack(size_t number) {
    const size_t page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
    char* all = static_cast<char*>(map_memory(kStackBytes + page));
    if (number < kGuardedStacks) mprotect(all, page, PROT_NONE);
    memory = all + page;
  }
};

struct Copy {
  uint32_t shared;
  const void* global;
  int bytes;
  int source_bytes;
  const void* place;
};

struct Block;
struct Warp;

enum class State { ready, waiting, finished };

struct Fibre {
  Context context = {};
  char* stack = nullptr;
  uint3 thread = {};
  int lane = 0;
  unsigned rank = 0;  // of the block
  Block* block = nullptr;
  Warp* warp = nullptr;
  State state = State::ready;
  const char* waits_for = "";
  Meeting* meeting = nullptr;  // where it waits for its warp
  // The last group is still open.
  std::deque<std::vector<Copy>> copies;
  void* sanitizer_stack = nullptr;
};

struct Warp {
  std::vector<Fibre*> lanes;
  std::vector<Meeting*> all;
  std::vector<Meeting*> open;
  std::vector<Meeting*> unused;
  unsigned finished = 0;
  uint32_t epoch = 1;
};

struct Array {
  const void* key;
  size_t begin, end;
};

struct Barrier {
  int threads = 0;
  std::vector<Fibre*> waiting;
};

struct Block {
  uint3 index = {};
  unsigned rank_of_cluster = 0;
  std::vector<Block*>* cluster = nullptr;
  unsigned char* arena = nullptr;
  std::vector<Array> arrays;  // of shared memory; the first is the dynamic one
  uint32_t epoch = 0;         // no other block has had the same
  size_t end = 0;             // of what is in use of the arena
  std::vector<Fibre*> fibres;
  std::vector<Warp> warps;
  int finished = 0;
  std::array<Barrier, 16> barriers;
  int counted = 0;
  int count = 0;
  int readers = 0;
};

// Those of a cluster, or of a whole grid, that meet.
struct Crossing {
  int64_t arrived = 0;
  int64_t generation = 0;
};

// What a kernel says of itself, known once it has begun.
struct Compiled {
  int most_threads = 1024;
  size_t static_shared = 0;
};

struct Machine {
  std::mutex mutex;
  uint32_t epochs = 0;
  uint32_t grid_epochs = 0;
  // In one place, so that they are known from other memory.
  static constexpr size_t kMostMeetings = 1 << 18;
  Meeting* meetings = nullptr;
  size_t made_meetings = 0;

  Meeting* make_meeting() {
    if (meetings == nullptr) meetings = static_cast<Meeting*>(map_memory(kMostMeetings * sizeof(Meeting)));
    if (made_meetings == kMostMeetings) fail("too many meetings of warps");
    return new (meetings + made_meetings++) Meeting;
  }

  std::vector<Stack> stacks;
  std::vector<unsigned char*> arenas;
  // By the device's compute capability: what is allowed on one is not on another.
  std::map<std::pair<int, const void*>, int> allowed_shared;
  std::set<std::pair<int, const void*>> allowed_large_clusters;
  std::map<const void*, Compiled> compiled;
  int64_t launches = 0;
  cudaError_t error = cudaSuccess;

  // Of the launch that runs.
  const Launch* launch = nullptr;
  const void* function = nullptr;
  const std::function<void()>* body = nullptr;
  std::vector<std::unique_ptr<Block>> blocks;
  std::vector<std::unique_ptr<Fibre>> fibres;
  Crossing grid;
  Crossing cluster;
  std::map<const Fibre*, int64_t> arrived_cluster;
  Fibre* running = nullptr;
  Context scheduler = {};
  std::string failure;
  bool failed = false;
  bool paused = false;  // by the fibre that ran last: another warp's turn
  std::mt19937 random;
  bool shuffled = false;
#ifdef __SANITIZE_ADDRESS__
  void* sanitizer_stack = nullptr;
  const void* scheduler_bottom = nullptr;
  size_t scheduler_bytes = 0;
#endif
};

Machine& machine() {
  static Machine* const only = new Machine;
  return *only;
}

int from_environment(const char* name, int otherwise) {
  const char* text = std::getenv(name);
  return text == nullptr ? otherwise : std::atoi(text);
}

Fibre& running() { return *machine().running; }

// What the device is: what kernels are compiled for, unless the environment says another one.
const Architecture& architecture() {
  const int capability = from_environment("TORCHGRAFT_EMULATED_ARCHITECTURE", kCompiledFor);
  for (const Architecture& each : kArchitectures) {
    if (each.capability == capability) return each;
  }
  throw std::runtime_error("emulation: no device of compute capability " + std::to_string(capability) +
                           " is known");
}

// Where launches are written to, one a line, that are then not run: so that plans of any size are seen, for
// any device. Null: they are run.
const char* launches_only() { return std::getenv("TORCHGRAFT_EMULATED_LAUNCHES"); }

// As kernels are compiled for one architecture, what is written for a device is what a build for it does.
int compiled_for() {
  return launches_only() != nullptr ? std::min(kCompiledFor, architecture().capability) : kCompiledFor;
}

// From the fibre that runs to the scheduler; returns when it is chosen again.
void leave_fibre(bool for_good) {
  settle_write();
  Machine& m = machine();
  Fibre& fibre = *m.running;
#ifdef __SANITIZE_ADDRESS__
  __sanitizer_start_switch_fiber(for_good ? nullptr : &fibre.sanitizer_stack, m.scheduler_bottom,
                                 m.scheduler_bytes);
#else
  (void)for_good;
#endif
  switch_context(fibre.context, m.scheduler);
#ifdef __SANITIZE_ADDRESS__
  __sanitizer_finish_switch_fiber(fibre.sanitizer_stack, nullptr, nullptr);
#endif
}

void enter_fibre(Fibre& fibre) {
  Machine& m = machine();
  m.running = &fibre;
  threadIdx = fibre.thread;
  blockIdx = fibre.block->index;
  watched.on = true;
  watched.arena = reinterpret_cast<const char*>(fibre.block->arena);
  watched.arena_bytes = kArenaBytes;
  watched.stack = fibre.stack;
  watched.stack_bytes = kStackBytes;
  watched.meetings = reinterpret_cast<const char*>(m.meetings);
  watched.meeting_bytes = m.meetings == nullptr ? 0 : Machine::kMostMeetings * sizeof(Meeting);
  watched.block = (blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
  watched.thread = fibre.rank;
  watched.epoch = &fibre.block->epoch;
  watched.warp_epoch = &fibre.warp->epoch;
#ifdef __SANITIZE_ADDRESS__
  __sanitizer_start_switch_fiber(&m.sanitizer_stack, fibre.stack, kStackBytes);
#endif
  switch_context(m.scheduler, fibre.context);
#ifdef __SANITIZE_ADDRESS__
  __sanitizer_finish_switch_fiber(m.sanitizer_stack, nullptr, nullptr);
#endif
  m.running = nullptr;
  watched.on = false;
}

void wait(const char* what) {
  Fibre& fibre = running();
  fibre.state = State::waiting;
  fibre.waits_for = what;
  leave_fibre(false);
}

void wake(Fibre& fibre) { fibre.state = State::ready; }

// A meeting is complete when all its lanes are there; those that have finished are not waited for.
void complete_if_all_are_there(Warp& warp, Meeting& meeting) {
  const unsigned missing = meeting.lanes & ~meeting.here;
  if ((missing & ~warp.finished) != 0) return;
  if (missing != 0 && meeting.aligned)
    fail(std::string(meeting.instruction) + ": lanes of the warp have returned");
  warp.open.erase(std::find(warp.open.begin(), warp.open.end(), &meeting));
  if (meeting.execute != nullptr) {
    watched.together = meeting.place;
    meeting.execute(meeting);
    settle_write();
    watched.together = nullptr;
  }
  if (meeting.orders && (meeting.here | warp.finished) == kAllLanes) ++warp.epoch;
  meeting.complete = true;
  meeting.leaving = meeting.here;
  for (Fibre* fibre : warp.lanes) {
    if (fibre->meeting == &meeting) wake(*fibre);
  }
}

void finish_fibre() {
  Fibre& fibre = running();
  wait_for_all_copies();
  fibre.state = State::finished;
  ++fibre.block->finished;
  fibre.warp->finished |= 1u << fibre.lane;
  const std::vector<Meeting*> open = fibre.warp->open;
  for (Meeting* meeting : open) complete_if_all_are_there(*fibre.warp, *meeting);
}

void fibre_entry() {
#ifdef __SANITIZE_ADDRESS__
  Machine& m = machine();
  __sanitizer_finish_switch_fiber(nullptr, &m.scheduler_bottom, &m.scheduler_bytes);
#endif
  (*machine().body)();
  finish_fibre();
  leave_fibre(true);
  std::abort();
}

// Shared memory: arrays with guards on both sides.

size_t add_array(Block& block, const void* key, size_t bytes, size_t alignment) {
  const size_t begin = (block.end + kGuardBytes + alignment - 1) / alignment * alignment;
  if (begin + bytes + kGuardBytes > kArenaBytes) fail("more shared memory than a block can have");
  const size_t end = begin + bytes + kGuardBytes;
  ASAN_UNPOISON_MEMORY_REGION(block.arena + block.end, end - block.end);
  std::memset(block.arena + block.end, kPoison, end - block.end);
  ASAN_POISON_MEMORY_REGION(block.arena + block.end, begin - block.end);
  ASAN_POISON_MEMORY_REGION(block.arena + begin + bytes, kGuardBytes);
  block.arrays.push_back({key, begin, begin + bytes});
  block.end = begin + bytes;
  return begin;
}

void check_guards(Block& block) {
  ASAN_UNPOISON_MEMORY_REGION(block.arena, block.end + kGuardBytes);
  size_t from = 0;
  for (size_t i = 0; i <= block.arrays.size(); ++i) {
    const bool last = i == block.arrays.size();
    const size_t to = last ? block.end + kGuardBytes : block.arrays[i].begin;
    for (size_t at = from; at < to; ++at) {
      if (block.arena[at] == kPoison) continue;
      std::ostringstream message;
      message << "a write beside shared memory, ";
      if (i > 0) {
        message << at - block.arrays[i - 1].end << " bytes behind an array of "
                << block.arrays[i - 1].end - block.arrays[i - 1].begin;
      } else {
        message << block.arrays[0].begin - at << " bytes in front of an array";
      }
      throw std::runtime_error(message.str());
    }
    if (!last) from = block.arrays[i].end;
  }
}

void start_block(Block& block, size_t block_number, size_t threads, size_t first_fibre) {
  Machine& m = machine();
  const Launch& launch = *m.launch;
  if (m.arenas.size() <= block_number) {
    m.arenas.push_back(static_cast<unsigned char*>(map_memory(kArenaBytes)));
  }
  block.arena = m.arenas[block_number];
  block.arrays.clear();
  block.end = 0;
  block.finished = 0;
  block.epoch = ++m.epochs;
  for (Barrier& barrier : block.barriers) barrier.waiting.clear();
  block.counted = block.count = block.readers = 0;
  add_array(block, nullptr, launch.dynamic_shared, 1024);

  block.fibres.resize(threads);
  block.warps.resize((threads + kWarp - 1) / kWarp);
  for (Warp& warp : block.warps) {
    warp.lanes.clear();
    warp.finished = 0;
    warp.open.clear();
    warp.unused = warp.all;
    warp.epoch = 1;
  }
  for (size_t i = 0; i < threads; ++i) {
    const size_t number = first_fibre + i;
    while (m.fibres.size() <= number) m.fibres.push_back(std::make_unique<Fibre>());
    while (m.stacks.size() <= number) m.stacks.emplace_back(m.stacks.size());
    Fibre& fibre = *m.fibres[number];
    fibre.stack = m.stacks[number].memory;
    const unsigned rank = static_cast<unsigned>(i);
    fibre.thread = {rank % launch.block.x, rank / launch.block.x % launch.block.y,
                    rank / (launch.block.x * launch.block.y)};
    fibre.lane = static_cast<int>(i % kWarp);
    fibre.rank = rank;
    fibre.block = &block;
    fibre.warp = &block.warps[i / kWarp];
    fibre.warp->lanes.push_back(&fibre);
    fibre.state = State::ready;
    fibre.meeting = nullptr;
    fibre.copies.clear();
    fibre.copies.emplace_back();
    block.fibres[i] = &fibre;
    prepare(fibre.context, fibre.stack, fibre_entry);
  }
  // Lanes that the last warp does not have.
  Warp& last = block.warps.back();
  if (last.lanes.size() < kWarp) last.finished = ~((1u << last.lanes.size()) - 1);
}

std::string describe(const Fibre& fibre) {
  std::ostringstream text;
  text << fibre.waits_for;
  if (fibre.meeting != nullptr) text << " of lanes 0x" << std::hex << fibre.meeting->lanes;
  return text.str();
}

// Who waits for what, for a person to read.
std::string describe_waiting(const std::vector<Block*>& blocks) {
  std::map<std::string, int> groups;
  int finished = 0;
  for (const Block* block : blocks) {
    for (const Fibre* fibre : block->fibres) {
      if (fibre->state == State::finished) {
        ++finished;
      } else {
        ++groups[describe(*fibre)];
      }
    }
  }
  std::ostringstream text;
  text << "threads wait for each other in vain:";
  for (const auto& [what, count] : groups) text << " " << count << " at " << what << ",";
  text << " " << finished << " have returned; the first of those that wait:";
  int shown = 0;
  for (const Block* block : blocks) {
    for (const Fibre* fibre : block->fibres) {
      if (fibre->state == State::finished || shown++ >= 3) continue;
      text << " thread (" << fibre->thread.x << ", " << fibre->thread.y << ", " << fibre->thread.z << ") at "
           << describe(*fibre) << ";";
    }
  }
  return text.str();
}

// A warp runs as far as it can before the next one does, so that warps are far apart.
void run_blocks(std::vector<Block*>& blocks) {
  Machine& m = machine();
  std::vector<Warp*> warps;
  size_t left = 0;
  for (Block* block : blocks) {
    left += block->fibres.size();
    for (Warp& warp : block->warps) warps.push_back(&warp);
  }
  while (true) {
    bool progress = false;
    if (m.shuffled) std::shuffle(warps.begin(), warps.end(), m.random);
    for (Warp* warp : warps) {
      bool moved = true;
      while (moved) {
        moved = false;
        std::vector<Fibre*> lanes = warp->lanes;
        if (m.shuffled) std::shuffle(lanes.begin(), lanes.end(), m.random);
        for (Fibre* fibre : lanes) {
          if (fibre->state != State::ready) continue;
          enter_fibre(*fibre);
          if (m.failed) return;
          moved = progress = true;
        }
        if (std::exchange(m.paused, false) || (m.shuffled && m.random() % 4 == 0)) break;
      }
    }
    left = 0;
    for (Block* block : blocks) left += block->fibres.size() - static_cast<size_t>(block->finished);
    if (left == 0) return;
    if (progress) continue;
    m.failed = true;
    m.failure = describe_waiting(blocks);
    return;
  }
}

// Dynamic shared memory that blocks of a kernel may have.
size_t allowed_shared(const void* function) {
  const auto& allowed = machine().allowed_shared;
  const auto found = allowed.find({architecture().capability, function});
  return found == allowed.end() ? kMostSharedUnasked
                                : std::max(kMostSharedUnasked, static_cast<size_t>(found->second));
}

constexpr int kMostOfCluster = 16;

// The most blocks of a cluster; fewer where the variable TORCHGRAFT_EMULATED_CLUSTER says so, as on a slice
// of a device.
int most_of_cluster() { return from_environment("TORCHGRAFT_EMULATED_CLUSTER", kMostOfCluster); }

cudaError_t refusal(const Launch& launch, const void* function) {
  if (compiled_for() > architecture().capability) return cudaErrorNoKernelImageForDevice;
  const auto none = [](const dim3& size) { return size.x == 0 || size.y == 0 || size.z == 0; };
  if (none(launch.grid) || none(launch.block)) return cudaErrorInvalidConfiguration;
  if (launch.grid.x > 0x7fffffffu || launch.grid.y > 65535 || launch.grid.z > 65535 || launch.block.z > 64 ||
      uint64_t{launch.block.x} * launch.block.y * launch.block.z > 1024) {
    return cudaErrorInvalidConfiguration;
  }
  if (launch.dynamic_shared > allowed_shared(function)) return cudaErrorInvalidValue;
  const int of_cluster = static_cast<int>(launch.cluster.x * launch.cluster.y * launch.cluster.z);
  constexpr int kPortable = 8;
  if (of_cluster > 1 && architecture().capability < 90) return cudaErrorInvalidValue;
  if (of_cluster > most_of_cluster() ||
      (of_cluster > kPortable &&
       !machine().allowed_large_clusters.contains({architecture().capability, function}))) {
    return cudaErrorInvalidClusterSize;
  }
  if (launch.grid.x % launch.cluster.x != 0 || launch.grid.y % launch.cluster.y != 0 ||
      launch.grid.z % launch.cluster.z != 0) {
    return cudaErrorInvalidClusterSize;
  }
  if (launch.cooperative) {
    int resident = 0;
    const int threads = static_cast<int>(launch.block.x * launch.block.y * launch.block.z);
    cudaOccupancyMaxActiveBlocksPerMultiprocessor(&resident, function, threads, launch.dynamic_shared);
    const uint64_t blocks = uint64_t{launch.grid.x} * launch.grid.y * launch.grid.z;
    if (blocks > uint64_t(resident) * multiprocessors()) return cudaErrorCooperativeLaunchTooLarge;
  }
  return cudaSuccess;
}

// The same by what the kernel has said of itself.
cudaError_t refusal(const Launch& launch, const void* function, const Compiled& compiled) {
  const uint64_t threads = uint64_t{launch.block.x} * launch.block.y * launch.block.z;
  if (threads > static_cast<uint64_t>(compiled.most_threads)) return cudaErrorLaunchOutOfResources;
  const bool asked = machine().allowed_shared.contains({architecture().capability, function});
  const size_t most = asked ? architecture().shared_of_block : kMostSharedUnasked;
  return launch.dynamic_shared + compiled.static_shared > most ? cudaErrorInvalidValue : cudaSuccess;
}

}  // namespace

bool runs_launches() { return launches_only() == nullptr; }

void expect_bounds(int most_threads, int) {
  machine().compiled[machine().function].most_threads = most_threads;
  const int threads = static_cast<int>(running().block->fibres.size());
  if (threads > most_threads) {
    fail(std::to_string(threads) + " threads a block are more than the " + std::to_string(most_threads) +
         " that the kernel is compiled for");
  }
}

int multiprocessors() { return from_environment("TORCHGRAFT_EMULATED_MULTIPROCESSORS", 4); }

void fail(const std::string& message) {
  Machine& m = machine();
  if (m.running == nullptr) throw std::runtime_error("emulation: " + message);
  m.failed = true;
  const Fibre& fibre = *m.running;
  std::ostringstream text;
  text << message << " (block " << fibre.block->index.x << ", " << fibre.block->index.y << ", "
       << fibre.block->index.z << ", thread " << fibre.thread.x << ", " << fibre.thread.y << ", "
       << fibre.thread.z << ")";
  m.failure = text.str();
  leave_fibre(false);
  std::abort();
}

void write_launch(const char* path, const Launch& launch) {
  ++machine().launches;
  std::ostringstream line;
  line << launch.kernel << '\t' << launch.grid.x << ' ' << launch.grid.y << ' ' << launch.grid.z << '\t'
       << launch.block.x << ' ' << launch.block.y << ' ' << launch.block.z << '\t' << launch.dynamic_shared
       << '\n';
  const std::string text = line.str();
  static std::ofstream file(path, std::ios::app);
  file.write(text.data(), static_cast<std::streamsize>(text.size()));
}

void run(const Launch& launch, const void* function, const std::function<void()>& body) {
  Machine& m = machine();
  const std::lock_guard lock(m.mutex);
  if (const cudaError_t refused = refusal(launch, function); refused != cudaSuccess) {
    m.error = refused;
    return;
  }
  if (const char* path = launches_only()) {
    const auto known = m.compiled.find(function);
    if (known != m.compiled.end() && function != nullptr) {
      const cudaError_t refused = refusal(launch, function, known->second);
      if (refused != cudaSuccess) {
        m.error = refused;
      } else {
        write_launch(path, launch);
      }
      return;
    }
    write_launch(path, launch);
  }
  const int seed = from_environment("TORCHGRAFT_EMULATION_ORDER", 0);
  m.shuffled = seed != 0;
  m.random.seed(static_cast<unsigned>(seed));
  m.launch = &launch;
  m.function = function;
  watched.grid_epoch = ++m.grid_epochs;
  m.body = &body;
  m.failed = false;
  m.grid = m.cluster = {};
  m.arrived_cluster.clear();
  blockDim = launch.block;
  gridDim = launch.grid;

  const size_t threads = size_t{launch.block.x} * launch.block.y * launch.block.z;
  const dim3& cluster = launch.cluster;
  const bool whole = launch.cooperative && runs_launches();
  const uint64_t together = whole ? uint64_t{launch.grid.x} * launch.grid.y * launch.grid.z
                                  : uint64_t{cluster.x} * cluster.y * cluster.z;
  while (m.blocks.size() < together) m.blocks.push_back(std::make_unique<Block>());

  std::vector<Block*> alive;
  const auto run_alive = [&] {
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
      for (Block* block : alive) ASAN_UNPOISON_MEMORY_REGION(block->arena, kArenaBytes);
      throw std::runtime_error(std::string("emulation: ") + launch.kernel + ": " + m.failure);
    }
    alive.clear();
    m.cluster = {};
    m.arrived_cluster.clear();
  };
  // Cluster after cluster; a block without one is a cluster of one.
  for (unsigned cz = 0; cz < launch.grid.z; cz += cluster.z) {
    for (unsigned cy = 0; cy < launch.grid.y; cy += cluster.y) {
      for (unsigned cx = 0; cx < launch.grid.x; cx += cluster.x) {
        unsigned rank = 0;
        for (unsigned z = 0; z < cluster.z; ++z) {
          for (unsigned y = 0; y < cluster.y; ++y) {
            for (unsigned x = 0; x < cluster.x; ++x) {
              Block& block = *m.blocks[alive.size()];
              block.index = {cx + x, cy + y, cz + z};
              block.rank_of_cluster = rank++;
              start_block(block, alive.size(), threads, alive.size() * threads);
              alive.push_back(&block);
            }
          }
        }
        // Its first thread says what the kernel is compiled for, as far as it comes alone.
        if (!runs_launches()) {
          enter_fibre(*alive[0]->fibres[0]);
          if (m.failed)
            throw std::runtime_error(std::string("emulation: ") + launch.kernel + ": " + m.failure);
          return;
        }
        if (!whole) run_alive();
      }
    }
  }
  if (whole) run_alive();
}

void* dynamic_shared() {
  Block& block = *running().block;
  return block.arena + block.arrays[0].begin;
}

void* static_shared(const void* key, size_t bytes, size_t alignment) {
  Block& block = *running().block;
  for (const Array& array : block.arrays) {
    if (array.key == key) return block.arena + array.begin;
  }
  size_t in_use = bytes;
  for (size_t i = 1; i < block.arrays.size(); ++i) in_use += block.arrays[i].end - block.arrays[i].begin;
  if (in_use > kMostSharedUnasked) fail("more than 48 KB of static shared memory");
  const size_t dynamic = machine().launch->dynamic_shared;
  size_t& known = machine().compiled[machine().function].static_shared;
  known = std::max(known, in_use);
  const bool asked = machine().allowed_shared.contains({architecture().capability, machine().function});
  const size_t most = asked ? architecture().shared_of_block : kMostSharedUnasked;
  if (in_use + dynamic > most) {
    fail(std::to_string(in_use) + " bytes of static and " + std::to_string(dynamic) +
         " of dynamic shared memory are more than " + std::to_string(most));
  }
  return block.arena + add_array(block, key, bytes, std::max<size_t>(alignment, 16));
}

bool is_shared(const void* pointer) {
  const auto* byte = static_cast<const unsigned char*>(pointer);
  const Block& block = *running().block;
  return byte >= block.arena && byte < block.arena + kArenaBytes;
}

uint32_t shared_address(const void* pointer) {
  if (!is_shared(pointer)) fail("a pointer to shared memory does not point there");
  return static_cast<uint32_t>(static_cast<const unsigned char*>(pointer) - running().block->arena);
}

void* shared_pointer(uint32_t address, size_t bytes, size_t alignment) {
  const Block& block = *running().block;
  if (address % alignment != 0) {
    fail("an access of " + std::to_string(bytes) + " bytes of shared memory off their boundary");
  }
  for (const Array& array : block.arrays) {
    if (address >= array.begin && address + bytes <= array.end) return block.arena + address;
  }
  std::ostringstream message;
  message << "an access beside shared memory: " << bytes << " bytes at " << address << " where arrays are";
  for (const Array& array : block.arrays) message << " [" << array.begin << ", " << array.end << ")";
  fail(message.str());
}

namespace {

Block& block_of_rank(unsigned rank) {
  const Block& block = *running().block;
  if (rank >= blocks_of_cluster()) fail("there is no such block in the cluster");
  const size_t number =
      static_cast<size_t>(std::find_if(machine().blocks.begin(), machine().blocks.end(),
                                       [&](const auto& each) { return each.get() == &block; }) -
                          machine().blocks.begin());
  return *machine().blocks[number - block.rank_of_cluster + rank];
}

}  // namespace

void* in_block_of_cluster(void* pointer, unsigned rank) {
  return block_of_rank(rank).arena + (static_cast<unsigned char*>(pointer) - running().block->arena);
}

void block_barrier(int name, int threads) {
  Fibre& fibre = running();
  Block& block = *fibre.block;
  if (name < 0 || name > 15) fail("a block has barriers 0 to 15");
  Barrier& barrier = block.barriers[static_cast<size_t>(name)];
  const int all = static_cast<int>(block.fibres.size());
  const int expected = threads < 0 ? all : threads;
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
  // The first to read takes the count over, and the last one makes way for the next.
  if (block.readers == 0) {
    block.count = block.counted;
    block.counted = 0;
  }
  const int count = block.count;
  block.readers = (block.readers + 1) % static_cast<int>(block.fibres.size());
  block_barrier();
  return count;
}

unsigned blocks_of_cluster() {
  const dim3& cluster = machine().launch->cluster;
  return cluster.x * cluster.y * cluster.z;
}

unsigned block_of_cluster() { return running().block->rank_of_cluster; }

void cluster_arrive() {
  Machine& m = machine();
  if (m.launch->cooperative && blocks_of_cluster() > 1)
    fail("clusters of cooperative launches are not emulated");
  if (m.arrived_cluster.count(&running()) != 0) fail("a thread arrives at a cluster's barrier twice");
  m.arrived_cluster[&running()] = m.cluster.generation;
  const int64_t all = int64_t{blocks_of_cluster()} * blockDim.x * blockDim.y * blockDim.z;
  if (++m.cluster.arrived < all) return;
  m.cluster.arrived = 0;
  watched.grid_epoch = ++m.grid_epochs;
  ++m.cluster.generation;
  for (const auto& block : m.blocks) {
    for (Fibre* fibre : block->fibres) {
      if (fibre->state == State::waiting && fibre->waits_for == kAtCluster) wake(*fibre);
    }
  }
}

void cluster_wait() {
  Machine& m = machine();
  const auto found = m.arrived_cluster.find(&running());
  if (found == m.arrived_cluster.end())
    fail("a thread waits at a cluster's barrier where it has not arrived");
  const int64_t generation = found->second;
  m.arrived_cluster.erase(found);
  while (m.cluster.generation == generation) wait(kAtCluster);
}

void grid_barrier() {
  Machine& m = machine();
  if (!m.launch->cooperative) fail("a barrier of the grid in a launch that is not cooperative");
  const int64_t all = int64_t{gridDim.x} * gridDim.y * gridDim.z * blockDim.x * blockDim.y * blockDim.z;
  const int64_t generation = m.grid.generation;
  if (++m.grid.arrived < all) {
    while (m.grid.generation == generation) wait(kAtGrid);
    return;
  }
  m.grid.arrived = 0;
  watched.grid_epoch = ++m.grid_epochs;
  ++m.grid.generation;
  for (const auto& block : m.blocks) {
    for (Fibre* fibre : block->fibres) {
      if (fibre->state == State::waiting && fibre->waits_for == kAtGrid) wake(*fibre);
    }
  }
}

int lane() { return running().lane; }

void pause() {
  machine().paused = true;
  leave_fibre(false);
}

Meeting& meet(const char* instruction, unsigned lanes, const void* operand, size_t bytes, Execute execute,
              bool aligned) {
  Fibre& fibre = running();
  Warp& warp = *fibre.warp;
  const unsigned self = 1u << fibre.lane;
  if ((lanes & self) == 0) fail(std::string(instruction) + ": the lane is not in its mask");
  Meeting* meeting = nullptr;
  for (Meeting* each : warp.open) {
    if (each->lanes == lanes && (each->here & self) == 0 &&
        std::strcmp(each->instruction, instruction) == 0) {
      meeting = each;
    }
  }
  if (meeting == nullptr) {
    if (warp.unused.empty()) {
      warp.all.push_back(machine().make_meeting());
      warp.unused.push_back(warp.all.back());
    }
    meeting = warp.unused.back();
    warp.unused.pop_back();
    meeting->instruction = instruction;
    meeting->lanes = lanes;
    meeting->here = meeting->leaving = 0;
    meeting->complete = false;
    meeting->execute = execute;
    meeting->aligned = aligned;
    meeting->place = __builtin_return_address(0);
    meeting->orders = execute == nullptr && bytes == 0;
    warp.open.push_back(meeting);
  }
  meeting->here |= self;
  if (bytes > 0) std::memcpy(meeting->operands[fibre.lane], operand, bytes);
  complete_if_all_are_there(warp, *meeting);
  fibre.meeting = meeting;
  if (!meeting->complete) wait(instruction);
  fibre.meeting = nullptr;
  return *meeting;
}

void part(Meeting& meeting) {
  Fibre& fibre = running();
  meeting.leaving &= ~(1u << fibre.lane);
  if (meeting.leaving == 0) fibre.warp->unused.push_back(&meeting);
}

// Barriers that count arrivals and bytes.

namespace {

struct Counting {
  int32_t bytes;  // that are expected and have not come; fewer than none where they came first
  uint16_t missing;
  uint8_t count;
  uint8_t phase;
};
static_assert(sizeof(Counting) == 8, "what a barrier takes of shared memory");

// Above an address in the cluster's shared memory: the block's rank and one, so that no block's own looks so.
constexpr int kRankShift = 24;

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
  for (Fibre* fibre : block.fibres) {
    if (fibre->state == State::waiting && fibre->waits_for == kAtCounting) wake(*fibre);
  }
}

Counting& counting_at(uint32_t barrier) { return *static_cast<Counting*>(shared_pointer(barrier, 8, 8)); }

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
  // Not watched: it is no race with who waits for its barrier.
  std::memcpy(to, value, bytes);
  auto& counting = *static_cast<Counting*>(pointer_in_cluster(barrier, 8));
  counting.bytes -= static_cast<int32_t>(bytes);
  end_phase_if_all_came(counting, block_of_rank((barrier >> kRankShift) - 1));
}

// Asynchronous copies.

namespace {

void watch_copy(const Copy& copy, void* to) {
  watch_access(const_cast<void*>(copy.global), static_cast<size_t>(copy.source_bytes), false, copy.place);
  watch_access(to, static_cast<size_t>(copy.bytes), true, copy.place);
}

void copy_now(const Copy& copy) {
  auto* to = static_cast<unsigned char*>(
      shared_pointer(copy.shared, static_cast<size_t>(copy.bytes), static_cast<size_t>(copy.bytes)));
  watch_copy(copy, to);
  if (copy.source_bytes > 0) std::memcpy(to, copy.global, static_cast<size_t>(copy.source_bytes));
  std::memset(to + copy.source_bytes, 0, static_cast<size_t>(copy.bytes - copy.source_bytes));
}

}  // namespace

void copy_later(uint32_t shared, const void* global, int bytes, int source_bytes) {
  if (bytes != 4 && bytes != 8 && bytes != 16) fail("cp.async copies 4, 8 or 16 bytes");
  if (source_bytes < 0 || source_bytes > bytes) fail("cp.async: more bytes of the source than are copied");
  if (source_bytes > 0 && reinterpret_cast<uintptr_t>(global) % static_cast<uintptr_t>(bytes) != 0) {
    fail("cp.async: " + std::to_string(bytes) + " bytes off their boundary in device memory");
  }
  shared_pointer(shared, static_cast<size_t>(bytes), static_cast<size_t>(bytes));
  Machine& m = machine();
  const Copy copy = {shared, global, bytes, source_bytes, __builtin_return_address(0)};
  // As late as it may arrive; or, in another order, at once or so.
  if (m.shuffled && m.random() % 2 == 0) {
    copy_now(copy);
  } else {
    running().copies.back().push_back(copy);
  }
}

void end_copy_group() { running().copies.emplace_back(); }

void wait_for_copy_groups(int pending) {
  auto& groups = running().copies;
  while (static_cast<int>(groups.size()) - 1 > pending) {
    for (const Copy& copy : groups.front()) copy_now(copy);
    groups.pop_front();
  }
}

void wait_for_all_copies() {
  end_copy_group();
  wait_for_copy_groups(0);
}

}  // namespace emulation

// The CUDA runtime.

namespace {

using emulation::machine;

cudaError_t failed(cudaError_t error) { return machine().error = error; }

}  // namespace

cudaError_t cudaGetLastError() { return std::exchange(machine().error, cudaSuccess); }
cudaError_t cudaPeekAtLastError() { return machine().error; }

const char* cudaGetErrorString(cudaError_t error) {
  switch (error) {
    case cudaSuccess:
      return "no error";
    case cudaErrorInvalidValue:
      return "invalid argument";
    case cudaErrorInvalidConfiguration:
      return "invalid configuration argument";
    case cudaErrorNoKernelImageForDevice:
      return "no kernel image is available for execution on the device";
    case cudaErrorLaunchOutOfResources:
      return "too many resources requested for launch";
    case cudaErrorCooperativeLaunchTooLarge:
      return "too many blocks in cooperative launch";
    case cudaErrorInvalidClusterSize:
      return "cluster misconfiguration";
    default:
      return "unknown error";
  }
}

// Of each compute capability there is a device, so that what host functions know of one is of that one.
cudaError_t cudaGetDevice(int* device) {
  *device = emulation::architecture().capability;
  return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int) {
  const emulation::Architecture& device = emulation::architecture();
  const auto of_attribute = [&]() -> size_t {
    switch (attribute) {
      case cudaDevAttrMaxThreadsPerBlock:
        return 1024;
      case cudaDevAttrWarpSize:
        return emulation::kWarp;
      case cudaDevAttrMultiProcessorCount:
        return static_cast<size_t>(emulation::multiprocessors());
      case cudaDevAttrMaxThreadsPerMultiProcessor:
        return device.threads;
      case cudaDevAttrComputeCapabilityMajor:
        return static_cast<size_t>(device.capability / 10);
      case cudaDevAttrComputeCapabilityMinor:
        return static_cast<size_t>(device.capability % 10);
      case cudaDevAttrL2CacheSize:
        return 50 << 20;
      case cudaDevAttrMaxSharedMemoryPerBlock:
        return emulation::kMostSharedUnasked;
      case cudaDevAttrMaxSharedMemoryPerMultiprocessor:
        return device.shared_in_all;
      case cudaDevAttrMaxSharedMemoryPerBlockOptin:
        return device.shared_of_block;
      case cudaDevAttrReservedSharedMemoryPerBlock:
        return device.shared_reserved;
      case cudaDevAttrCooperativeLaunch:
        return 1;
      case cudaDevAttrClusterLaunch:
        return device.capability >= 90 ? 1 : 0;
    }
    return SIZE_MAX;
  };
  const size_t found = of_attribute();
  if (found == SIZE_MAX) return failed(cudaErrorInvalidValue);
  *value = static_cast<int>(found);
  return cudaSuccess;
}

cudaError_t cudaFuncSetAttribute(const void* function, cudaFuncAttribute attribute, int value) {
  if (attribute == cudaFuncAttributeMaxDynamicSharedMemorySize) {
    if (value < 0 || static_cast<size_t>(value) > emulation::architecture().shared_of_block) {
      return failed(cudaErrorInvalidValue);
    }
    machine().allowed_shared[{emulation::architecture().capability, function}] = value;
  }
  if (attribute == cudaFuncAttributeNonPortableClusterSizeAllowed) {
    if (emulation::architecture().capability < 90 ||
        emulation::most_of_cluster() < emulation::kMostOfCluster) {
      return failed(cudaErrorInvalidValue);
    }
    machine().allowed_large_clusters.insert({emulation::architecture().capability, function});
  }
  return cudaSuccess;
}

cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attributes, const void*) {
  const int capability = emulation::architecture().capability;
  if (emulation::compiled_for() > capability) return failed(cudaErrorNoKernelImageForDevice);
  *attributes = {emulation::compiled_for(), capability};
  return cudaSuccess;
}

cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, const void*, int threads,
                                                          size_t shared) {
  const emulation::Architecture& device = emulation::architecture();
  const size_t of_threads = device.threads / static_cast<size_t>((threads + 31) / 32 * 32);
  const size_t taken = std::max<size_t>(shared + device.shared_reserved, 1);
  *blocks = static_cast<int>(std::min({of_threads, device.shared_in_all / taken, device.blocks}));
  return cudaSuccess;
}

cudaError_t cudaOccupancyMaxActiveClusters(int* clusters, const void* function,
                                           const cudaLaunchConfig_t* config) {
  const dim3 block = config->blockDim;
  int resident = 0;
  cudaOccupancyMaxActiveBlocksPerMultiprocessor(
      &resident, function, static_cast<int>(block.x * block.y * block.z), config->dynamicSmemBytes);
  const dim3 cluster = emulation::make_launch("", *config).cluster;
  const int blocks = static_cast<int>(cluster.x * cluster.y * cluster.z);
  if (blocks > emulation::most_of_cluster()) return failed(cudaErrorInvalidClusterSize);
  *clusters = resident * emulation::multiprocessors() / blocks;
  return cudaSuccess;
}

// A stream is captured while the variable TORCHGRAFT_EMULATED_CAPTURE is set: then nobody can wait for it.
cudaError_t cudaStreamIsCapturing(cudaStream_t, cudaStreamCaptureStatus* status) {
  const bool captured = std::getenv("TORCHGRAFT_EMULATED_CAPTURE") != nullptr;
  *status = captured ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusNone;
  return cudaSuccess;
}

cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode* mode) {
  static thread_local cudaStreamCaptureMode current = cudaStreamCaptureModeGlobal;
  std::swap(*mode, current);
  return cudaSuccess;
}

// Kernels have run when a launch returns, so an event is a time of the host: of the processors in this
// process, so that what other programs do meanwhile does not count.
struct EmulatedEvent {
  double milliseconds;
};

cudaError_t cudaEventCreate(cudaEvent_t* event) {
  *event = new EmulatedEvent;
  return cudaSuccess;
}

cudaError_t cudaEventDestroy(cudaEvent_t event) {
  delete event;
  return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t) {
  timespec time = {};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  event->milliseconds = static_cast<double>(time.tv_sec) * 1e3 + static_cast<double>(time.tv_nsec) * 1e-6;
  return cudaSuccess;
}

cudaError_t cudaEventSynchronize(cudaEvent_t) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  cudaStreamIsCapturing(nullptr, &status);
  return status == cudaStreamCaptureStatusNone ? cudaSuccess : cudaErrorStreamCaptureUnsupported;
}

cudaError_t cudaEventQuery(cudaEvent_t) { return cudaErrorNotReady; }

cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t begin, cudaEvent_t end) {
  *milliseconds = static_cast<float>(end->milliseconds - begin->milliseconds);
  return cudaSuccess;
}

cudaError_t cudaMemsetAsync(void* memory, int value, size_t bytes, cudaStream_t) {
  if (emulation::launches_only() != nullptr) return cudaSuccess;
  std::memset(memory, value, bytes);
  return cudaSuccess;
}

cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind, cudaStream_t) {
  if (emulation::launches_only() != nullptr) return cudaSuccess;
  std::memcpy(to, from, bytes);
  return cudaSuccess;
}

// How many launches were written down so far, for whoever counts them.
extern "C" __attribute__((visibility("default"))) int64_t torchgraft_emulated_launches() {
  return machine().launches;
}
