// Low-rank adapters as peft keeps them: a folder with adapter_config.json and adapter_model.safetensors,
// whose matrices have Shoal's layout and "base_model.model." before the names. Merging adds them to the
// weights that they are of.
#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "checkpoint/safetensors.h"
#include "checkpoint/slice_source.h"

namespace shoal {

struct AdapterModel {
  int rank = 0;
  double alpha = 0, dropout = 0;
  std::vector<std::string> layers;  // of every block, sorted: "attn.c_attn"
  bool operator==(const AdapterModel&) const = default;
};

// Reads "transformer.h.0.attn.c_attn.lora_A.weight" and the like as float32, from F32, F16 and BF16.
class PeftReader : public SliceSource {
 public:
  // Throws UserError, with what to do, when the files are missing or damaged, hold other tensors than
  // adapters of a GPT-2's linear layers, or need what Shoal does not do (DoRA, biases, ranks that differ by
  // layer).
  explicit PeftReader(const std::filesystem::path& folder);

  const AdapterModel& model() const { return model_; }
  // Throws UserError unless the adapters are those of so many blocks.
  void require_blocks(int blocks) const;
  void read(const TensorSlice& slice, std::span<std::byte> out) override;

 private:
  std::filesystem::path folder_;
  AdapterModel model_;
  std::unique_ptr<SafetensorsFile> file_;
  std::set<int> blocks_;  // that have adapters
};

// Writes the adapters of a model with so many blocks into a folder that exists. `shapes` gives a layer's
// [out, in].
void write_peft(const AdapterModel& model, int blocks, const std::function<Shape(const std::string&)>& shapes,
                SliceSource& from, const std::filesystem::path& folder);

// The weights of `base` with its adapters, factor * alpha / rank * B A, added: factor 1 merges, -1 takes them
// out again. Both sources must outlive it.
class MergedSource : public SliceSource {
 public:
  MergedSource(SliceSource& base, SliceSource& adapters, AdapterModel model, double factor = 1)
      : base_(base), adapters_(adapters), model_(std::move(model)), factor_(factor) {}
  void read(const TensorSlice& slice, std::span<std::byte> out) override;

 private:
  SliceSource& base_;
  SliceSource& adapters_;
  AdapterModel model_;
  double factor_;
  std::string known_;         // the layer whose matrices are here
  std::vector<float> a_, b_;  // [rank, in], [out, rank]
};

}  // namespace shoal
