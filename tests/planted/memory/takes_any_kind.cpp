// No planted operator: a kernel that takes what a schema can name beside tensors and numbers, for a test of
// how it arrives, and of what is left over of it.

#include <torchgraft/dispatch.h>
#include <torchgraft/layout.h>
#include <torchgraft/text.h>

#include <torch/csrc/stable/library.h>

#include <optional>
#include <vector>

namespace planted {
namespace {

using torchgraft::Tensor;
using torchgraft::Text;

// What arrived, as numbers.
Tensor takes_any_kind_cpu(Tensor like, std::vector<Tensor> tensors, std::vector<std::optional<Tensor>> some,
                          std::vector<int64_t> sizes, Text text, std::optional<Text> other) {
  double present = 0, total = 0, elements = 0;
  for (const Tensor& tensor : tensors) elements += static_cast<double>(tensor.numel());
  for (const std::optional<Tensor>& tensor : some) present += tensor.has_value();
  for (const int64_t size : sizes) total += static_cast<double>(size);
  const double found[] = {elements,
                          present,
                          total,
                          static_cast<double>(text.size()),
                          text == "mean" ? 1.0 : 0.0,
                          other ? static_cast<double>(other->size()) : -1.0};
  const int64_t size = 6, step = 1;
  Tensor output = torchgraft::empty_strided(&size, &step, 1, like);
  std::copy(std::begin(found), std::end(found), torchgraft::mutable_data_of<double>(output));
  return output;
}

}  // namespace

STABLE_TORCH_LIBRARY_FRAGMENT(planted, library) {
  library.def(
      "takes_any_kind(Tensor like, Tensor[] tensors, Tensor?[] some, int[] sizes, str text, str? other) -> "
      "Tensor");
}
STABLE_TORCH_LIBRARY_IMPL(planted, CPU, library) {
  library.impl("takes_any_kind", TORCH_BOX(&takes_any_kind_cpu));
}

}  // namespace planted
