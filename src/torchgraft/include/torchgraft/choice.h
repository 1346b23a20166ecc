// Which of several kernels serves a call: a table of rules, asked from the top. A rule says apart what its
// kernel can compute at all, and where it pays, so that a tool can have any kernel compute whatever it
// supports.
//
//   struct Rule { const char* name; bool (*supports)(const Problem&); bool (*pays)(const Problem&); };
//   constexpr Rule kRules[] = {...};
//   TORCHGRAFT_KERNELS(softplus, kRules)
//   const Rule& rule = torchgraft::choose(kRules, problem);
//
// Instead of where it pays a rule may say how long its kernel is predicted to take, infinitely long where it
// does not support the problem: `float microseconds(const Problem&) const`. Then the one with the least time
// is chosen.
//
// Where a problem has a function on_any_device(), which gives the same problem on a device that has all that
// a kernel can ask for, a kernel that only this device cannot run is told apart from one that no call suits.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <mutex>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace torchgraft {
namespace internal {

// The kernel that serves every call it supports, or null; whether other calls are refused; how many choices
// have fallen on it since, and how many would have on another device.
struct Forced {
  std::atomic<const char*> name{nullptr};
  std::atomic<bool> alone{false};
  std::atomic<int64_t> served{0};
  std::atomic<int64_t> elsewhere{0};
};
inline Forced forced;

// The kernel that calls on this thread take where it supports the problem, as measured.h has it, or null; and
// how many choices have fallen on it.
struct Assigned {
  const char* name = nullptr;
  int64_t served = 0;
};
inline thread_local Assigned assigned;

// What all rules that are asked answer, as one number, while a tool wants to know: it draws problems on
// either side of where that changes. And the kernels that were chosen, a line each.
struct Traced {
  std::atomic<bool> wanted{false};
  std::atomic<uint64_t> answers{0};
  std::mutex mutex;  // Threads of autograd choose too. It guards what follows.
  std::string chosen;

  void note(const char* name) {
    const std::lock_guard<std::mutex> guard(mutex);
    chosen.append(name).append("\n");
  }
};
inline Traced traced;

// The first rule that supports the problem and pays, or the one with the least predicted time; null where no
// rule supports the problem.
template <typename Rule, size_t kCount, typename Problem>
const Rule* best_rule(const Rule (&rules)[kCount], const Problem& problem) {
  if constexpr (requires { rules[0].microseconds(problem); }) {
    const Rule* best = nullptr;
    auto least = std::numeric_limits<float>::infinity();
    for (const Rule& rule : rules) {
      const float time = rule.microseconds(problem);
      if (time >= least) continue;
      best = &rule;
      least = time;
    }
    return best;
  } else {
    for (const Rule& rule : rules) {
      if (rule.supports(problem) && rule.pays(problem)) return &rule;
    }
    return nullptr;
  }
}

template <typename Rule, size_t kCount, typename Problem>
void trace_answers(const Rule (&rules)[kCount], const Problem& problem) {
  uint64_t answers = traced.answers;
  const Rule* const best = best_rule(rules, problem);
  for (const Rule& rule : rules) {
    const bool supports = rule.supports(problem);
    bool pays = &rule == best;
    if constexpr (requires { rule.pays(problem); }) pays = supports && rule.pays(problem);
    answers = (answers ^ (uint64_t{1} + supports + pays)) * 0x100000001b3;  // FNV-1a
  }
  traced.answers = answers;
}

// The kernels of the library: the operator and the name of each.
inline std::vector<std::pair<std::string, std::string>>& listed_kernels() {
  static std::vector<std::pair<std::string, std::string>> listed;
  return listed;
}

template <typename Rule, size_t kCount>
bool list_kernels(const char* op, const Rule (&rules)[kCount]) {
  for (const Rule& rule : rules) {
    listed_kernels().emplace_back(op, rule.name);
  }
  return true;
}

}  // namespace internal

// Always true. For a rule whose kernel supports every problem, or pays for every problem that it supports.
template <typename Problem>
bool always(const Problem&) {
  return true;
}

namespace internal {

template <typename Rule, size_t kCount, typename Problem>
const Rule& choose_untraced(const Rule (&rules)[kCount], const Problem& problem) {
  if (const char* const name = forced.name.load(std::memory_order_relaxed)) [[unlikely]] {
    for (const Rule& rule : rules) {
      if (std::strcmp(name, rule.name) != 0) continue;
      if (rule.supports(problem)) {
        ++forced.served;
        return rule;
      }
      if constexpr (requires { problem.on_any_device(); }) {
        if (rule.supports(problem.on_any_device())) ++forced.elsewhere;
      }
      if (forced.alone)
        throw std::runtime_error("the kernel that alone may serve does not support this call");
    }
  }
  if (const char* const name = assigned.name) [[unlikely]] {
    for (const Rule& rule : rules) {
      if (std::strcmp(name, rule.name) != 0 || !rule.supports(problem)) continue;
      ++assigned.served;
      return rule;
    }
  }
  if (const Rule* const best = best_rule(rules, problem)) return *best;
  throw std::runtime_error("no kernel supports these sizes");
}

}  // namespace internal

// The first rule that supports the problem and pays, or the one with the least predicted time. If a tool
// forces a rule that supports the problem, that rule is returned instead. Throws if no rule supports the
// problem, or if the forced one does not and is to serve alone.
template <typename Rule, size_t kCount, typename Problem>
const Rule& choose(const Rule (&rules)[kCount], const Problem& problem) {
  internal::Traced& traced = internal::traced;
  if (!traced.wanted.load(std::memory_order_relaxed)) [[likely]] {
    return internal::choose_untraced(rules, problem);
  }
  internal::trace_answers(rules, problem);
  const Rule& chosen = internal::choose_untraced(rules, problem);
  traced.note(chosen.name);
  return chosen;
}

}  // namespace torchgraft

// TORCHGRAFT_KERNELS(softplus, kRules) lists the rules of the operator softplus, so that `graft check` and
// `graft bench` can force each of its kernels.
#define TORCHGRAFT_KERNELS(OPERATOR, RULES)                        \
  [[maybe_unused]] static const bool torchgraft_lists_##OPERATOR = \
      ::torchgraft::internal::list_kernels(#OPERATOR, RULES);

// Exported from a library of kernels: what there is, a line for each kernel with its operator, a tab, its
// name.
extern "C" __attribute__((weak, visibility("default"))) const char* torchgraft_kernels() {
  static const std::string lines = [] {
    std::string text;
    for (const auto& [op, name] : torchgraft::internal::listed_kernels()) {
      text.append(op).append("\t").append(name).append("\n");
    }
    return text;
  }();
  return lines.c_str();
}
// What serves from now on. A name stays valid as long as it is forced; null forces nothing. Returned is how
// many calls the kernel before has served; where it is none, below zero how many it would have served on
// another device.
extern "C" __attribute__((weak, visibility("default"))) int64_t torchgraft_force_kernel(const char* name) {
  torchgraft::internal::Forced& forced = torchgraft::internal::forced;
  forced.name = name;
  const int64_t elsewhere = forced.elsewhere.exchange(0);
  const int64_t served = forced.served.exchange(0);
  return served > 0 ? served : -elsewhere;
}
// Whether a call that the forced kernel does not support is refused, where a kernel must be chosen for it.
extern "C" __attribute__((weak, visibility("default"))) void torchgraft_force_alone(bool alone) {
  torchgraft::internal::forced.alone = alone;
}
// Begins to trace what rules answer, or ends it: returned is a number that stands for all answers until then.
extern "C" __attribute__((weak, visibility("default"))) uint64_t torchgraft_trace_answers(bool wanted) {
  torchgraft::internal::Traced& traced = torchgraft::internal::traced;
  if (wanted) {
    const std::lock_guard<std::mutex> guard(traced.mutex);
    traced.chosen.clear();
  }
  traced.wanted = wanted;
  return traced.answers.exchange(0);
}
// The kernels that were chosen while answers were traced last: a line each, valid until a trace begins.
extern "C" __attribute__((weak, visibility("default"))) const char* torchgraft_chosen() {
  return torchgraft::internal::traced.chosen.c_str();
}
