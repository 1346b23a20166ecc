// A choice that is measured: where Python's front door says so, as it does while PyTorch's own switch
// torch.backends.cudnn.benchmark is on, the first call of a new problem times every kernel that the library
// lists for the operator (choice.h) and that supports it, and PyTorch's own operator where the library names
// one; later calls of the problem take the fastest. TORCHGRAFT_KERNEL wraps every host function so: authors
// call nothing of this file.
//
// A problem is all that the arguments say but their values: shapes, strides, dtypes, alignment of pointers,
// and every number. The result of a candidate is thrown away, so a kernel that writes to its arguments is
// never timed.
#pragma once

#include <torch/csrc/inductor/aoti_torch/c/shim.h>
#include <torch/csrc/stable/c/shim.h>
#include <torch/csrc/stable/tensor.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <exception>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <type_traits>
#include <unordered_map>
#include <utility>
#include <vector>

#include "allocation.h"
#include "choice.h"
#include "quiet_allocation.h"

#ifdef __CUDACC__
#include <cuda_runtime.h>
#endif

namespace torchgraft::internal {

// ---------------------------------------------------------------- problems

using Words = std::vector<int64_t>;

struct HashOfWords {
  size_t operator()(const Words& words) const {
    uint64_t hash = 0xcbf29ce484222325;  // FNV-1a
    for (const int64_t word : words) hash = (hash ^ static_cast<uint64_t>(word)) * 0x100000001b3;
    return static_cast<size_t>(hash);
  }
};

// Whether an argument's part in a problem is known. One whose is not makes its kernel one that is not
// measured.
template <typename T>
struct Describes : std::bool_constant<std::is_arithmetic_v<T> || std::is_enum_v<T>> {
  static void append(Words& words, const T& value) {
    if constexpr (std::is_same_v<T, double>) {
      words.push_back(std::bit_cast<int64_t>(value));
    } else {
      words.push_back(static_cast<int64_t>(value));
    }
  }
};

template <>
struct Describes<torch::stable::Tensor> : std::true_type {
  static void append(Words& words, const torch::stable::Tensor& tensor) {
    const auto sizes = tensor.sizes();
    const auto strides = tensor.strides();
    words.push_back(static_cast<int64_t>(sizes.size()));
    words.insert(words.end(), sizes.begin(), sizes.end());
    words.insert(words.end(), strides.begin(), strides.end());
    words.push_back(static_cast<int64_t>(tensor.scalar_type()));
    const uintptr_t address = reinterpret_cast<uintptr_t>(tensor.data_ptr()) | 16;
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

template <typename T>
void note_device(const T&, int32_t&) {}
inline void note_device(const torch::stable::Tensor& tensor, int32_t& device) {
  if (device < 0) device = tensor.get_device_index();
}

// ---------------------------------------------------------------- the table

// The kernel that a problem takes; empty for the policy's. What each took, in seconds, if it was timed here.
struct Choice {
  std::string kernel;
  std::vector<std::pair<std::string, double>> seconds;
};

struct Choices {
  std::mutex mutex;
  std::map<std::string, std::unordered_map<Words, Choice, HashOfWords>> of_operator;
  std::string told;
};
inline Choices choices;

// Whether the next call on this thread may be measured: the front door says so for one call at a time, so
// that compiled and exported programs, which come through no door, keep the policy.
inline thread_local bool measures_next = false;

// Whether a tool has every choice left to policies.
inline std::atomic<bool> paused{false};

// Whether PyTorch's switch is on: for calls that come from C++ through no door of Python's. The stable
// interface cannot tell; where PyTorch has these functions no longer, such calls keep the policy.
inline bool switch_is_on() {
  static const auto context = quiet::find<const void* (*)()>("libtorch_cpu.so", "_ZN2at13globalContextEv");
  static const auto is_on =
      quiet::find<bool (*)(const void*)>("libtorch_cpu.so", "_ZNK2at7Context14benchmarkCuDNNEv");
  return context != nullptr && is_on != nullptr && is_on(context()) &&
         !paused.load(std::memory_order_relaxed);
}

inline bool take_measures_next() {
  const bool wanted = measures_next;
  measures_next = false;
  return wanted;
}

// Another kernel must be so much faster than the policy's: what differs less is noise, and the policy's are
// the same in every process.
inline constexpr double kNoise = 0.97;
// After one round, what takes so many times as long as the fastest is timed no more.
inline constexpr double kFarBehind = 1.5;
inline constexpr int kRounds = 7;

// The name of PyTorch's own operator among kernels.
inline constexpr const char* kPyTorch = "pytorch";

// ---------------------------------------------------------------- time

#ifdef __CUDACC__
// The device's time of a call on the current stream. What empties the second-level cache before keeps the
// device busy, too, until the host has launched all of the call.
class Timer {
 public:
  explicit Timer(int32_t device) {
    void* stream = nullptr;
    TORCH_ERROR_CODE_CHECK(aoti_torch_get_current_cuda_stream(device, &stream));
    stream_ = static_cast<cudaStream_t>(stream);
    cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    can_time_ =
        cudaStreamIsCapturing(stream_, &status) == cudaSuccess && status == cudaStreamCaptureStatusNone;
    if (!can_time_) return;
    int cache = 0;
    int current = 0;
    cudaGetDevice(&current);
    cudaDeviceGetAttribute(&cache, cudaDevAttrL2CacheSize, current);
    const int64_t bytes = std::max(int64_t{4} * cache, int64_t{1} << 26);
    const int64_t stride = 1;
    flushed_ =
        make_empty(1, &bytes, &stride, aoti_torch_dtype_uint8(), aoti_torch_device_type_cuda(), device);
    bytes_ = bytes;
    for (cudaEvent_t& event : events_) can_time_ = can_time_ && cudaEventCreate(&event) == cudaSuccess;
  }
  ~Timer() {
    for (const cudaEvent_t event : events_) {
      if (event != nullptr) cudaEventDestroy(event);
    }
  }
  Timer(const Timer&) = delete;

  bool can_time() const { return can_time_; }

  template <typename Call>
  double seconds_of(const Call& call) {
    cudaMemsetAsync(flushed_->mutable_data_ptr(), 0, static_cast<size_t>(bytes_), stream_);
    cudaEventRecord(events_[0], stream_);
    call();
    cudaEventRecord(events_[1], stream_);
    float milliseconds = 0;
    if (cudaEventSynchronize(events_[1]) != cudaSuccess ||
        cudaEventElapsedTime(&milliseconds, events_[0], events_[1]) != cudaSuccess) {
      cudaGetLastError();
      throw std::runtime_error("a kernel cannot be timed");
    }
    return milliseconds * 1e-3;
  }

 private:
  cudaStream_t stream_ = nullptr;
  bool can_time_ = false;
  std::optional<torch::stable::Tensor> flushed_;
  int64_t bytes_ = 0;
  cudaEvent_t events_[2] = {};
};
#else
class Timer {
 public:
  explicit Timer(int32_t) {}

  static bool can_time() { return true; }

  // Of many calls where one is short against the clock.
  template <typename Call>
  static double seconds_of(const Call& call) {
    constexpr double kLong = 50e-6;
    const auto begin = std::chrono::steady_clock::now();
    double seconds = 0;
    int64_t calls = 0;
    while (seconds < kLong) {
      call();
      ++calls;
      seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    }
    return seconds / static_cast<double>(calls);
  }
};
#endif

// ---------------------------------------------------------------- calls

// A scope in which calls on this thread are given a kernel.
class Assignment {
 public:
  explicit Assignment(const char* name) : before_(assigned) { assigned = {name, 0}; }
  ~Assignment() { assigned = before_; }
  Assignment(const Assignment&) = delete;

 private:
  Assigned before_;
};

// Times candidates and returns the fastest. `run(name)` makes a call with a kernel, null for the policy's,
// and returns whether the kernel served it.
template <typename Run>
Choice measure(const std::vector<const char*>& names, Timer& timer, const Run& run) {
  struct Candidate {
    const char* name;
    double seconds;
    bool is_out;
  };
  std::vector<Candidate> candidates;
  for (const char* const name : names) {
    try {
      // Once before: what a call does only at first is not timed.
      if (!run(name)) continue;
      candidates.push_back({name, timer.seconds_of([&] { run(name); }), false});
    } catch (const std::exception&) {
      // What a kernel cannot compute after all is told where the policy chooses it.
      if (name == nullptr) throw;
    }
  }
  double best = candidates[0].seconds;
  for (const Candidate& each : candidates) best = std::min(best, each.seconds);
  for (Candidate& each : candidates) each.is_out = each.name != nullptr && each.seconds > kFarBehind * best;
  for (int round = 1; round < kRounds; ++round) {
    for (Candidate& each : candidates) {
      if (!each.is_out) each.seconds = std::min(each.seconds, timer.seconds_of([&] { run(each.name); }));
    }
  }
  Choice choice;
  const Candidate* fastest = &candidates[0];
  for (const Candidate& each : candidates) {
    choice.seconds.emplace_back(each.name == nullptr ? "" : each.name, each.seconds);
    if (each.seconds < fastest->seconds * (fastest->name == nullptr ? kNoise : 1.0)) fastest = &each;
  }
  if (fastest->name != nullptr) choice.kernel = fastest->name;
  return choice;
}

// A host function that takes the fastest kernel of those that were timed. kRival computes the same by
// PyTorch's own operator, from the same arguments; it throws where it cannot.
template <const char* kOperator, typename Function, Function kFunction, auto kRival = nullptr>
struct Measured;

template <const char* kOperator, typename Result, typename... Arguments, Result (*kFunction)(Arguments...),
          auto kRival>
struct Measured<kOperator, Result (*)(Arguments...), kFunction, kRival> {
  static constexpr bool has_rival = !std::is_null_pointer_v<decltype(kRival)>;
  // What is written to would be written twice.
  static constexpr bool can_measure =
      !std::is_void_v<Result> && (Describes<std::decay_t<Arguments>>::value && ...);

  static Result call(Arguments... arguments) {
    if constexpr (can_measure) {
      if (take_measures_next()) [[unlikely]]
        return fastest(arguments...);
    }
    return kFunction(std::move(arguments)...);
  }

 private:
  static std::vector<const char*> names() {
    std::vector<const char*> found = {nullptr};
    for (const auto& [op, name] : kernel_table()) {
      if (std::strcmp(op, kOperator) == 0) found.push_back(name);
    }
    if constexpr (has_rival) found.push_back(kPyTorch);
    return found;
  }

  static Result run(const char* name, const Arguments&... arguments) {
    if constexpr (has_rival) {
      if (name != nullptr && std::strcmp(name, kPyTorch) == 0) return kRival(arguments...);
    }
    const Assignment assignment(name);
    return kFunction(arguments...);
  }

  static bool serves(const char* name, const Arguments&... arguments) {
    if constexpr (has_rival) {
      if (name != nullptr && std::strcmp(name, kPyTorch) == 0) {
        kRival(arguments...);
        return true;
      }
    }
    const Assignment assignment(name);
    kFunction(arguments...);
    return name == nullptr || assigned.served > 0;
  }

  static Result fastest(const Arguments&... arguments) {
    const std::vector<const char*> candidates = names();
    if (candidates.size() == 1 || forced.name.load(std::memory_order_relaxed) != nullptr) {
      return kFunction(arguments...);
    }
    Words words;
    (Describes<std::decay_t<Arguments>>::append(words, arguments), ...);
    const auto kernel_of = [&](const Choice& choice) -> const char* {
      // The policy's, too, where this library has no longer what another one measured.
      for (const char* const name : candidates) {
        if (name != nullptr && choice.kernel == name) return name;
      }
      return nullptr;
    };
    bool is_known = false;
    const char* kernel = nullptr;
    {
      const std::lock_guard<std::mutex> guard(choices.mutex);
      const auto& known = choices.of_operator[kOperator];
      const auto found = known.find(words);
      is_known = found != known.end();
      if (is_known) kernel = kernel_of(found->second);
    }
    if (!is_known) {
      int32_t device = -1;
      (note_device(arguments, device), ...);
      Timer timer(device);
      if (!timer.can_time()) return kFunction(arguments...);
      const Choice choice =
          measure(candidates, timer, [&](const char* name) { return serves(name, arguments...); });
      const std::lock_guard<std::mutex> guard(choices.mutex);
      // Another thread may have been first.
      kernel = kernel_of(choices.of_operator[kOperator].emplace(words, choice).first->second);
    }
    return run(kernel, arguments...);
  }
};

// The table as text, a line for each problem: the operator, the kernel, the words of the problem, what each
// candidate took, with tabs between them.
inline const std::string& tell_choices() {
  const std::lock_guard<std::mutex> guard(choices.mutex);
  std::string& lines = choices.told;
  lines.clear();
  for (const auto& [op, known] : choices.of_operator) {
    for (const auto& [words, choice] : known) {
      lines.append(op).append("\t").append(choice.kernel).append("\t");
      for (const int64_t word : words) lines.append(std::to_string(word)).append(" ");
      lines.append("\t");
      for (const auto& [name, seconds] : choice.seconds) {
        lines.append(name).append("=").append(std::to_string(seconds * 1e6)).append(" ");
      }
      lines.append("\n");
    }
  }
  return lines;
}

}  // namespace torchgraft::internal

// Exported from a library of kernels. The next call on this thread may be measured.
extern "C" __attribute__((weak, visibility("default"))) void torchgraft_measure_next() {
  torchgraft::internal::measures_next = true;
}
// Has calls that come from C++ keep the policy, or ends that.
extern "C" __attribute__((weak, visibility("default"))) void torchgraft_pause_measuring(bool wanted) {
  torchgraft::internal::paused = wanted;
}
// All that was chosen by measuring, as text, valid until it is asked again.
extern "C" __attribute__((weak, visibility("default"))) const char* torchgraft_choices() {
  return torchgraft::internal::tell_choices().c_str();
}
// Has a problem take a kernel from now on, as one that was measured elsewhere; null forgets all.
extern "C" __attribute__((weak, visibility("default"))) void torchgraft_choose(const char* op,
                                                                               const char* kernel,
                                                                               const int64_t* words,
                                                                               int64_t count) {
  namespace internal = torchgraft::internal;
  const std::lock_guard<std::mutex> guard(internal::choices.mutex);
  if (op == nullptr) {
    internal::choices.of_operator.clear();
    return;
  }
  internal::choices.of_operator[op][internal::Words(words, words + count)] = {kernel, {}};
}
