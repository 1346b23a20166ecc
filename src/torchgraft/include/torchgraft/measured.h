// Chooses a kernel by timing. Where Python asks for it, the first call of a problem times every kernel that
// the library lists for the operator (choice.h) and that supports the problem, and PyTorch's own operator if
// the library names one. The fastest serves this call and all later calls of the problem.
//
// TORCHGRAFT_KERNEL wraps each host function so; authors call nothing of this file. A problem is everything
// about the arguments but the elements of tensors. Candidates run many times and their results are dropped,
// so Python never asks for it where an operator writes to its arguments.
#pragma once

#include <torch/csrc/inductor/aoti_torch/c/shim.h>
#include <torch/csrc/stable/tensor.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <chrono>
#include <cstdint>
#include <exception>
#include <limits>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "allocation.h"
#include "choice.h"
#include "quiet_allocation.h"

#ifdef __CUDACC__
#include <cuda_runtime.h>
#include <torch/csrc/stable/accelerator.h>

#include "device.cuh"
#endif

namespace torchgraft::internal {

// Whether calls may be timed in this process: Python sets it.
inline std::atomic<bool> may_measure{false};

// Whether calls on this thread are timed. Python's front door sets it for one call at a time: compiled and
// exported programs do not come through the door, so they keep the policy.
inline thread_local bool measures = false;

// A scope in which calls on this thread are timed, or are not.
class Measuring {
 public:
  explicit Measuring(bool wanted) : before_(std::exchange(measures, wanted)) {}
  ~Measuring() { measures = before_; }
  Measuring(const Measuring&) = delete;

 private:
  bool before_;
};

// Whether torch.backends.cudnn.benchmark is on and calls may be timed: for gradients that PyTorch records in
// C++, which do not come through Python's door. The stable interface cannot tell the switch. Where PyTorch
// does not have these functions, such calls keep the policy.
inline bool switch_is_on() {
  if (!may_measure.load(std::memory_order_relaxed)) return false;
  static const auto context = quiet::find<const void* (*)()>("libtorch_cpu.so", "_ZN2at13globalContextEv");
  static const auto is_on =
      quiet::find<bool (*)(const void*)>("libtorch_cpu.so", "_ZNK2at7Context14benchmarkCuDNNEv");
  return context != nullptr && is_on != nullptr && is_on(context());
}

// What is known of the arguments of a call, as numbers.
using Words = std::vector<int64_t>;

// How an argument is written down. An operator with an argument of another type is never timed.
template <typename T>
struct Describes : std::bool_constant<std::is_integral_v<T> || std::is_enum_v<T>> {
  static void append(Words& words, T value) { words.push_back(static_cast<int64_t>(value)); }
};

template <>
struct Describes<double> : std::true_type {
  static void append(Words& words, double value) { words.push_back(std::bit_cast<int64_t>(value)); }
};

template <>
struct Describes<Tensor> : std::true_type {
  static void append(Words& words, const Tensor& tensor) {
    const auto sizes = tensor.sizes();
    const auto strides = tensor.strides();
    words.push_back(static_cast<int64_t>(sizes.size()));
    words.insert(words.end(), sizes.begin(), sizes.end());
    words.insert(words.end(), strides.begin(), strides.end());
    words.push_back(static_cast<int64_t>(tensor.scalar_type()));
    // Alignment, up to 16 bytes: the lowest bit of the address.
    const uintptr_t address = reinterpret_cast<uintptr_t>(tensor.const_data_ptr()) | 16;
    words.push_back(static_cast<int64_t>(address & (~address + 1)));
  }
};

template <typename T>
struct Describes<std::optional<T>> : Describes<T> {
  static void append(Words& words, const std::optional<T>& value) {
    words.push_back(value.has_value());
    if (value) Describes<T>::append(words, *value);
  }
};

template <typename T>
struct Describes<std::vector<T>> : Describes<T> {
  static void append(Words& words, const std::vector<T>& values) {
    words.push_back(static_cast<int64_t>(values.size()));
    for (const T& value : values) Describes<T>::append(words, value);
  }
};

// Sets `device` to that of the first tensor.
template <typename T>
void note_device(const T&, int32_t&) {}
inline void note_device(const Tensor& tensor, int32_t& device) {
  if (device < 0) device = tensor.get_device_index();
}

// An operator and what is known of the arguments of a call.
using Call = std::pair<std::string, Words>;

// The kernel that a problem takes, empty for the one that the policy chooses; and how long each candidate
// took, in seconds, if it was timed in this process.
struct Choice {
  std::string kernel;
  std::vector<std::pair<std::string, double>> seconds;
};

// What was chosen so far in this process. No lock is held while kernels are timed: the stream may wait for
// work that another thread has still to launch.
struct Choices {
  std::mutex mutex;
  std::map<Call, Choice> kept;

  std::optional<std::string> find(const Call& call) {
    const std::lock_guard guard(mutex);
    const auto found = kept.find(call);
    return found == kept.end() ? std::nullopt : std::optional(found->second.kernel);
  }

  // The kernel that stays: another thread may have been first.
  std::string keep(const Call& call, Choice choice) {
    const std::lock_guard guard(mutex);
    return kept.emplace(call, std::move(choice)).first->second.kernel;
  }

  void drop(const Call& call) {
    const std::lock_guard guard(mutex);
    kept.erase(call);
  }
};
inline Choices choices;

#ifdef __CUDACC__
inline cudaStream_t stream_of(int32_t device) {
  void* stream = nullptr;
  check_call(aoti_torch_get_current_cuda_stream(device, &stream), "the current stream");
  return static_cast<cudaStream_t>(stream);
}

// Whether nothing can be timed now: a CUDA graph is captured.
inline bool is_captured(int32_t device) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  if (cudaStreamIsCapturing(stream_of(device), &status) == cudaSuccess) {
    return status != cudaStreamCaptureStatusNone;
  }
  cudaGetLastError();
  return true;
}

// Which kind of GPU a problem is on: a process may have several, and choices of another machine may be
// loaded.
inline void describe_device(Words& words, int32_t index) {
  const torch::stable::accelerator::DeviceGuard guard(index);
  const torchgraft::Device& device = current_device();
  words.insert(words.end(), {device.architecture, device.multiprocessors});
}

// In this scope what the thread asks of CUDA does not end the capture of a graph in another thread.
class BesideCaptures {
 public:
  BesideCaptures() { cudaThreadExchangeStreamCaptureMode(&mode_); }
  ~BesideCaptures() { cudaThreadExchangeStreamCaptureMode(&mode_); }
  BesideCaptures(const BesideCaptures&) = delete;

 private:
  cudaStreamCaptureMode mode_ = cudaStreamCaptureModeRelaxed;
};

class Event {
 public:
  Event() {
    if (cudaEventCreate(&event_) != cudaSuccess) fail("there is no event to time with");
  }
  ~Event() { cudaEventDestroy(event_); }
  Event(const Event&) = delete;

  void record(cudaStream_t stream) const { cudaEventRecord(event_, stream); }

  bool has_passed() const {
    if (cudaEventQuery(event_) == cudaSuccess) return true;
    // That it has not is noted as an error.
    cudaGetLastError();
    return false;
  }

  double seconds_until(const Event& end) const {
    float milliseconds = 0;
    if (cudaEventSynchronize(end.event_) != cudaSuccess ||
        cudaEventElapsedTime(&milliseconds, event_, end.event_) != cudaSuccess) {
      cudaGetLastError();
      fail("a kernel cannot be timed");
    }
    return milliseconds * 1e-3;
  }

 private:
  cudaEvent_t event_ = nullptr;
};

// How long the device takes for a call on the current stream. Before each, more memory is cleared than twice
// the second-level cache of any GPU: it empties the cache, and keeps the device busy while the host launches.
class Timer {
 public:
  explicit Timer(int32_t device)
      : guard_(device),
        stream_(stream_of(device)),
        cleared_(make_empty(1, &kCleared, &kStride, aoti_torch_dtype_uint8(), aoti_torch_device_type_cuda(),
                            device)) {}

  template <typename Run>
  double seconds_of(const Run& run) {
    while (true) {
      for (int i = 0; i < clears_; ++i) {
        cudaMemsetAsync(cleared_.mutable_data_ptr(), 0, kCleared, stream_);
      }
      begin_.record(stream_);
      run();
      // Whether the device had nothing to do before the host had launched all: then it waited for the host.
      const bool is_idle = begin_.has_passed();
      end_.record(stream_);
      const double seconds = begin_.seconds_until(end_);
      if (!is_idle || clears_ == kMostClears) return seconds;
      clears_ *= 2;
    }
  }

 private:
  static constexpr int64_t kCleared = int64_t{256} << 20;
  static constexpr int64_t kStride = 1;
  // Which take some milliseconds.
  static constexpr int kMostClears = 32;

  torch::stable::accelerator::DeviceGuard guard_;
  BesideCaptures beside_captures_;
  cudaStream_t stream_;
  Tensor cleared_;
  int clears_ = 1;
  Event begin_, end_;
};
#else
inline bool is_captured(int32_t) { return false; }
inline void describe_device(Words&, int32_t) {}

// How long a call takes: the mean of as many as fill a time that is long against the clock's resolution.
class Timer {
 public:
  explicit Timer(int32_t) {}

  template <typename Run>
  static double seconds_of(const Run& run) {
    constexpr double kLong = 50e-6;
    const auto begin = std::chrono::steady_clock::now();
    double seconds = 0;
    int64_t calls = 0;
    while (seconds < kLong) {
      run();
      ++calls;
      seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    }
    return seconds / static_cast<double>(calls);
  }
};
#endif

// The name of PyTorch's own operator among kernels.
inline constexpr const char* kPyTorch = "pytorch";

// A kernel replaces the policy's if it takes at most this share of its time: a smaller difference may be
// noise, and the policy chooses the same kernel in every process.
inline constexpr double kWorthwhile = 0.97;
// Each candidate is timed so often, and the least time counts.
inline constexpr int kRounds = 7;
// A candidate that takes longer than this many times the fastest is not timed again, unless it is the
// policy's.
inline constexpr double kFarBehind = 1.5;

// Times the kernels of some names, where an empty one stands for the policy's. `run(name)` makes a call, and
// returns whether the kernel computed it. Where there is no memory to time with, or the policy's kernel
// fails, the choice is the policy's: the caller sees the error, if there is one.
template <typename Run>
Choice measure(const std::vector<std::string>& names, int32_t device, const Run& run) {
  constexpr double kNever = std::numeric_limits<double>::infinity();
  Choice choice;
  auto& candidates = choice.seconds;
  try {
    Timer timer(device);
    for (const std::string& name : names) {
      // The first call may compile or load something, so it is not timed.
      if (run(name)) candidates.emplace_back(name, kNever);
    }
    for (int round = 0; round < kRounds; ++round) {
      double best = kNever;
      for (const auto& [name, seconds] : candidates) best = std::min(best, seconds);
      for (auto& [name, seconds] : candidates) {
        if (!name.empty() && seconds > kFarBehind * best) continue;
        bool computes = true;
        const double taken = timer.seconds_of([&, &name = name] { computes = computes && run(name); });
        seconds = computes ? std::min(seconds, taken) : seconds;
      }
    }
  } catch (const std::exception&) {
    return {};
  }
  std::erase_if(candidates, [](const auto& each) { return each.second == kNever; });
  double least = kNever;
  for (const auto& [name, seconds] : candidates) {
    if (name.empty()) least = kWorthwhile * seconds;
  }
  for (const auto& [name, seconds] : candidates) {
    if (name.empty() || seconds >= least) continue;
    choice.kernel = name;
    least = seconds;
  }
  return choice;
}

// A scope in which calls on this thread take the kernel of a name.
class Assignment {
 public:
  explicit Assignment(const char* name) : before_(std::exchange(assigned, Assigned{name, 0})) {}
  ~Assignment() { assigned = before_; }
  Assignment(const Assignment&) = delete;

 private:
  Assigned before_;
};

// A host function that takes the fastest kernel where that is asked for. kRival, if it is not null, computes
// the same from the same arguments by PyTorch's operator, and throws where PyTorch cannot.
template <const char* kOperator, typename Function, Function kFunction, auto kRival = nullptr>
struct Measured;

template <const char* kOperator, typename Result, typename... Arguments, Result (*kFunction)(Arguments...),
          auto kRival>
struct Measured<kOperator, Result (*)(Arguments...), kFunction, kRival> {
  static Result call(Arguments... arguments) {
    if constexpr (!std::is_void_v<Result> && (Describes<std::decay_t<Arguments>>::value && ...)) {
      if (measures) [[unlikely]]
        return fastest(arguments...);
    }
    return kFunction(std::move(arguments)...);
  }

 private:
  static std::vector<std::string> candidates() {
    std::vector<std::string> names = {""};
    for (const auto& [op, name] : listed_kernels()) {
      if (op == kOperator) names.push_back(name);
    }
    if constexpr (!std::is_null_pointer_v<decltype(kRival)>) names.push_back(kPyTorch);
    return names;
  }

  // What a kernel computes; nothing where it does not support the call, fails, or is not there any more.
  static std::optional<Result> run(const std::string& name, const Arguments&... arguments) {
    if (name.empty()) return kFunction(arguments...);
    try {
      if constexpr (!std::is_null_pointer_v<decltype(kRival)>) {
        if (name == kPyTorch) return kRival(arguments...);
      }
      const Assignment assignment(name.c_str());
      Result result = kFunction(arguments...);
      if (assigned.served > 0) return result;
    } catch (const std::exception&) {
      // As for want of memory, or where PyTorch has no such operator.
    }
    return std::nullopt;
  }

  static Result fastest(const Arguments&... arguments) {
    const Measuring nothing_below(false);
    const std::vector<std::string> names = candidates();
    if (names.size() == 1 || forced.name.load(std::memory_order_relaxed) != nullptr) {
      return kFunction(arguments...);
    }
    int32_t device = -1;
    (note_device(arguments, device), ...);
    Call call = {kOperator, {}};
    describe_device(call.second, device);
    (Describes<std::decay_t<Arguments>>::append(call.second, arguments), ...);
    if (const std::optional<std::string> kernel = choices.find(call)) {
      if (std::optional<Result> result = run(*kernel, arguments...)) return std::move(*result);
      // It was loaded from a file and cannot be followed: the problem is timed again.
      choices.drop(call);
    }
    if (is_captured(device)) return kFunction(arguments...);
    const std::string kernel = choices.keep(call, measure(names, device, [&](const std::string& name) {
                                              return run(name, arguments...).has_value();
                                            }));
    std::optional<Result> result = run(kernel, arguments...);
    return result ? std::move(*result) : kFunction(arguments...);
  }
};

}  // namespace torchgraft::internal

// Exported from a library of kernels. Whether calls may be timed in this process.
extern "C" __attribute__((weak, visibility("default"))) void torchgraft_may_measure(bool wanted) {
  torchgraft::internal::may_measure = wanted;
}
// Whether calls on this thread are timed from now on.
extern "C" __attribute__((weak, visibility("default"))) void torchgraft_measure(bool wanted) {
  torchgraft::internal::measures = wanted;
}
// What was chosen, a line for each problem: the operator, the kernel, the problem, and the microseconds of
// each candidate, with tabs between. The text is valid until it is asked for again.
extern "C" __attribute__((weak, visibility("default"))) const char* torchgraft_choices() {
  using torchgraft::internal::choices;
  static std::string lines;
  const std::lock_guard guard(choices.mutex);
  lines.clear();
  for (const auto& [call, choice] : choices.kept) {
    lines.append(call.first).append("\t").append(choice.kernel).append("\t");
    for (const int64_t word : call.second) lines.append(std::to_string(word)).append(" ");
    lines.append("\t");
    for (const auto& [name, seconds] : choice.seconds) {
      lines.append(name).append("=").append(std::to_string(seconds * 1e6)).append(" ");
    }
    lines.append("\n");
  }
  return lines.c_str();
}
// Has a problem take a kernel; a null operator forgets all that was chosen.
extern "C" __attribute__((weak, visibility("default"))) void torchgraft_choose(const char* op,
                                                                               const char* kernel,
                                                                               const int64_t* words,
                                                                               int64_t count) {
  using torchgraft::internal::choices;
  const std::lock_guard guard(choices.mutex);
  if (op == nullptr) {
    choices.kept.clear();
  } else {
    choices.kept[{op, {words, words + count}}] = {kernel, {}};
  }
}
