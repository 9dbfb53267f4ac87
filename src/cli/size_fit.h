#pragma once

#include <string>

#include "config/config.h"

namespace shoal::cli {

// `shoal size --fit`: prints the largest micro-batch whose training fits `memory` ("16GiB") per rank, or per
// GPU with train.backend = "cuda", for each ZeRO stage and kind of recomputation. The config's layout is
// resolved.
void print_size_fit(const Config& config, const std::string& memory);

}  // namespace shoal::cli
