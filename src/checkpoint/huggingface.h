// GPT-2 as Hugging Face's transformers keeps it: a folder with config.json and model.safetensors, or
// model.safetensors.index.json and the files it names. Its linear layers (Conv1D) are stored [in, out],
// Shoal's are [out, in].
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/safetensors.h"
#include "checkpoint/slice_source.h"

namespace shoal {

// The model of a config.json. Biases are always there, the head is always the embedding's matrix.
struct HuggingFaceModel {
  int n_layer = 0, n_head = 0, n_embd = 0;
  int n_positions = 0;
  std::int64_t vocab_size = 0;
  bool gelu_tanh = true;  // else exact
  bool operator==(const HuggingFaceModel&) const = default;
};

// The model of folder/config.json. Throws UserError, with what to do, when the folder is not there, the file
// is damaged, or it describes what Shoal's GPT-2 is not.
HuggingFaceModel read_hugging_face_model(const std::filesystem::path& folder);

// A tensor of the model.
struct HuggingFaceTensor {
  std::string name;         // without "transformer."
  Shape shape;              // as Shoal has it
  bool transposed = false;  // stored [in, out]
  Shape stored_shape() const { return transposed ? Shape{shape[1], shape[0]} : shape; }
};
std::vector<HuggingFaceTensor> hugging_face_tensors(const HuggingFaceModel& model);

// Reads the parameters by Shoal's names and in its layout, as float32, from F32, F16 and BF16; of the mapped
// files only the bytes of the slice are touched. Not for use by several threads at a time.
class HuggingFaceReader : public SliceSource {
 public:
  // Throws UserError, naming file, tensor and fault, when the files are damaged or hold other tensors than
  // config.json promises. Buffers of attention masks are ignored; an lm_head.weight must be wte.weight.
  explicit HuggingFaceReader(const std::filesystem::path& folder);

  const std::filesystem::path& folder() const { return folder_; }
  const HuggingFaceModel& model() const { return model_; }

  // `slice` is of float32. Its tensor may have fewer positions (transformer.wpe.weight) than the model.
  void read(const TensorSlice& slice, std::span<std::byte> out) override;

 private:
  struct Source {
    const SafetensorsFile* file = nullptr;
    const StoredTensor* stored = nullptr;
    std::optional<HuggingFaceTensor> meaning;  // nothing until the model is known to have it
  };
  void open_files();
  void open_shards(const std::filesystem::path& index);
  void add_tensors(const SafetensorsFile& file);
  void expect(const HuggingFaceTensor& tensor);
  void check_rest() const;

  std::filesystem::path folder_;
  HuggingFaceModel model_;
  std::vector<std::unique_ptr<SafetensorsFile>> files_;
  std::map<std::string, Source, std::less<>> tensors_;  // by name without "transformer."
};

struct HuggingFaceExport {
  HuggingFaceModel model;
  bool bias = true;  // false: the model has none, zeros are written
  DType dtype = DType::f32;
  double dropout = 0;
  std::optional<std::int64_t> end_of_text = {};  // the token
};

// Writes config.json, generation_config.json and model.safetensors into a folder that exists, reading pieces
// of bounded size. `progress` is told the bytes written so far. Throws UserError when the disk is full or a
// value does not fit the type.
void write_hugging_face(const HuggingFaceExport& what, SliceSource& from, const std::filesystem::path& folder,
                        const std::function<void(std::uint64_t)>& progress = {});
std::uint64_t hugging_face_bytes(const HuggingFaceExport& what);  // of all tensors

}  // namespace shoal
