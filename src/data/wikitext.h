// WikiText-2 and WikiText-103 (Merity et al. 2016): articles of Wikipedia in train, val and test.
#pragma once

#include "data/dataset.h"
#include "data/prepare_options.h"

namespace shoal {

// Implements prepare() for options.dataset "wikitext-2" and "wikitext-103": the raw text, or with options.unk
// the one with <unk> for rare words. options.inputs may have one path: the archive, or a folder with the
// three files of the splits or with the archive. Without it, the archive is fetched. Every split is one
// document.
DatasetMeta prepare_wikitext(const PrepareOptions& options, int threads);

}  // namespace shoal
