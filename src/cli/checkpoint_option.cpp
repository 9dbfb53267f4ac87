#include "cli/checkpoint_option.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/error.h"
#include "core/text.h"

namespace shoal::cli {

void add_checkpoint_option(CLI::App& command, std::string& checkpoint) {
  command
      .add_option("--checkpoint", checkpoint,
                  "A run, one of its checkpoints, or weights: a folder in Hugging Face's format, a file of "
                  "nanoGPT or llm.c (required)")
      ->option_text("PATH");
}

void require_checkpoint(const CLI::App& command, const std::string& checkpoint,
                        const std::vector<std::string>& settings) {
  std::vector<std::string> words;
  for (const auto& setting : settings) {
    if (setting.find('=') == std::string::npos) words.push_back(setting);
  }
  if (words.empty() && !checkpoint.empty()) return;
  std::vector<std::string> names;  // options that the words may belong to
  if (checkpoint.empty()) names.push_back("--checkpoint");
  if (command.get_option_no_throw("--prompt")) names.push_back("--prompt");
  std::string line = "shoal " + command.get_name();
  if (!checkpoint.empty()) line += " --checkpoint " + shell_word(checkpoint);
  for (std::size_t i = 0; i < std::min(words.size(), names.size()); ++i) {
    line += fmt::format(" {} {}", names[i], shell_word(words[i]));
  }
  if (!words.empty()) fail_user("unexpected argument '{}'; write: {}", words.front(), line);
  fail_user("--checkpoint is required, e.g. {} --checkpoint runs/quickstart", line);
}

}  // namespace shoal::cli
