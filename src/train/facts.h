// The facts of a run that must be the same on every rank (comm/agreement.h).
#pragma once

#include "comm/agreement.h"
#include "config/config.h"
#include "data/mixture.h"

namespace shoal {

std::vector<Fact> facts_of(const Config& config);  // every key, and the program's version
std::vector<Fact> facts_of(const Dataset& data);   // sizes and checksums
std::vector<Fact> facts_of(const Mixture& data);
// "1,003,854 tokens, checksum 0123456789abcdef": of samples from all of the file.
std::string contents_of(const TokenFile& file);

}  // namespace shoal
