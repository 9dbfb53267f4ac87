// config.json and model.safetensors.index.json, beside a shard that is whole.
#include "checkpoint/huggingface.h"

#include "checkpoint/safetensors.h"
#include "fuzz.h"

namespace {

constexpr const char* kNames[] = {"config.json", "model.safetensors.index.json"};

// A model of one layer, of which every byte is zero.
void write_shard(const shoal::fuzz::fs::path& path) {
  std::vector<shoal::TensorEntry> entries;
  const auto tensors = shoal::hugging_face_tensors(
      {.n_layer = 1, .n_head = 1, .n_embd = 1, .n_positions = 1, .vocab_size = 1});
  for (const auto& tensor : tensors)
    entries.push_back({tensor.name, shoal::DType::f32, tensor.stored_shape()});
  shoal::SafetensorsWriter writer(path, entries);
  for (const auto& entry : entries)
    writer.write(std::vector<std::byte>(static_cast<std::size_t>(entry.shape.count()) * 4));
  writer.finish();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace shoal::fuzz;
  static const InputFolder folder;
  static const bool written = (write_shard(folder.path() / "a.safetensors"), true);
  folder.write(data, size, kNames);
  return try_input([&] {
    if (written) read_all(*shoal::open_hugging_face(folder.path()));
  });
}
