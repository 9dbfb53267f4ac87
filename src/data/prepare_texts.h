// Prepares a dataset of texts: prepare() of data/prepare.h but for finding the texts.
#pragma once

#include <string>
#include <vector>

#include "data/dataset.h"
#include "data/prepare_options.h"
#include "data/split_texts.h"

namespace shoal {

// Takes the texts of `sources` in place of options.inputs, val and test. A tokenizer that is learnt
// (data/tokenizer_choice.h) is learnt from the train split alone. `origins` are for meta.json. Throws as
// prepare() does.
DatasetMeta prepare_texts(const PrepareOptions& options, const SplitSources& sources, int threads,
                          std::vector<std::string> origins);

}  // namespace shoal
