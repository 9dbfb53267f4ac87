// The model of commands that write text: a checkpoint with its tokenizer.
#pragma once

#include <string>
#include <vector>

#include "comm/world.h"
#include "train/model_io.h"

namespace shoal::cli {

// The config of a checkpoint's run, without ZeRO. An empty backend or number of threads is the run's. Throws
// UserError as load_model_config() does.
Config load_text_config(const std::string& checkpoint, std::vector<std::string> settings,
                        const std::string& backend, const std::string& threads);

// The whole model on every rank of `world`; `alone` is a rank's communicator with itself. A model of GPT-2's
// size without a tokenizer gets GPT-2's, which is said on standard error. Throws UserError where there is no
// tokenizer.
LoadedModel load_text_model(const std::string& checkpoint, const Config& config, Communicator& alone,
                            World& world);

}  // namespace shoal::cli
