// Calls an operator from C++: what stands behind the functions of `<namespace>/operators.h`, which torchgraft
// writes from the declarations.
//
// A call that succeeds pays for no explanation. One that fails is explained as Python does it, and raises
//
//   std::invalid_argument   an argument makes no sense: the text is that of Python's TypeError or ValueError
//   std::runtime_error      anything else, as a library that is not loaded, or memory that ran out
//
// Nothing is recorded for autograd: gradients are Python's.
#pragma once

#include <torch/csrc/stable/library.h>

#include <algorithm>
#include <array>
#include <stdexcept>
#include <tuple>

#include "loaded.h"
#include "shapes.h"

namespace torchgraft::internal {

// What is wrong with the dtypes and devices of a call; empty where nothing is.
inline std::string explain_kinds(const Declaration& declaration, const std::vector<Given>& arguments) {
  const std::string name = std::string(declaration.name) + ": ";
  // By what is said of an argument: the first tensor of which that is said.
  std::vector<std::tuple<std::string, std::string, ScalarType>> firsts;
  std::string other;
  const auto dtype = [](const Tensor& tensor) {
    return std::string("torch.") + name_of(tensor.scalar_type());
  };
  for (const Given& given : arguments) {
    std::string said;
    bool is_mixed = false;
    for (const std::string& each : split(declaration.dtypes, ';')) {
      const std::string who = each.substr(0, each.find(' '));
      if (who != given.name && who != "~" + given.name) continue;
      is_mixed = who[0] == '~';
      said = each.substr(who.size() + 1);
    }
    for (const auto& [shown, tensor] : given.tensors) {
      if (!tensor.defined()) return name + shown + " must be a Tensor, got one that is not defined";
      if (said.empty()) continue;
      const auto first = std::find_if(firsts.begin(), firsts.end(),
                                      [&](const auto& each) { return std::get<0>(each) == said; });
      if (first != firsts.end() && !is_mixed) {
        if (other.empty() && tensor.scalar_type() != std::get<2>(*first)) {
          other = name + shown + " has dtype " + dtype(tensor) + " and " + std::get<1>(*first) +
                  " has torch." + name_of(std::get<2>(*first)) + "; they must be the same";
        }
        continue;
      }
      if (!is_mixed) firsts.emplace_back(said, shown, tensor.scalar_type());
      std::string expected;
      bool is_among = false;
      for (const std::string& word : split(said, ' ')) {
        expected += (expected.empty() ? "" : ", ") + word;
        is_among |= word == name_of(tensor.scalar_type());
      }
      if (!is_among) return name + shown + " has dtype " + dtype(tensor) + ", expected one of " + expected;
    }
  }
  if (!other.empty()) return other;
  const std::pair<std::string, Tensor>* like = nullptr;
  for (const Given& given : arguments) {
    for (const auto& each : given.tensors) {
      if (like == nullptr) {
        like = &each;
      } else if (device_of(each.second) != device_of(like->second)) {
        return name + each.first + " is on " + device_of(each.second) + " and " + like->first + " on " +
               device_of(like->second) + "; they must be on one device";
      }
    }
  }
  return "";
}

// What is wrong with the memory of the tensors of a call; empty where nothing is.
inline std::string explain_memory(const Declaration& declaration, const std::vector<Given>& arguments) {
  for (const Given& given : arguments) {
    for (const auto& [shown, tensor] : given.tensors) {
      try {
        check_memory(tensor, shown.c_str());
      } catch (const std::runtime_error& error) {
        return std::string(declaration.name) + ": " + error.what();
      }
    }
  }
  return "";
}

inline const char* kind_of_device(const std::vector<Given>& arguments) {
  for (const Given& given : arguments) {
    for (const auto& [shown, tensor] : given.tensors) {
      if (tensor.defined()) return tensor.is_cuda() ? "cuda" : "cpu";
    }
  }
  return "";
}

inline std::string words_of(const Declaration& declaration) {
  return std::string(declaration.arguments) + "\t" + declaration.results;
}

// Raises what is wrong with a call that PyTorch refused.
[[noreturn]] inline void explain(const Declaration& declaration, const std::vector<Given>& arguments) {
  const char* const said_by_pytorch = what_pytorch_says();
  const std::string reason = said_by_pytorch == nullptr ? "" : said_by_pytorch;
  for (const auto look : {explain_kinds, explain_memory, explain_shapes}) {
    const std::string wrong = look(declaration, arguments);
    if (!wrong.empty()) throw std::invalid_argument(wrong);
  }
  const std::string missing = what_to_load(declaration.name_space, declaration.name,
                                           kind_of_device(arguments), words_of(declaration));
  if (!missing.empty()) throw std::runtime_error(missing);
  // Before 2.13 PyTorch does not tell what the kernel said.
  const std::string kept = take_last_error(declaration.name_space);
  const std::string said = reason.empty() ? kept : reason.substr(0, reason.find('\n'));
  if (said.empty()) throw std::runtime_error(std::string(declaration.name) + " failed in PyTorch");
  // So begins what a kernel says of an argument.
  if (said.rfind(std::string(declaration.name) + ": ", 0) == 0) throw std::invalid_argument(said);
  throw std::runtime_error(said);
}

// Raises where a library of an operator is loaded that is of another version than this program was compiled
// for: every argument is passed as 64 bits, and nobody else would ask. Nothing is missing yet where none is.
inline bool check_version(const Declaration& declaration) {
  const std::string words = words_of(declaration);
  for (const LoadedLibrary& library : loaded_libraries(declaration.name_space)) {
    const std::string listed = listed_words(library, declaration.name);
    if (!listed.empty() && listed != words) {
      throw std::runtime_error(what_to_load(declaration.name_space, declaration.name, "", words));
    }
  }
  return true;
}

template <typename Results, size_t... places>
Results results_of(const StableIValue* stack, std::index_sequence<places...>) {
  return Results{torch::stable::detail::to<std::tuple_element_t<places, Results>>(stack[places])...};
}

// Calls an operator; of its results as many are returned as Results has, and the others are dropped.
//
//   declaration   of the operator, with its qualified name `qualified`
//   All           a std::tuple of all results
template <typename All, typename... Arguments>
All call(const Declaration& declaration, const char* qualified, const Arguments&... arguments) {
  constexpr size_t results = std::tuple_size_v<All>;
  std::array<StableIValue, std::max({sizeof...(Arguments), results, size_t{1}})> stack{};
  size_t place = 0;
  ((stack[place++] = torch::stable::detail::from(arguments)), ...);
  if (torch_call_dispatcher(qualified, "", stack.data(), TORCH_ABI_VERSION) != 0) [[unlikely]] {
    explain(declaration, give(declaration, arguments...));
  }
  return results_of<All>(stack.data(), std::make_index_sequence<results>());
}

}  // namespace torchgraft::internal
