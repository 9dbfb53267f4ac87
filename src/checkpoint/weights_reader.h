// Reads a GPT-2's parameters from the files of another program.
#pragma once

#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/slice_source.h"
#include "checkpoint/tensor_file.h"
#include "checkpoint/weights_model.h"

namespace shoal {

using TensorFiles = std::vector<std::unique_ptr<TensorFile>>;

// Reads by Shoal's names and in its layout, as float32, from F32, F16 and BF16; of the mapped files only the
// bytes of the slice are touched. Not for use by several threads at a time.
class WeightsReader : public SliceSource {
 public:
  // `path` is the file or folder that the user named, `model_from` the part of it that says what model it is:
  // "config.json". Throws UserError, naming file, tensor and fault, when the files hold other tensors than
  // the model has. "transformer." and torch.compile's "_orig_mod." may precede the names. Buffers of
  // attention masks are ignored; the lm_head.weight of a tied model must be wte.weight.
  WeightsReader(TensorFiles files, const WeightsModel& model, LinearLayout layout,
                const std::filesystem::path& path, const std::string& model_from);

  const WeightsModel& model() const { return model_; }

  // `slice` is of float32. Its tensor may have fewer positions (transformer.wpe.weight) than the model.
  void read(const TensorSlice& slice, std::span<std::byte> out) override;

 private:
  struct Source {
    const TensorFile* file = nullptr;
    const StoredTensor* stored = nullptr;
    std::optional<WeightsTensor> meaning;  // nothing until the model is known to have it
  };
  void add_tensors(const TensorFile& file);
  void expect(const WeightsTensor& tensor);
  void check_rest() const;
  void check_head(const Source& head) const;

  TensorFiles files_;
  WeightsModel model_;
  std::filesystem::path path_;
  std::string model_from_;
  std::map<std::string, Source, std::less<>> tensors_;  // by name without prefixes
};

}  // namespace shoal
