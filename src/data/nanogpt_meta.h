// nanoGPT's meta.pkl: the vocabulary of a dataset of characters.
#pragma once

#include <filesystem>
#include <memory>

#include "data/tokenizer.h"

namespace shoal {

// Reads the pickle without executing it (core/pickle.h). Throws UserError, naming `file`, when it is not a
// dictionary with vocab_size, itos and stoi of single characters that match each other.
std::unique_ptr<Tokenizer> read_nanogpt_meta(const std::filesystem::path& file);

}  // namespace shoal
