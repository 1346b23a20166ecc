// Defines the schemas of operators where no Python declares them: for the library `<namespace>_schemas`,
// whose source torchgraft writes from the declarations. Python never loads that library.
#pragma once

#include <torch/csrc/stable/library.h>

#include <initializer_list>
#include <string>

#include "signature.h"

namespace torchgraft::internal {

// An operator as its declaration says it: the schemas of its two names (see registration.h), and the words of
// its arguments and results, as those of a kernel in signature.h.
struct DeclaredSchema {
  const char* name;
  const char* schema;
  const char* raw_schema;
  const char* arguments;
  const char* results;
};

// Never raises: an exception would end the program, as this runs while the library is loaded. A schema that
// PyTorch refuses, because somebody has defined it already, is left as it is, and a call compares its types.
inline bool define_schemas(const char* name_space, std::initializer_list<DeclaredSchema> schemas) {
  // Kept for as long as the process lives: the definitions go with it.
  TorchLibraryHandle library = nullptr;
  if (aoti_torch_library_init_fragment(name_space, __FILE__, __LINE__, &library) != 0) return false;
  bool all = true;
  for (const DeclaredSchema& each : schemas) {
    all &= aoti_torch_library_def(library, each.schema) == 0;
    all &= aoti_torch_library_def(library, each.raw_schema) == 0;
    listed_signatures() +=
        std::string(each.name) + "\tits schema\t" + each.arguments + '\t' + each.results + '\n';
  }
  return all;
}

}  // namespace torchgraft::internal
