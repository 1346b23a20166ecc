// A model that Python has exported with AOTInductor, for C++ programs without Python:
//
//   torchgraft::Package model("model.pt2");
//   std::vector<at::Tensor> results = model.run({input});
//
// Unlike the other headers this one is not of PyTorch's stable ABI, as AOTInductor's loader is not: a program
// is compiled for the PyTorch that it runs with. What `torch.jit` saves is not loaded.
#pragma once

#include <torch/csrc/inductor/aoti_package/model_package_loader.h>
#include <torch/csrc/inductor/aoti_torch/utils.h>

#include <memory>
#include <regex>
#include <string>
#include <unordered_map>
#include <vector>

#include "calling.h"

namespace torchgraft {

// A tensor of PyTorch's C++ interface as the functions of `operators.h` take it; both are of the same memory.
inline Tensor to_stable(at::Tensor tensor) {
  return Tensor(torch::aot_inductor::new_tensor_handle(std::move(tensor)));
}

// The reverse of `to_stable`.
inline at::Tensor to_aten(const Tensor& tensor) {
  return *torch::aot_inductor::tensor_handle_to_tensor_pointer(tensor.get());
}

namespace internal {

// What a package says of one of its inputs, where torchgraft.package has made it.
struct ExpectedInput {
  std::string name;
  std::string dtype;
  std::string device;
  // "contiguous", "channels_last" or "any": how the example lay in memory.
  std::string layout;
  // Each size as "8", or "1..64", or "1.." where it has no end.
  std::vector<std::string> sizes;

  // A tensor that lies in memory as what is compiled counts on.
  at::Tensor laid_out(const at::Tensor& tensor) const {
    if (layout == "contiguous") return tensor.contiguous();
    return layout == "channels_last" ? tensor.contiguous(at::MemoryFormat::ChannelsLast) : tensor;
  }

  // What is wrong with a tensor in its place; empty where nothing is.
  std::string problem_of(const at::Tensor& tensor) const {
    if (!tensor.defined()) return name + " must be a Tensor, got one that is not defined";
    const std::string found = name_of(tensor.scalar_type());
    if (found != dtype) return name + " must have dtype torch." + dtype + ", got torch." + found;
    const std::string place = tensor.device().str();
    if (place.substr(0, device.size()) != device) return name + " must be on " + device + ", got " + place;
    bool fits = tensor.dim() == static_cast<int64_t>(sizes.size());
    for (size_t i = 0; fits && i < sizes.size(); ++i) {
      const int64_t size = tensor.size(static_cast<int64_t>(i));
      const size_t dots = sizes[i].find("..");
      const std::string last = dots == std::string::npos ? sizes[i] : sizes[i].substr(dots + 2);
      fits = size >= std::stoll(sizes[i]) && (last.empty() || size <= std::stoll(last));
    }
    if (fits) return "";
    return name + " must have the shape " + as_tuple(sizes) + ", got " + as_tuple(tensor.sizes());
  }
};

}  // namespace internal

// A package of AOTInductor that is loaded.
class Package {
 public:
  // Loads a package: one that `torchgraft.package` has made, or AOTInductor by itself, of which less is
  // known.
  //
  //   path      of the file `.pt2`
  //   threads   how many may run it at the same time; more of them wait
  //   device    the number of the GPU, of a package for CUDA; -1: the current one
  //
  // Throws a std::runtime_error that names what to load where an operator of the package is missing.
  explicit Package(const std::string& path, size_t threads = 1, int device = -1) {
    // AOTInductor asks sizes, dtypes and devices of inputs only then, and takes wrong ones else.
    setenv("AOTI_RUNTIME_CHECK_INPUTS", "1", 0);
    try {
      loader_ = std::make_unique<torch::inductor::AOTIModelPackageLoader>(
          path, "model", /*run_single_threaded=*/false, threads, static_cast<c10::DeviceIndex>(device));
    } catch (const std::exception& error) {
      throw std::runtime_error(why_not_loaded(path, error));
    }
    read_metadata(path);
  }

  // The results for the inputs, which are flat as those of torch.export.
  //
  // Throws a std::invalid_argument where an input has another shape, dtype or device than the package was
  // exported for, and a std::runtime_error where the call fails.
  std::vector<at::Tensor> run(const std::vector<at::Tensor>& inputs) {
    const std::vector<at::Tensor> checked = checked_inputs(inputs);
    for (const std::string& each : namespaces_) internal::take_last_error(each);
    try {
      return loader_->run(checked);
    } catch (const std::exception& error) {
      // What the kernel said does not pass through the package.
      for (const std::string& each : namespaces_) {
        const std::string said = internal::take_last_error(each);
        if (!said.empty()) throw std::runtime_error(said);
      }
      throw std::runtime_error(first_line(error.what()));
    }
  }

 private:
  static std::string first_line(const std::string& text) { return text.substr(0, text.find('\n')); }

  static std::string why_not_loaded(const std::string& path, const std::exception& error) {
    const std::string text = error.what();
    std::smatch missing;
    if (std::regex_search(text, missing, std::regex(R"(Could not find schema for (\w+)::(\w+))"))) {
      const std::string advice = internal::what_to_load(missing[1], missing[2], "", "");
      if (!advice.empty()) return path + ": " + advice;
    }
    return path + " cannot be loaded: " + first_line(text);
  }

  // Lines of what torchgraft.package says: "operator" with a qualified name and its words, "input" with its
  // name, dtype, device, layout and sizes, each with tabs between.
  void read_metadata(const std::string& path) {
    const auto metadata = loader_->get_metadata();
    const auto found = metadata.find("torchgraft");
    if (found == metadata.end()) return;
    is_described_ = true;
    const auto device = metadata.find("AOTI_DEVICE_KEY");
    for (const std::string& line : internal::split(found->second, '\n')) {
      std::vector<std::string> words = internal::split(line, '\t');
      if (words[0] == "input") {
        std::vector<std::string> sizes(words.begin() + 5, words.end());
        inputs_.push_back({words[1], words[2], words[3], words[4], std::move(sizes)});
        continue;
      }
      const size_t colons = words[1].find("::");
      const std::string name_space = words[1].substr(0, colons), name = words[1].substr(colons + 2);
      const std::string missing = internal::what_to_load(
          name_space, name, device == metadata.end() ? "" : device->second, words[2] + "\t" + words[3]);
      if (!missing.empty()) throw std::runtime_error(path + ": " + missing);
      if (std::find(namespaces_.begin(), namespaces_.end(), name_space) == namespaces_.end()) {
        namespaces_.push_back(name_space);
      }
    }
  }

  std::vector<at::Tensor> checked_inputs(const std::vector<at::Tensor>& inputs) const {
    if (!is_described_) return inputs;
    if (inputs.size() != inputs_.size()) {
      throw std::invalid_argument("the package takes " + std::to_string(inputs_.size()) + " inputs, got " +
                                  std::to_string(inputs.size()));
    }
    std::vector<at::Tensor> checked;
    for (size_t i = 0; i < inputs.size(); ++i) {
      const std::string problem = inputs_[i].problem_of(inputs[i]);
      if (!problem.empty()) throw std::invalid_argument(problem);
      checked.push_back(inputs_[i].laid_out(inputs[i]));
    }
    return checked;
  }

  std::unique_ptr<torch::inductor::AOTIModelPackageLoader> loader_;
  bool is_described_ = false;
  std::vector<internal::ExpectedInput> inputs_;
  std::vector<std::string> namespaces_;
};

}  // namespace torchgraft
