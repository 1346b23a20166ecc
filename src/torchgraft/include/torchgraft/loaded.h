// The libraries of operators that a C++ program has loaded: which, whether they fit together, and what their
// kernels said. A library that is missing is an exception that names it.
#pragma once

#include <dlfcn.h>

#include <stdexcept>
#include <string>
#include <vector>

#ifdef __linux__
#include <link.h>
#endif

namespace torchgraft {

// Loads a library at run time, as `torchgraft_cuda.so`: the way for a program that decides then which ones it
// needs. One that is linked with torchgraft::cpu or torchgraft::schemas has loaded these when it starts.
//
// Throws a std::runtime_error that says why the library does not load.
inline void load_library(const std::string& path) {
  if (dlopen(path.c_str(), RTLD_NOW | RTLD_GLOBAL) == nullptr) {
    const char* const reason = dlerror();
    throw std::runtime_error(path + " does not load: " + (reason == nullptr ? "" : reason));
  }
}

namespace internal {

// A library of a namespace: 'cpu', 'cuda' or 'schemas', where it lies, and what opens it.
struct LoadedLibrary {
  std::string kind;
  std::string path;
  void* handle;

  template <typename Function>
  Function* function(const char* name) const {
    return reinterpret_cast<Function*>(dlsym(handle, name));
  }
};

// Those of a namespace that this process has loaded, by whomever.
inline std::vector<LoadedLibrary> loaded_libraries(const std::string& name_space) {
  std::vector<std::string> paths;
#ifdef __linux__
  const auto collect = [](dl_phdr_info* information, size_t, void* found) {
    static_cast<std::vector<std::string>*>(found)->emplace_back(information->dlpi_name);
    return 0;
  };
  dl_iterate_phdr(collect, &paths);
#endif
  std::vector<LoadedLibrary> libraries;
  for (const std::string& path : paths) {
    const std::string file = path.substr(path.rfind('/') + 1);
    for (const char* kind : {"cpu", "cuda", "schemas"}) {
      if (file != name_space + "_" + kind + ".so") continue;
      // It is there already: this only counts one more user, who never leaves.
      if (void* const handle = dlopen(path.c_str(), RTLD_NOW | RTLD_NOLOAD)) {
        libraries.push_back({kind, path, handle});
      }
    }
  }
  return libraries;
}

// The words that a library has for an operator, "Tensor, int\tTensor"; empty where it does not list it.
inline std::string listed_words(const LoadedLibrary& library, const std::string& name) {
  const auto list = library.function<const char*()>("torchgraft_signatures");
  const std::string lines = list == nullptr ? "" : "\n" + std::string(list());
  const size_t at = lines.find("\n" + name + "\t");
  if (at == std::string::npos) return "";
  const size_t words = lines.find('\t', at + name.size() + 2) + 1;
  return lines.substr(words, lines.find('\n', words) - words);
}

// Whether Python runs in this process: its torchgraft has declared the schemas then.
inline bool has_python() { return dlsym(RTLD_DEFAULT, "Py_IsInitialized") != nullptr; }

// Why an operator cannot be called with a kind of device, and what to load; empty where nothing is missing.
// `words` are those that the caller was compiled with; empty: any.
inline std::string what_to_load(const std::string& name_space, const std::string& name,
                                const std::string& device, const std::string& words) {
  const std::string qualified = name_space + "::" + name;
  bool has_schema = has_python(), has_kernel = false;
  for (const LoadedLibrary& library : loaded_libraries(name_space)) {
    const std::string listed = listed_words(library, name);
    if (listed.empty()) continue;
    if (!words.empty() && listed != words) {
      return qualified + " is of another version in " + library.path + ", which takes and returns (" +
             listed + ") where this program or package was compiled for (" + words +
             "): compile it again, or load the version that it was compiled for";
    }
    has_schema |= library.kind == "schemas";
    has_kernel |= library.kind == device;
  }
  const auto advise = [&](const char* lacks, const std::string& kind) {
    return qualified + " " + lacks + ": load " + name_space + "_" + kind +
           ".so, as a program does that is linked with " + name_space + "::" + kind + " of CMake";
  };
  if (!has_schema) return advise("has no schema", "schemas");
  if (!has_kernel && !device.empty()) return advise(("has no kernel for " + device).c_str(), device);
  return "";
}

// What a kernel of a namespace said last in this thread; empty where none refused a call since this was
// asked.
inline std::string take_last_error(const std::string& name_space) {
  std::string said;
  for (const LoadedLibrary& library : loaded_libraries(name_space)) {
    if (const auto last = library.function<const char*(bool)>("torchgraft_last_error")) {
      if (*last(false) != '\0') said = last(false);
      last(true);
    }
  }
  return said;
}

}  // namespace internal
}  // namespace torchgraft
