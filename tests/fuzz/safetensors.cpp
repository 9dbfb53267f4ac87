#include "checkpoint/safetensors.h"

#include "fuzz.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace shoal::fuzz;
  const InputFile input(data, size);
  return try_input([&] {
    const shoal::SafetensorsFile file(input.path());
    for (const auto& tensor : file.tensors()) touch(tensor.data);
  });
}
