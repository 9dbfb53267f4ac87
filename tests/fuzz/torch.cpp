// Files of torch.save: a state dict, and nanoGPT's checkpoints.
#include "checkpoint/nanogpt.h"
#include "checkpoint/torch_file.h"
#include "fuzz.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace shoal::fuzz;
  const InputFile input(data, size);
  try_input([&] {
    const shoal::TorchFile file(input.path());
    for (const auto& tensor : file.tensors()) touch(tensor.data);
  });
  return try_input([&] { read_all(*shoal::open_nanogpt(input.path())); });
}
