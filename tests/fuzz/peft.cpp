// adapter_config.json and adapter_model.safetensors.
#include "checkpoint/peft.h"

#include "fuzz.h"

namespace {

constexpr const char* kNames[] = {"adapter_config.json", "adapter_model.safetensors"};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace shoal;
  static const fuzz::InputFolder folder;
  folder.write(data, size, kNames);
  return fuzz::try_input([&] {
    PeftReader reader(folder.path());
    for (const auto& layer : reader.model().layers) {
      const auto slice = whole_slice("transformer.h.0." + layer + ".lora_A.weight", DType::f32, {4, 8});
      std::vector<std::byte> values(slice.bytes());
      reader.read(slice, values);
    }
  });
}
