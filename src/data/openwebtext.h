// The OpenWebText corpus, as it is distributed, to GPT-2's tokens.
#pragma once

#include "data/dataset.h"
#include "data/prepare_options.h"

namespace shoal {

constexpr std::uint64_t kOpenWebTextSeed = 2357;  // of the published preparation
constexpr double kOpenWebTextValFraction =
    0.0005;  // its share too; which documents they are is drawn otherwise

// prepare for options.dataset "openwebtext". Reads what read_documents reads with TextFiles::openwebtext,
// several archives at once, in the order of the input; the dataset does not depend on the number of threads.
// Text is tokenized byte for byte, so invalid UTF-8 in a .txt survives as it is; JSON must be valid.
//
// Progress is saved in OUT.partial every options.save_every seconds. After a failure or a kill the same
// call goes on there and ends with the same bytes: the files before the place are known by name, size and
// time, the archive at the place by what was read of it. Throws UserError when the input or the options
// differ from those of what was saved, and as `prepare` does.
DatasetMeta prepare_openwebtext(const PrepareOptions& options, int threads);

}  // namespace shoal
