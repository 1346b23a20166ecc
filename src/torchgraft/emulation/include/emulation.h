// The functions of the emulator that translated kernels call. The emulator runs CUDA kernels on the CPU, to
// show what they compute and not how fast.
//
// The threads of a block are fibres of one thread of the host. A fibre runs until it must wait for others: at
// a barrier of its warp, block, cluster or grid, or at an instruction that a warp executes together. Blocks
// run one after another, except the blocks of a cluster or of a cooperative launch, which are alive together.
//
// These mistakes are errors that name the kernel: fibres that wait for each other in vain, writes beside
// shared memory, instructions that access memory beside it or off their boundary, and launches that a device
// would refuse. Shared memory is filled with NaN before each block, and asynchronous copies arrive as late as
// they may.
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

// The indices of the fibre that runs, and the sizes of its launch.
extern uint3 threadIdx;
extern uint3 blockIdx;
extern dim3 blockDim;
extern dim3 gridDim;

using cudaStream_t = struct CUstream_st*;

namespace emulation {

inline constexpr int kWarp = 32;
inline constexpr unsigned kAllLanes = 0xffffffff;
// The most bytes that one lane brings to an instruction of its warp.
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

// The arguments between the angle brackets of a launch, <<<...>>>.
struct Configuration {
  dim3 grid;
  dim3 block;
  size_t dynamic_shared = 0;
  cudaStream_t stream = nullptr;
};

// Runs `body` once for each thread. If a device would refuse the launch, cudaGetLastError says why.
void run(const Launch& launch, const void* function, const std::function<void()>& body);

template <typename... Parameters, typename... Arguments>
void launch(const Launch& launch, void (*kernel)(Parameters...), Arguments&&... arguments) {
  // A launch converts its arguments once, and every thread gets a copy.
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

// Launches a kernel whose template arguments follow from the arguments of the launch; `call` calls it.
template <typename Call, typename... Arguments>
void launch_deduced(const char* name, Call call, const Configuration& configuration,
                    Arguments&&... arguments) {
  const std::tuple<std::decay_t<Arguments>...> values(std::forward<Arguments>(arguments)...);
  run({name, configuration.grid, configuration.block, configuration.dynamic_shared, configuration.stream},
      nullptr, [&] { std::apply(call, values); });
}

// Declares, at the beginning of a kernel, how many threads a block may have, and how many blocks fit on a
// multiprocessor.
void expect_bounds(int most_threads, int blocks = 1);

// Whether launches run, and are not only written to a file.
bool runs_launches();

// Ends the launch. The host function that began it gets an exception with this text and the kernel's name.
[[noreturn]] void fail(const std::string& message);

// The shared memory of the block that runs.
void* dynamic_shared();
// `key` stands for a variable: every fibre of a block gets the same memory for the same key.
void* static_shared(const void* key, size_t bytes, size_t alignment);
bool is_shared(const void* pointer);
uint32_t shared_address(const void* pointer);
// The memory that an instruction accesses; an address off a boundary of `alignment` is an error.
void* shared_pointer(uint32_t address, size_t bytes, size_t alignment);
// The same place in the shared memory of another block of the cluster.
void* in_block_of_cluster(void* pointer, unsigned rank);

// Waits until all threads of the block, or `threads` of them, are at barrier `name`.
void block_barrier(int name = 0, int threads = -1);
// The same; returns how many threads came with a true `predicate`.
int block_barrier_count(bool predicate);
void cluster_arrive();
void cluster_wait();
void grid_barrier();
unsigned block_of_cluster();
unsigned blocks_of_cluster();
int lane();
// Lets other warps run. A thread that reads memory until another thread writes there calls this.
void pause();

struct Meeting;
using Execute = void (*)(Meeting&);

// An instruction that lanes of a warp execute together, and the operands that they bring.
struct Meeting {
  const char* instruction;
  Execute execute;    // is called once, when the last lane arrives
  bool aligned;       // whether all lanes of the warp must come
  bool orders;        // whether it orders the accesses of memory of its lanes
  const void* place;  // in the program, where the first lane called
  unsigned lanes;     // that it waits for
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

// Brings an operand to the meeting of `lanes`, and waits until it is complete.
Meeting& meet(const char* instruction, unsigned lanes, const void* operand, size_t bytes, Execute execute,
              bool aligned);
// Leaves a meeting. The last lane that leaves makes room for the next meeting.
void part(Meeting& meeting);

// Has all lanes of the warp execute `execute` together, which replaces their operands by the results.
template <typename Operand>
inline __attribute__((always_inline)) Operand together(const char* instruction, const Operand& operand,
                                                       Execute execute) {
  Meeting& meeting = meet(instruction, kAllLanes, &operand, sizeof(operand), execute, true);
  const Operand result = meeting.operand<Operand>(lane());
  part(meeting);
  return result;
}

// Barriers in shared memory that count arrivals and bytes, and writes into the shared memory of another block
// that such a barrier counts.
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
