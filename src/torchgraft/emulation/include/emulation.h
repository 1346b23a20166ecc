// CUDA kernels on the CPU, for what they compute and not for how fast.
//
// The threads of a block are fibres of one thread of the host. A fibre runs until it must wait for others: at
// a barrier of its warp, block, cluster or grid, or at an instruction that a warp executes together. Blocks
// run one after another, but those of a cluster, and of a cooperative launch, which are all alive at once.
//
// Seen as errors, with the kernel's name: fibres that wait for each other in vain, writes beside shared
// memory, accesses of instructions beside it or off their boundary, and launches that a device would refuse.
// Shared memory is filled with NaN before each block, and asynchronous copies arrive as late as they may.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>

struct uint3 {
  unsigned x, y, z;
};

struct dim3 {
  unsigned x, y, z;
  constexpr dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
};

// Of the fibre that runs.
extern uint3 threadIdx;
extern uint3 blockIdx;
extern dim3 blockDim;
extern dim3 gridDim;

using cudaStream_t = struct CUstream_st*;

namespace emulation {

inline constexpr int kWarp = 32;
inline constexpr unsigned kAllLanes = 0xffffffff;
// Any access of this much of shared memory at once.
inline constexpr size_t kLargestOperand = 64;

struct Launch {
  const char* kernel;  // as the source names it
  dim3 grid;
  dim3 block;
  size_t dynamic_shared = 0;
  cudaStream_t stream = nullptr;
  bool cooperative = false;
  dim3 cluster = {};
};

// What is between the three angle brackets of a launch.
struct Configuration {
  dim3 grid;
  dim3 block;
  size_t dynamic_shared = 0;
  cudaStream_t stream = nullptr;
};

// Runs `body` once a thread, unless a device would refuse: then cudaGetLastError says so.
void run(const Launch& launch, const void* function, const std::function<void()>& body);

template <typename... Parameters, typename... Arguments>
void launch(const Launch& launch, void (*kernel)(Parameters...), Arguments&&... arguments) {
  // Converted once, as a launch does; every thread gets its own copy.
  const std::tuple<std::decay_t<Parameters>...> values(std::forward<Arguments>(arguments)...);
  run(launch, reinterpret_cast<const void*>(kernel), [&] { std::apply(kernel, values); });
}

template <typename... Parameters, typename... Arguments>
void launch(const char* name, void (*kernel)(Parameters...), const Configuration& configuration,
            Arguments&&... arguments) {
  const Launch as = {name, configuration.grid, configuration.block, configuration.dynamic_shared,
                     configuration.stream};
  launch(as, kernel, std::forward<Arguments>(arguments)...);
}

// The same of a kernel whose template arguments the launch's arguments tell; `call` calls it.
template <typename Call, typename... Arguments>
void launch_deduced(const char* name, Call call, const Configuration& configuration,
                    Arguments&&... arguments) {
  const std::tuple<std::decay_t<Arguments>...> values(std::forward<Arguments>(arguments)...);
  run({name, configuration.grid, configuration.block, configuration.dynamic_shared, configuration.stream},
      nullptr, [&] { std::apply(call, values); });
}

// Said at the beginning of a kernel: how many threads a block may have, and how many blocks there is room
// for.
void expect_bounds(int most_threads, int blocks = 1);

// Whether launches are run, and not only written down.
bool runs_launches();

// Ends the launch: the host function that began it gets an exception with this text and the kernel's name.
[[noreturn]] void fail(const std::string& message);

// Shared memory of the block that runs.
void* dynamic_shared();
// `key` is of a variable; every fibre of a block gets the same memory for it.
void* static_shared(const void* key, size_t bytes, size_t alignment);
bool is_shared(const void* pointer);
uint32_t shared_address(const void* pointer);
// Memory that an instruction accesses, at a boundary of `alignment`.
void* shared_pointer(uint32_t address, size_t bytes, size_t alignment);
// The same place in the shared memory of another block of the cluster.
void* in_block_of_cluster(void* pointer, unsigned rank);

// Waits until all threads of the block, or `threads` of them, are at barrier `name`.
void block_barrier(int name = 0, int threads = -1);
// The same, and gives how many had `predicate`.
int block_barrier_count(bool predicate);
void cluster_arrive();
void cluster_wait();
void grid_barrier();
unsigned block_of_cluster();
unsigned blocks_of_cluster();
int lane();
// Lets others run: where a thread looks at memory until another one writes there.
void pause();

struct Meeting;
using Execute = void (*)(Meeting&);

// What the lanes of a warp bring to an instruction that they execute together.
struct Meeting {
  const char* instruction;
  Execute execute;    // called once, as the last lane arrives
  bool aligned;       // whether all lanes of the warp must come
  bool orders;        // whether memory is seen by all of them behind it
  const void* place;  // in the program, of the lane that came first
  unsigned lanes;     // that it is for
  unsigned here;
  unsigned leaving;
  bool complete;
  alignas(16) unsigned char operands[kWarp][kLargestOperand];

  template <typename T>
  T& operand(int lane) {
    static_assert(sizeof(T) <= kLargestOperand && std::is_trivially_copyable_v<T>);
    return *reinterpret_cast<T*>(operands[lane]);
  }
};

Meeting& meet(const char* instruction, unsigned lanes, const void* operand, size_t bytes, Execute execute,
              bool aligned);
void part(Meeting& meeting);

// All lanes execute `execute` together, on their operands, in place.
template <typename Operand>
inline __attribute__((always_inline)) Operand together(const char* instruction, const Operand& operand,
                                                       Execute execute) {
  Meeting& meeting = meet(instruction, kAllLanes, &operand, sizeof(operand), execute, true);
  const Operand result = meeting.operand<Operand>(lane());
  part(meeting);
  return result;
}

// Barriers that count arrivals and bytes, in shared memory, and writes into another block's that are counted.
uint32_t shared_of_cluster(uint32_t shared, uint32_t rank);
void begin_counting(uint32_t barrier, uint32_t count);
void count_arrival(uint32_t barrier, uint32_t bytes);
void wait_for_phase(uint32_t barrier, uint32_t parity);
void store_and_count(uint32_t address, const void* value, size_t bytes, uint32_t barrier);

// Asynchronous copies of the fibre that runs.
void copy_later(uint32_t shared, const void* global, int bytes, int source_bytes);
void end_copy_group();
void wait_for_copy_groups(int pending);
void wait_for_all_copies();

}  // namespace emulation
