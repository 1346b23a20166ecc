// What the programs of this folder share: they answer a question a line, and with the argument `thresholds`
// they write behind each answer, for every threshold that the choice compared with, its name, the side on
// which the problem lies, and what the answer would be on the other side.
#pragma once

#define TORCHGRAFT_TRACE_THRESHOLDS

#include <torchgraft/detail/threshold.h>

#include <iostream>
#include <map>
#include <stdexcept>
#include <string>

namespace torchgraft {

inline std::map<std::string, bool> compared;
inline std::string turned;

inline bool on_comparison(const Threshold& threshold, bool is_above) {
  compared[threshold.name] = is_above;
  return is_above != (turned == threshold.name);
}

// Writes the answer of a function, and what thresholds make of it: `none` if no kernel supports the problem
// then.
template <typename Function>
void write_answer(bool with_thresholds, const Function& answer) {
  compared.clear();
  std::cout << answer();
  if (with_thresholds) {
    const std::map<std::string, bool> asked = compared;
    for (const auto& [name, is_above] : asked) {
      turned = name;
      std::cout << '\t' << name << '\t' << (is_above ? "above" : "below") << '\t';
      try {
        std::cout << answer();
      } catch (const std::runtime_error&) {
        std::cout << "none";
      }
    }
    turned.clear();
  }
  std::cout << std::endl;
}

}  // namespace torchgraft
