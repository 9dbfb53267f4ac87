// The option --checkpoint of commands that also take settings.
#pragma once

#include "cli/command.h"

namespace shoal::cli {

// Throws UserError when --checkpoint is missing or one of `settings` is not of the form key=value. The
// message shows the correct command.
void require_checkpoint(const CLI::App& command, const std::string& checkpoint,
                        const std::vector<std::string>& settings);

}  // namespace shoal::cli
