// Which kernels the CUDA library would choose for a call, on a device that need not be here: the choice is
// host code, and is compiled into the CPU library for this question. predicting.py asks it.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace torchgraft::predicted {

// A GPU, in bytes of shared memory.
struct Gpu {
  int architecture;  // 900 for compute capability 9.0
  int multiprocessors;
  int64_t shared_of_block;
  int64_t shared_of_multiprocessor;
};

// An argument of a call, in the order of the schema.
struct Argument {
  bool is_given = false;  // else it is None, or nothing that a choice depends on
  int64_t number = 0;     // a number or a bool
  // A tensor:
  std::vector<int64_t> sizes = {};
  int element_bytes = 0;
  bool is_bfloat16 = false;
  bool is_channels_last = false;
};

using Arguments = std::vector<Argument>;
using Names = std::vector<const char*>;
// The kernels that a call chooses, in order.
using Predict = Names (*)(const Arguments&, const Gpu&);

inline std::map<std::string, Predict>& operators() {
  static std::map<std::string, Predict> known;
  return known;
}

struct Registered {
  Registered(const char* name, Predict predict) { operators()[name] = predict; }
};

}  // namespace torchgraft::predicted
