// Finds races: two accesses of the same memory by different threads, at least one a write, with no barrier
// between them.
//
// Kernels are compiled with -fsanitize=thread, so that the compiler calls a function before every access;
// this file has those functions. For every two bytes it keeps the last write and the last reads: which thread
// made them, and how many barriers of the block and __syncwarps of the warp there had been. Shuffles and
// atomics order nothing. Accesses of a single byte, and copies that the compiler makes with memcpy, are not
// watched.

#include "races.h"

#include <dlfcn.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <memory>
#include <sstream>
#include <string>
#include <unordered_map>
#include <utility>

#include "emulation.h"

namespace emulation {
namespace {

constexpr uintptr_t kGranule = 2;

struct Access {
  uint32_t grid_epoch = 0;
  uint32_t epoch = 0;
  uint32_t warp_epoch = 0;
  uint32_t block = 0;
  uint32_t thread = 0;
  bool writes = false;
  bool together = false;  // by an instruction of the whole warp
  const void* place = nullptr;
};

enum class Readers : uint8_t { none, lane, warp, block, grid };

struct Cell {
  Access write;
  Access read;
  Readers readers = Readers::none;
  // In shared memory, a write that nothing orders with the last one. It does no harm until somebody reads.
  Access other_write;
  uint32_t lanes = 0;  // of the writer's warp, that have written the same
};

// The last write. Whether it changes anything is not known until the next access.
struct Write {
  void* address = nullptr;
  size_t bytes = 0;
  Access access;
  unsigned char before[256];
};
Write last_write;

std::unordered_map<uintptr_t, Cell>& cells() {
  static auto* const all = new std::unordered_map<uintptr_t, Cell>;
  return *all;
}

// The epoch of the grid whose accesses are kept.
uint32_t kept_epoch = 0;

bool lies_in(const void* address, const char* begin, size_t bytes) {
  return address >= begin && address < begin + bytes;
}

bool is_ordered(const Access& before, const Access& now, bool shared) {
  if (before.place == nullptr || before.grid_epoch != now.grid_epoch) return true;
  // A block's shared memory was another's before.
  if (before.block != now.block) return shared;
  if (before.epoch != now.epoch) return true;
  if (before.thread / kWarp != now.thread / kWarp) return false;
  // Instructions of a whole warp follow each other. What they read, no lane overtakes.
  if (before.together && (now.together || !before.writes)) return true;
  return (before.thread == now.thread && before.together == now.together) ||
         before.warp_epoch != now.warp_epoch;
}

// The file and line of a place, of what was inlined into each other the first that is no instruction's.
std::string describe(const void* place) {
  std::string found = "an unknown place";
  Dl_info information = {};
  if (dladdr(place, &information) == 0) return found;
  // The call returns behind the access.
  const auto offset = static_cast<const char*>(place) - static_cast<const char*>(information.dli_fbase) - 1;
  std::ostringstream command;
  command << "addr2line -i -e '" << information.dli_fname << "' 0x" << std::hex << offset << " 2>/dev/null";
  FILE* const output = popen(command.str().c_str(), "r");
  if (output == nullptr) return found;
  char text[1024];
  while (std::fgets(text, sizeof(text), output) != nullptr) {
    const std::string line(text, std::strcspn(text, " \n"));
    found = line.substr(line.rfind('/') + 1);
    // As the compiler sometimes calls a file in spite of its #line.
    if (const size_t at = found.find(".cu.cpp"); at != std::string::npos) found.erase(at + 3, 4);
    if (line.find("/emulation/include/") == std::string::npos) break;
  }
  pclose(output);
  return found;
}

[[noreturn]] void report(const Access& before, const Access& now, bool shared) {
  std::ostringstream text;
  text << "a race in " << (shared ? "shared" : "device") << " memory: thread " << before.thread;
  if (before.block != now.block) text << " of another block";
  text << (before.writes ? " wrote at " : " read at ") << describe(before.place) << ", thread " << now.thread
       << (now.writes ? " writes at " : " reads at ") << describe(now.place)
       << ", and no barrier is between them";
  fail(text.str());
}

// Who has read, now that one more does.
Readers readers_with(const Cell& cell, const Access& now, bool shared) {
  const Access& before = cell.read;
  if (cell.readers == Readers::none || before.grid_epoch != now.grid_epoch) return Readers::lane;
  if (before.block != now.block) return shared ? Readers::lane : Readers::grid;
  if (cell.readers == Readers::grid) return Readers::grid;
  if (before.epoch != now.epoch) return Readers::lane;
  if (cell.readers == Readers::block || before.thread / kWarp != now.thread / kWarp) return Readers::block;
  if (before.warp_epoch != now.warp_epoch) return Readers::lane;
  if (before.together && now.together) return Readers::lane;
  return cell.readers == Readers::warp || before.thread != now.thread ? Readers::warp : Readers::lane;
}

// The one reader that is kept may be this thread: whether there are others.
bool has_other_readers(const Cell& cell, const Access& now) {
  const Access& before = cell.read;
  if (before.grid_epoch != now.grid_epoch || before.block != now.block) return false;
  if (cell.readers == Readers::grid) return true;
  if (before.epoch != now.epoch) return false;
  return cell.readers == Readers::block ||
         (cell.readers == Readers::warp && before.warp_epoch == now.warp_epoch);
}

void access(Cell& cell, const Access& now, bool shared) {
  const bool ordered = is_ordered(cell.write, now, shared);
  if (now.writes) {
    if (!ordered && !shared) report(cell.write, now, shared);
    const bool was_read = cell.readers != Readers::none;
    if (was_read && (!is_ordered(cell.read, now, shared) || has_other_readers(cell, now))) {
      report(cell.read, now, shared);
    }
    cell.other_write = ordered ? Access() : cell.write;
    cell.write = now;
    cell.readers = Readers::none;
    cell.lanes = 1u << now.thread % kWarp;
    return;
  }
  const bool wrote_the_same = cell.write.block == now.block &&
                              cell.write.thread / kWarp == now.thread / kWarp &&
                              (cell.lanes >> now.thread % kWarp & 1) != 0;
  if (!wrote_the_same && !ordered) report(cell.write, now, shared);
  const Access& other = cell.other_write;
  if (other.place != nullptr && other.block == now.block && other.grid_epoch == now.grid_epoch) {
    report(other, cell.write, shared);
  }
  cell.readers = readers_with(cell, now, shared);
  cell.read = now;
}

void note(uintptr_t granule, const Access& now) {
  const auto* address = reinterpret_cast<const char*>(granule * kGranule);
  access(cells()[granule], now, lies_in(address, watched.arena, watched.arena_bytes));
}

// A write that changes nothing does no harm: many threads may clear the same memory.
void note_unchanged(uintptr_t granule, const Access& now) {
  Cell& cell = cells()[granule];
  const Access& before = cell.write;
  if (before.grid_epoch == now.grid_epoch && before.block == now.block && before.epoch == now.epoch &&
      before.warp_epoch == now.warp_epoch && before.thread / kWarp == now.thread / kWarp) {
    cell.lanes |= 1u << now.thread % kWarp;
  }
}

}  // namespace

void settle_write() {
  if (last_write.address == nullptr) return;
  const auto* after = static_cast<const unsigned char*>(std::exchange(last_write.address, nullptr));
  for (size_t at = 0; at < last_write.bytes; at += kGranule) {
    const auto granule = reinterpret_cast<uintptr_t>(after + at) / kGranule;
    const bool kept = at < sizeof(last_write.before);
    if (kept && std::memcmp(after + at, last_write.before + at, kGranule) == 0) {
      note_unchanged(granule, last_write.access);
    } else {
      note(granule, last_write.access);
    }
  }
}

void watch_access(void* address, size_t bytes, bool writes, const void* place) {
  settle_write();
  if (!watched.on || bytes < kGranule) return;
  if (lies_in(address, watched.stack, watched.stack_bytes) ||
      lies_in(address, watched.meetings, watched.meeting_bytes)) {
    return;
  }
  if (kept_epoch != watched.grid_epoch) {
    cells().clear();
    kept_epoch = watched.grid_epoch;
  }
  const Access now = {watched.grid_epoch,
                      *watched.epoch,
                      *watched.warp_epoch,
                      watched.block,
                      watched.thread,
                      writes,
                      watched.together != nullptr,
                      watched.together != nullptr ? watched.together : place};
  if (writes) {
    last_write.address = address;
    last_write.bytes = bytes;
    last_write.access = now;
    std::memcpy(last_write.before, address, std::min(bytes, sizeof(last_write.before)));
    return;
  }
  for (size_t at = 0; at < bytes; at += kGranule) {
    note((reinterpret_cast<uintptr_t>(address) + at) / kGranule, now);
  }
}

}  // namespace emulation

// What the compiler calls.

#define EMULATION_ACCESS(NAME, BYTES, WRITES)                                     \
  extern "C" void __tsan_##NAME(void* address) {                                  \
    emulation::watch_access(address, BYTES, WRITES, __builtin_return_address(0)); \
  }
#define EMULATION_ACCESSES(BYTES)                       \
  EMULATION_ACCESS(read##BYTES, BYTES, false)           \
  EMULATION_ACCESS(write##BYTES, BYTES, true)           \
  EMULATION_ACCESS(unaligned_read##BYTES, BYTES, false) \
  EMULATION_ACCESS(unaligned_write##BYTES, BYTES, true) \
  EMULATION_ACCESS(volatile_read##BYTES, BYTES, false)  \
  EMULATION_ACCESS(volatile_write##BYTES, BYTES, true)
EMULATION_ACCESSES(1)
EMULATION_ACCESSES(2)
EMULATION_ACCESSES(4)
EMULATION_ACCESSES(8)
EMULATION_ACCESSES(16)

extern "C" void __tsan_read_range(void* address, size_t bytes) {
  emulation::watch_access(address, bytes, false, __builtin_return_address(0));
}
extern "C" void __tsan_write_range(void* address, size_t bytes) {
  emulation::watch_access(address, bytes, true, __builtin_return_address(0));
}
extern "C" void __tsan_func_entry(void*) {}
extern "C" void __tsan_func_exit() {}
extern "C" void __tsan_init() {}
extern "C" void __tsan_vptr_update(void**, void*) {}
extern "C" void __tsan_vptr_read(void**) {}
// Host functions only: a static variable that is made once, counts of references, and what threads share.
#define EMULATION_ATOMIC(BITS, TYPE)                                                       \
  extern "C" TYPE __tsan_atomic##BITS##_load(const volatile TYPE* place, int) {            \
    return __atomic_load_n(place, __ATOMIC_SEQ_CST);                                       \
  }                                                                                        \
  extern "C" void __tsan_atomic##BITS##_store(volatile TYPE* place, TYPE value, int) {     \
    __atomic_store_n(place, value, __ATOMIC_SEQ_CST);                                      \
  }                                                                                        \
  extern "C" TYPE __tsan_atomic##BITS##_exchange(volatile TYPE* place, TYPE value, int) {  \
    return __atomic_exchange_n(place, value, __ATOMIC_SEQ_CST);                            \
  }                                                                                        \
  extern "C" TYPE __tsan_atomic##BITS##_fetch_add(volatile TYPE* place, TYPE value, int) { \
    return __atomic_fetch_add(place, value, __ATOMIC_SEQ_CST);                             \
  }
EMULATION_ATOMIC(8, uint8_t)
EMULATION_ATOMIC(16, uint16_t)
EMULATION_ATOMIC(32, uint32_t)
EMULATION_ATOMIC(64, uint64_t)
