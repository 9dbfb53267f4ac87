// Weights in Hugging Face's format: as the start of a run, init.from = "hf:DIR", and to evaluate and sample.
#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <string_view>

#include "checkpoint/huggingface.h"
#include "config/config.h"
#include "data/tokenizer.h"

namespace shoal {

// FROM of a value "auto:FROM" of init.from, "scratch" of "auto"; nothing for other values.
std::optional<std::string> start_without_checkpoint(std::string_view from);
// DIR, when a value of init.from is "checkpoint:DIR".
std::optional<std::filesystem::path> checkpoint_folder(std::string_view from);
// DIR, when a value of init.from is "hf:DIR" or "auto:hf:DIR".
std::optional<std::filesystem::path> hugging_face_folder(std::string_view from);

// Whether every key that weights decide was given.
bool model_is_given(const Origins& origins);

// Sets the model's keys as the folder's config.json has them; dropout is not the weights' matter. Keys of
// `origins` were given: they must agree, but model.block_size may be smaller than n_positions. Throws
// UserError naming both values.
void take_hugging_face_model(const std::filesystem::path& folder, Config& config, Origins& origins);

// Throws UserError, too, when the folder holds another model than the config.
HuggingFaceReader open_hugging_face(const std::filesystem::path& folder, const Config& config);

// Whether there is such a folder at `where`, not a checkpoint or a run.
bool is_hugging_face_folder(const std::filesystem::path& where);
// The config to use its model by, without training; its data.dir is the folder, which has no data.
Config hugging_face_config(const std::filesystem::path& folder);
// From vocab.json and merges.txt; null when they are not there.
std::unique_ptr<Tokenizer> hugging_face_tokenizer(const std::filesystem::path& folder);

}  // namespace shoal
