// Asynchronous copies from device memory to shared memory (cp.async).
//
// A copy arrives as late as it may: when the thread that began it waits for its group. So a read that comes
// too early finds NaN. If the order of threads is drawn, about half of the copies arrive at once instead,
// which finds the other mistake: a copy that overwrites what is still being read.

#include "machine.h"

namespace emulation {
namespace {

void copy_now(const Copy& copy) {
  const size_t bytes = static_cast<size_t>(copy.bytes), source_bytes = static_cast<size_t>(copy.source_bytes);
  auto* to = static_cast<unsigned char*>(shared_pointer(copy.shared, bytes, bytes));
  watch_access(const_cast<void*>(copy.global), source_bytes, false, copy.place);
  watch_access(to, bytes, true, copy.place);
  if (source_bytes > 0) std::memcpy(to, copy.global, source_bytes);
  std::memset(to + source_bytes, 0, bytes - source_bytes);
}

}  // namespace

void copy_later(uint32_t shared, const void* global, int bytes, int source_bytes) {
  if (bytes != 4 && bytes != 8 && bytes != 16) fail("cp.async copies 4, 8 or 16 bytes");
  if (source_bytes < 0 || source_bytes > bytes) fail("cp.async: more bytes of the source than are copied");
  if (source_bytes > 0 && reinterpret_cast<uintptr_t>(global) % static_cast<uintptr_t>(bytes) != 0) {
    fail("cp.async: " + std::to_string(bytes) + " bytes off their boundary in device memory");
  }
  // An address that is wrong is an error where the copy begins.
  shared_pointer(shared, static_cast<size_t>(bytes), static_cast<size_t>(bytes));
  Machine& m = machine();
  const Copy copy = {shared, global, bytes, source_bytes, __builtin_return_address(0)};
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
