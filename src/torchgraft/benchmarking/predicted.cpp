// The C function that predicting.py calls.

#include <torchgraft/detail/predicted.h>

namespace torchgraft::predicted {
namespace {

// The kind of an argument in the list: nothing, a number, or a tensor.
enum Kind : int64_t { kNothing, kNumber, kTensor };

Arguments read(const int64_t* numbers, int64_t count) {
  Arguments arguments;
  const int64_t* const end = numbers + count;
  while (numbers != end) {
    Argument argument;
    const int64_t kind = *numbers++;
    argument.is_given = kind != kNothing;
    if (kind == kNumber) argument.number = *numbers++;
    if (kind == kTensor) {
      argument.element_bytes = static_cast<int>(*numbers++);
      argument.is_bfloat16 = *numbers++ != 0;
      argument.is_channels_last = *numbers++ != 0;
      const int64_t dim = *numbers++;
      argument.sizes.assign(numbers, numbers + dim);
      numbers += dim;
    }
    arguments.push_back(argument);
  }
  return arguments;
}

}  // namespace
}  // namespace torchgraft::predicted

// The names of the kernels, a line each, valid until the next call; null if the operator is not known.
// `numbers`: the arguments, as `read` takes them.
extern "C" __attribute__((weak, visibility("default"))) const char* torchgraft_predict(
    const char* op, int architecture, int multiprocessors, int64_t shared_of_block,
    int64_t shared_of_multiprocessor, const int64_t* numbers, int64_t count) {
  using namespace torchgraft::predicted;
  static thread_local std::string text;
  const auto found = operators().find(op);
  if (found == operators().end()) return nullptr;
  text.clear();
  const Gpu gpu = {architecture, multiprocessors, shared_of_block, shared_of_multiprocessor};
  for (const char* const name : found->second(read(numbers, count), gpu)) text.append(name).append("\n");
  return text.c_str();
}
