// Tokenizers as stored in meta.json and in checkpoints.
#pragma once

#include "data/tokenizer.h"

namespace shoal {

// The inverse of Tokenizer::to_json. `source` is the file or folder of the JSON, for error messages. Throws
// UserError when the JSON does not describe a tokenizer.
std::unique_ptr<Tokenizer> tokenizer_from_json(const nlohmann::json& stored,
                                               const std::filesystem::path& source);

}  // namespace shoal
