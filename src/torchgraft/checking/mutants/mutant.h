// Which of the mutants that a source holds is the one that runs: included by what `graft check --mutants`
// rewrites, and by nothing else.
#pragma once

#include <type_traits>

// Pieces of a loop run on threads however small they are, so that mutants of what a piece begins with show.
#define TORCHGRAFT_STD_THREADS

namespace torchgraft::internal {

inline int chosen_mutant = -1;
// A byte for each mutant, set where it is asked for; or null.
inline unsigned char* reached_mutants = nullptr;

// Where a constant is asked for, the original stands.
constexpr bool is_mutant(int number) {
  if (std::is_constant_evaluated()) return false;
  if (reached_mutants != nullptr) reached_mutants[number] = 1;
  return number == chosen_mutant;
}

}  // namespace torchgraft::internal

#define TORCHGRAFT_MUTANT(NUMBER) ::torchgraft::internal::is_mutant(NUMBER)

extern "C"
    __attribute__((weak, visibility("default"))) void torchgraft_choose_mutant(int number,
                                                                               unsigned char* reached) {
  torchgraft::internal::chosen_mutant = number;
  torchgraft::internal::reached_mutants = reached;
}
