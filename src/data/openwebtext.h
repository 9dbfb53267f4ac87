// Tokenizes the OpenWebText corpus, as it is distributed, with GPT-2's tokenizer.
#pragma once

#include "data/dataset.h"
#include "data/prepare_options.h"

namespace shoal {

// Seed and share of the published preparation, which draws other documents with them.
constexpr std::uint64_t kOpenWebTextSeed = 2357;
constexpr double kOpenWebTextValFraction = 0.0005;

// Implements prepare() for options.dataset "openwebtext". Reads the documents of read_documents with
// TextFiles::openwebtext, several archives at once; the dataset does not depend on the number of threads.
// Invalid UTF-8 in a .txt is kept byte for byte; JSON must be valid.
//
// Progress is saved in OUT.partial every options.save_every seconds. After a failure or a kill the same call
// resumes there and produces the same bytes. It recognizes the files that are done by name, size and time,
// and the archive in progress by a hash of the part that was read. Throws UserError when the input or the
// options differ from the saved ones, and as `prepare` does.
DatasetMeta prepare_openwebtext(const PrepareOptions& options, int threads);

}  // namespace shoal
