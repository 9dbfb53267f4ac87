// Weights in Hugging Face's format, to start a run (init.from = "hf:DIR"), to evaluate and to sample.
#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <string_view>

#include "checkpoint/huggingface.h"
#include "config/config.h"
#include "data/tokenizer.h"

namespace shoal {

// The start that "auto" falls back to: FROM for "auto:FROM", "scratch" for "auto", nothing for other values
// of init.from.
std::optional<std::string> start_without_checkpoint(std::string_view from);
// DIR for "checkpoint:DIR", nothing for other values of init.from.
std::optional<std::filesystem::path> checkpoint_folder(std::string_view from);
// DIR for "hf:DIR" and "auto:hf:DIR", nothing for other values of init.from.
std::optional<std::filesystem::path> hugging_face_folder(std::string_view from);

// Whether all keys that pretrained weights set are given explicitly.
bool model_is_given(const Origins& origins);

// Sets the model's keys from the folder's config.json, but not model.dropout. Keys in `origins` were given
// and must agree; only model.block_size may be smaller than n_positions. Throws UserError with both values.
void take_hugging_face_model(const std::filesystem::path& folder, Config& config, Origins& origins);

// Throws UserError when the folder cannot be read, or has another model than the config.
HuggingFaceReader open_hugging_face(const std::filesystem::path& folder, const Config& config);

// Whether `where` is a folder in Hugging Face's format, not a checkpoint or a run.
bool is_hugging_face_folder(const std::filesystem::path& where);
// A config to use the folder's model without training. Its data.dir is the folder, which has no data.
Config hugging_face_config(const std::filesystem::path& folder);
// The tokenizer of vocab.json and merges.txt; null where the folder does not have both.
std::unique_ptr<Tokenizer> hugging_face_tokenizer(const std::filesystem::path& folder);

}  // namespace shoal
