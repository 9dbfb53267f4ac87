// The option --checkpoint of commands that also take settings.
#pragma once

#include "cli/command.h"

namespace shoal::cli {

// Adds --checkpoint. Where it is missing, require_checkpoint() says so.
void add_checkpoint_option(CLI::App& command, std::string& checkpoint);

// Throws UserError when --checkpoint is missing or one of `settings` is not of the form key=value. The
// message shows the correct command.
void require_checkpoint(const CLI::App& command, const std::string& checkpoint,
                        const std::vector<std::string>& settings);

}  // namespace shoal::cli
