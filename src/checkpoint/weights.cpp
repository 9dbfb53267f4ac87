#include "checkpoint/weights.h"

#include "checkpoint/huggingface.h"
#include "checkpoint/llmc.h"
#include "checkpoint/nanogpt.h"
#include "checkpoint/torch_file.h"
#include "core/file.h"

namespace shoal {

namespace fs = std::filesystem;

fs::path Weights::description() const {
  return format == WeightsFormat::hugging_face ? path / "config.json" : path;
}

fs::path Weights::folder() const { return format == WeightsFormat::hugging_face ? path : path.parent_path(); }

std::optional<Weights> find_weights(const fs::path& path) {
  std::error_code ignored;
  if (fs::is_regular_file(path / "config.json", ignored)) return Weights{WeightsFormat::hugging_face, path};
  if (!fs::is_regular_file(path, ignored)) return std::nullopt;
  const MappedFile file(path);
  if (looks_like_llmc(file.bytes())) return Weights{WeightsFormat::llmc, path};
  if (looks_like_torch(file.bytes()) || path.extension() == ".safetensors")
    return Weights{WeightsFormat::nanogpt, path};
  return std::nullopt;
}

WeightsModel read_weights_model(const Weights& weights) {
  switch (weights.format) {
    case WeightsFormat::nanogpt:
      return read_nanogpt_model(weights.path);
    case WeightsFormat::llmc:
      return read_llmc_model(weights.path);
    default:
      return read_hugging_face_model(weights.path);
  }
}

std::unique_ptr<WeightsReader> open_weights(const Weights& weights) {
  switch (weights.format) {
    case WeightsFormat::nanogpt:
      return open_nanogpt(weights.path);
    case WeightsFormat::llmc:
      return open_llmc(weights.path);
    default:
      return open_hugging_face(weights.path);
  }
}

}  // namespace shoal
