// The sizes of an operator's tensors in words, "n c, c -> n c", and what does not fit them: the same text
// that `shapes` of an Operator gives in Python.
#pragma once

#include <cctype>
#include <map>

#include "given.h"

namespace torchgraft::internal {

// A size in words: so many times what a name stands for, or a number alone.
struct SizeInWords {
  int64_t times = 1;
  std::string name;

  explicit SizeInWords(const std::string& word) {
    const size_t star = word.find('*');
    const bool is_number = std::isdigit(static_cast<unsigned char>(word[0])) != 0;
    if (is_number) times = std::stoll(word);
    if (!is_number) name = word;
    if (star != std::string::npos) name = word.substr(star + 1);
  }

  bool is_any() const { return name == "_"; }

  std::string text() const {
    if (name.empty()) return std::to_string(times);
    return times == 1 ? name : std::to_string(times) + "*" + name;
  }
};

// The shape of a tensor: sizes in front of `...`, and behind it; without `...` all are in front.
struct ShapeInWords {
  std::vector<SizeInWords> front, back;
  bool has_rest = false;

  explicit ShapeInWords(const std::string& words) {
    for (const std::string& word : split(words, ' ')) {
      if (word == "()") continue;
      if (word == "...") {
        has_rest = true;
      } else {
        (has_rest ? back : front).emplace_back(word);
      }
    }
  }

  std::vector<SizeInWords> sizes() const {
    std::vector<SizeInWords> all = front;
    all.insert(all.end(), back.begin(), back.end());
    return all;
  }

  std::string text() const {
    std::vector<std::string> words;
    for (const SizeInWords& size : front) words.push_back(size.text());
    if (has_rest) words.emplace_back("...");
    for (const SizeInWords& size : back) words.push_back(size.text());
    return as_tuple(words);
  }
};

// What is known of sizes before a tensor is looked at: what names stand for, who said so, and `...`.
struct KnownSizes {
  std::map<std::string, int64_t> sizes;
  // The argument that told it; of a number, which is an argument itself, empty.
  std::map<std::string, std::string> origins;
  std::optional<std::vector<int64_t>> rest;

  // Whether a tensor has the sizes that it must have; if so, what it tells is known from then on.
  bool bind(const std::string& name, const ShapeInWords& shape, const std::vector<int64_t>& found) {
    const auto before = static_cast<int64_t>(shape.front.size());
    const auto after = static_cast<int64_t>(shape.back.size());
    const int64_t many = static_cast<int64_t>(found.size()) - before - after;
    if (many < 0 || (many > 0 && !shape.has_rest)) return false;
    std::vector<int64_t> own_rest, beside;
    for (int64_t i = 0; i < static_cast<int64_t>(found.size()); ++i) {
      (shape.has_rest && i >= before && i < before + many ? own_rest : beside).push_back(found[i]);
    }
    if (shape.has_rest && rest && own_rest != *rest) return false;
    std::map<std::string, int64_t> bound;
    size_t place = 0;
    for (const SizeInWords& size : shape.sizes()) {
      const int64_t value = beside[place++];
      if (size.is_any()) continue;
      if (!size.name.empty() && sizes.count(size.name) == 0 && bound.count(size.name) == 0) {
        if (value % size.times != 0) return false;
        bound[size.name] = value / size.times;
        continue;
      }
      int64_t factor = 1;
      if (!size.name.empty()) factor = sizes.count(size.name) ? sizes[size.name] : bound[size.name];
      if (value != size.times * factor) return false;
    }
    for (const auto& [known, value] : bound) {
      sizes[known] = value;
      origins[known] = name;
    }
    if (shape.has_rest && !rest) rest = own_rest;
    return true;
  }

  // What was known when a tensor was looked at, as a part of the sentence about it.
  std::string said_of(const ShapeInWords& shape) const {
    std::vector<std::string> said, told;
    for (const SizeInWords& size : shape.sizes()) {
      const auto known = sizes.find(size.name);
      bool is_new = known != sizes.end();
      for (const std::string& each : told) is_new = is_new && each != size.name;
      if (!is_new) continue;
      told.push_back(size.name);
      const std::string& origin = origins.at(size.name);
      said.push_back(size.name + " is " + std::to_string(known->second) +
                     (origin.empty() ? "" : " as in " + origin));
    }
    if (shape.has_rest && rest) {
      std::string sizes_of_rest;
      for (const int64_t size : *rest) {
        sizes_of_rest += (sizes_of_rest.empty() ? "" : ", ") + std::to_string(size);
      }
      said.push_back("... is " + (sizes_of_rest.empty() ? "nothing" : sizes_of_rest));
    }
    std::string joined;
    for (const std::string& each : said) joined += (joined.empty() ? ", where " : " and ") + each;
    return joined + ",";
  }
};

// What is wrong with the sizes of a call; empty where nothing is.
inline std::string explain_shapes(const Declaration& declaration, const std::vector<Given>& arguments) {
  const std::string words = declaration.shapes;
  if (words.empty()) return "";
  const std::vector<std::string> shapes = split(words.substr(0, words.find("->")), ',');
  const std::vector<std::string> kinds = split(declaration.arguments, ',');
  KnownSizes known;
  for (const Given& given : arguments) {
    if (!given.number) continue;
    known.sizes[given.name] = *given.number;
    known.origins[given.name] = "";
  }
  size_t place = 0;
  for (size_t i = 0; i < arguments.size(); ++i) {
    if (kinds[i].find("Tensor") == std::string::npos) continue;
    const ShapeInWords shape(shapes[place++]);
    // Lists are not looked at.
    if (kinds[i].find("[]") != std::string::npos || arguments[i].tensors.empty()) continue;
    const auto sizes = arguments[i].tensors.front().second.sizes();
    const std::vector<int64_t> found(sizes.begin(), sizes.end());
    const KnownSizes before = known;
    if (!known.bind(arguments[i].name, shape, found)) {
      return std::string(declaration.name) + ": " + arguments[i].name + " must have the shape " +
             shape.text() + before.said_of(shape) + " got " + as_tuple(found);
    }
  }
  return "";
}

}  // namespace torchgraft::internal
