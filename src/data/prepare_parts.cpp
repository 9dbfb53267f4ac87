#include "data/prepare_parts.h"

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>
#include <vector>

#include "core/error.h"
#include "core/philox.h"

namespace shoal {

// Word 1 of the counter keeps it apart from the choices of a grammar.
double split_draw(std::uint64_t seed, std::int64_t document) {
  const auto index = static_cast<std::uint64_t>(document);
  return to_unit(philox(philox_key(seed, Stream::corpus),
                        {0, 1, static_cast<std::uint32_t>(index), static_cast<std::uint32_t>(index >> 32)}));
}

std::int64_t few_documents(double val_fraction) {
  return static_cast<std::int64_t>(std::ceil(std::min(10 / val_fraction, 1e6)));
}

SplitRule::SplitRule(std::uint64_t seed, double val_fraction, std::int64_t documents)
    : seed_(seed), bound_(val_fraction) {
  if (documents < 2 || documents >= few_documents(val_fraction)) return;
  std::vector<double> draws;
  for (std::int64_t i = 0; i < documents; ++i) draws.push_back(split_draw(seed_, i));
  std::sort(draws.begin(), draws.end());
  const auto share = std::llround(bound_ * static_cast<double>(documents));
  bound_ = draws[static_cast<std::size_t>(std::clamp<std::int64_t>(share, 1, documents - 1))];
}

int token_width(const Tokenizer& tokenizer) { return tokenizer.vocab_size() <= 65'535 ? 2 : 4; }

void finish_dataset(const PrepareOptions& options, const Tokenizer& tokenizer, int bytes_per_token,
                    std::span<SplitWriter> splits, StagedFolder& folder, DatasetMeta& meta) {
  for (std::size_t i = 0; i < splits.size(); ++i) {
    if (splits[i].tokens() > 0) continue;
    fail_user(
        "the {} split came out empty: there is too little text for a validation share of {}; use more text "
        "or "
        "another --val-fraction",
        kSplitNames[i], options.val_fraction);
  }
  meta.dataset = options.dataset;
  meta.tokenizer = tokenizer.to_json().dump();
  meta.vocab_size = tokenizer.vocab_size();
  meta.bytes_per_token = bytes_per_token;
  meta.seed = options.seed;
  for (std::size_t i = 0; i < splits.size(); ++i) {
    auto& split = meta.splits[kSplitNames[i]];
    const auto entropy = split.entropy;
    split = splits[i].finish();
    split.entropy = entropy;
  }
  std::ofstream file(folder.path() / "meta.json", std::ios::binary);
  file << to_json_text(meta) << std::flush;
  if (!file) fail("{}: cannot be written: {}", (folder.path() / "meta.json").string(), std::strerror(errno));
  folder.commit();
}

}  // namespace shoal
