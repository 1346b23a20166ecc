// Shared memory: the arrays of a block, with guards between them.
//
// A block has an arena. Its first array is dynamic shared memory; every other one is made when a thread first
// comes to its declaration. Arrays hold NaN at first. Guards lie on both sides of each: a write there shows
// after the block has finished, or at once under AddressSanitizer.

#include <algorithm>
#include <sstream>
#include <stdexcept>

#include "machine.h"

namespace emulation {
namespace {

// Adds an array and returns where it begins.
size_t add_array(Block& block, const void* key, size_t bytes, size_t alignment) {
  const size_t begin = (block.end + kGuardBytes + alignment - 1) / alignment * alignment;
  if (begin + bytes + kGuardBytes > kArenaBytes) fail("more shared memory than a block can have");
  const size_t end = begin + bytes + kGuardBytes;
  sanitizer::allow(block.arena + block.end, end - block.end);
  std::memset(block.arena + block.end, kPoison, end - block.end);
  sanitizer::forbid(block.arena + block.end, begin - block.end);
  sanitizer::forbid(block.arena + begin + bytes, kGuardBytes);
  block.arrays.push_back({key, begin, begin + bytes});
  block.end = begin + bytes;
  return begin;
}

// Says on which side of which array a byte was written; `next` is the array behind it.
[[noreturn]] void report_write(const Block& block, size_t at, size_t next) {
  std::ostringstream message;
  message << "a write beside shared memory, ";
  if (next > 0) {
    const Array& before = block.arrays[next - 1];
    message << at - before.end << " bytes behind an array of " << before.end - before.begin;
  } else {
    message << block.arrays[0].begin - at << " bytes in front of an array";
  }
  throw std::runtime_error(message.str());
}

}  // namespace

void begin_shared_memory(Block& block, size_t dynamic) {
  block.arrays.clear();
  block.end = 0;
  add_array(block, nullptr, dynamic, 1024);
}

void check_guards(Block& block) {
  const size_t end = block.end + kGuardBytes;
  sanitizer::allow(block.arena, end);
  size_t from = 0;
  for (size_t next = 0; next <= block.arrays.size(); ++next) {
    const bool is_last = next == block.arrays.size();
    const size_t to = is_last ? end : block.arrays[next].begin;
    for (size_t at = from; at < to; ++at) {
      if (block.arena[at] != kPoison) report_write(block, at, next);
    }
    if (!is_last) from = block.arrays[next].end;
  }
}

void* dynamic_shared() {
  const Block& block = *running().block;
  return block.arena + block.arrays[0].begin;
}

void* static_shared(const void* key, size_t bytes, size_t alignment) {
  Machine& m = machine();
  Block& block = *running().block;
  for (const Array& array : block.arrays) {
    if (array.key == key) return block.arena + array.begin;
  }
  size_t in_use = bytes;
  for (size_t i = 1; i < block.arrays.size(); ++i) in_use += block.arrays[i].end - block.arrays[i].begin;
  if (in_use > kMostSharedUnasked) fail("more than 48 KB of static shared memory");
  size_t& declared = m.declared[m.function].static_shared;
  declared = std::max(declared, in_use);
  const size_t dynamic = m.launch->dynamic_shared, most = allowed_shared_in_all(m.function);
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

}  // namespace emulation
