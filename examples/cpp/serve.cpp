// Runs a model that Python has exported, without Python:
//
//   serve model.pt2 input.pt output.pt [input.pt output.pt ...]
//
// Each pair of files is a request of its own, in a thread of its own. torch.save writes such files, and
// torch.load reads them.
#include <torch/csrc/jit/serialization/pickle.h>
#include <torchgraft/package.h>

#include <fstream>
#include <future>
#include <iostream>
#include <iterator>

static void answer(torchgraft::Package& model, const char* input, const char* output) {
  std::ifstream file(input, std::ios::binary);
  const std::vector<char> bytes{std::istreambuf_iterator<char>(file), {}};
  const at::IValue saved = torch::jit::pickle_load(bytes);
  std::vector<at::Tensor> inputs;
  for (const at::IValue& each : saved.toTupleRef().elements()) inputs.push_back(each.toTensor());
  const std::vector<at::Tensor> results = model.run(inputs);
  const auto tuple = c10::ivalue::Tuple::create(std::vector<at::IValue>(results.begin(), results.end()));
  const std::vector<char> written = torch::jit::pickle_save(tuple);
  std::ofstream(output, std::ios::binary).write(written.data(), static_cast<std::streamsize>(written.size()));
}

int main(int count, char** arguments) try {
  const int requests = (count - 2) / 2;
  torchgraft::Package model(arguments[1], requests);
  std::vector<std::future<void>> answers;
  for (int i = 0; i < requests; ++i) {
    char** files = arguments + 2 + 2 * i;
    answers.push_back(std::async(std::launch::async, answer, std::ref(model), files[0], files[1]));
  }
  for (std::future<void>& each : answers) each.get();
} catch (const std::exception& error) {
  std::cerr << "serve: " << error.what() << '\n';
  return 1;
}
