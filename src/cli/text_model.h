// The model of commands that write text: a checkpoint with its tokenizer.
#pragma once

#include <string>
#include <vector>

#include "comm/world.h"
#include "generate/generator.h"
#include "train/model_io.h"

namespace shoal::cli {

// The config of a checkpoint's run, without ZeRO and sequence parallelism. An empty backend or number of
// threads is the run's. Throws UserError as load_model_config() does, and for a pipeline. Its timeout is that
// of ranks that wait for each other's texts, or for a person.
Config load_text_config(const std::string& checkpoint, std::vector<std::string> settings,
                        const std::string& backend, const std::string& threads);

// The model, on `group`: parallel.tensor ranks of `world` that share it. A model of GPT-2's size without a
// tokenizer gets GPT-2's, which is said on standard error. Throws UserError where there is no tokenizer.
LoadedModel load_text_model(const std::string& checkpoint, const Config& config, Communicator& group,
                            World& world);

// A generator of `texts` texts at a time, on the model's tensor-parallel ranks.
Generator make_generator(const LoadedModel& model, int texts);

}  // namespace shoal::cli
