// How a context begins, and how the processor changes from one to another: context.h.

#include "context.h"

#include <sys/mman.h>
#include <unistd.h>

#include <stdexcept>

namespace emulation {

#ifdef __x86_64__
// The return address is on the stack already; the six registers that the ABI has a function preserve follow.
asm(R"(
.text
.globl emulation_switch
.hidden emulation_switch
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

void prepare_context(Context& context, char* stack, void (*entry)()) {
  // The stack looks as if `entry` had just been called: the return address lies eight bytes below a boundary
  // of sixteen bytes.
  void** top = reinterpret_cast<void**>(stack + kStackBytes) - 1;
  *--top = reinterpret_cast<void*>(entry);
  for (int i = 0; i < 6; ++i) *--top = nullptr;
  context = top;
}
#else
void prepare_context(Context& context, char* stack, void (*entry)()) {
  getcontext(&context);
  context.uc_stack.ss_sp = stack;
  context.uc_stack.ss_size = kStackBytes;
  context.uc_link = nullptr;
  makecontext(&context, entry, 0);
}
#endif

void* map_memory(size_t bytes) {
  void* memory =
      mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) throw std::runtime_error("emulation: no memory for fibres");
  return memory;
}

Stack::Stack(size_t number) {
  // A page that nobody may touch lies below the first stacks, so that a stack that is too small is an error.
  // All threads run the same code, so the first ones are enough; each such page takes two of the 65,530
  // mappings that Linux gives a process.
  constexpr size_t kGuardedStacks = 8192;
  const size_t page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  char* all = static_cast<char*>(map_memory(kStackBytes + page));
  if (number < kGuardedStacks) mprotect(all, page, PROT_NONE);
  memory = all + page;
}

}  // namespace emulation
