// The model of commands that write text: a checkpoint with its tokenizer.
#pragma once

#include <string>
#include <vector>

#include "cli/command.h"
#include "comm/world.h"
#include "train/model_io.h"

namespace shoal::cli {

struct TextModelArguments {
  std::string checkpoint;
  std::string backend, threads;  // empty: the run's
  bool int8 = false;             // weights of products in 8 bits
  std::vector<std::string> settings;
};
// Adds --backend, --threads and --int8.
void add_text_backend(CLI::App& command, TextModelArguments& arguments);
void add_int8(CLI::App& command, bool& int8);

// The config of a checkpoint's run, without ZeRO and sequence parallelism. Throws UserError as
// load_model_config() does, and for a pipeline. Its timeout is that of ranks that wait for each other's
// texts, or for a person.
Config load_text_config(const TextModelArguments& arguments);

// The model, on `group`: parallel.tensor ranks of `world` that share it. A model of GPT-2's size without a
// tokenizer gets GPT-2's, which is said on standard error. Throws UserError where there is no tokenizer.
LoadedModel load_text_model(const TextModelArguments& arguments, const Config& config, Communicator& group,
                            World& world);

}  // namespace shoal::cli
