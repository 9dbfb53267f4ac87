// Weights of other programs: which formats there are, and how each is read.
#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <string>

#include "checkpoint/weights_reader.h"

namespace shoal {

enum class WeightsFormat { hugging_face, nanogpt, llmc };

// A folder of Hugging Face's format, or a file of another one.
struct Weights {
  WeightsFormat format = WeightsFormat::hugging_face;
  std::filesystem::path path;

  // The file that describes the model.
  std::filesystem::path description() const;
  // The folder in which a tokenizer's files may lie beside the weights.
  std::filesystem::path folder() const;
};

// The weights at a path, by what is there: a folder with config.json, or a file that begins as those of a
// format do. Nothing for anything else.
std::optional<Weights> find_weights(const std::filesystem::path& path);

// Both throw UserError, with what to do, when the weights are missing, damaged, or no GPT-2 of Shoal's. The
// first reads the description alone.
WeightsModel read_weights_model(const Weights& weights);
std::unique_ptr<WeightsReader> open_weights(const Weights& weights);

}  // namespace shoal
