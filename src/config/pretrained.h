// Weights of other programs (checkpoint/weights.h), to start a run (init.from = "hf:DIR"), to evaluate, to
// sample and to export.
#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "checkpoint/weights.h"
#include "config/config.h"
#include "data/tokenizer.h"

namespace shoal {

// The start that "auto" falls back to: FROM for "auto:FROM", "scratch" for "auto", nothing for other values
// of init.from.
std::optional<std::string> start_without_checkpoint(std::string_view from);
// DIR for "checkpoint:DIR", nothing for other values of init.from.
std::optional<std::filesystem::path> checkpoint_folder(std::string_view from);
// The weights of "hf:DIR", "hf:ORG/NAME", "nanogpt:FILE" and "llmc:FILE", also after "auto:", nothing for
// other values of init.from. A model of the hub that its cache does not have is only named: fetch_weights().
std::optional<Weights> weights_of_start(std::string_view from);

// The weights that `where` names as init.from does, or else find_weights(where). Nothing for a checkpoint or
// a run.
std::optional<Weights> weights_at(const std::filesystem::path& where);

// The same weights, downloaded first where they are those of a model of the hub (data/hub.h) that its cache
// does not have. Throws UserError when they cannot be.
Weights fetch_weights(const Weights& weights);

// Whether all keys that weights set are given explicitly.
bool model_is_given(const Origins& origins);

// Sets the model's keys from the weights, but not model.dropout. Keys in `origins` were given and must agree;
// only model.block_size may be smaller than the positions, and model.gelu is free where the file does not
// say. Throws UserError with both values.
void take_weights_model(const Weights& weights, Config& config, Origins& origins);

// Throws UserError when the weights cannot be read, or are of another model than the config.
std::unique_ptr<WeightsReader> open_weights(const Weights& weights, const Config& config);

// A config to use the model of weights at `where` without training. Its data.dir is `where`, which has no
// data.
Config weights_config(const Weights& weights, const std::filesystem::path& where);
// The tokenizer beside the weights: that of vocab.json and merges.txt, or of nanoGPT's meta.pkl. Null where
// there is none.
std::unique_ptr<Tokenizer> weights_tokenizer(const Weights& weights);

}  // namespace shoal
