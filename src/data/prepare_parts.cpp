#include "data/prepare_parts.h"

#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <ctime>
#include <nlohmann/json.hpp>
#include <vector>

#include "core/error.h"
#include "core/file.h"
#include "core/philox.h"
#include "core/text.h"
#include "data/bpe_tokenizer.h"

namespace shoal {
namespace {

namespace fs = std::filesystem;

// "a dataset of 2026-11-22 06:10: text from books and 1 more, 301,966 train and 36,059 val tokens"
std::string describe_dataset(const fs::path& meta_file) {
  struct stat status {};
  std::tm time{};
  std::array<char, 32> date{};
  if (::stat(meta_file.c_str(), &status) == 0 && ::localtime_r(&status.st_mtime, &time) != nullptr) {
    std::strftime(date.data(), date.size(), "%Y-%m-%d %H:%M", &time);
  }
  try {
    auto meta = read_dataset_meta(meta_file);
    std::string from = meta.sources.empty() ? "" : " from " + meta.sources.front();
    if (meta.sources.size() > 1) from += fmt::format(" and {} more", meta.sources.size() - 1);
    return fmt::format("a dataset of {}: {}{}, {} train and {} val tokens", date.data(), meta.dataset, from,
                       with_commas(meta.splits["train"].tokens), with_commas(meta.splits["val"].tokens));
  } catch (const UserError&) {
    return fmt::format("a damaged dataset of {}", date.data());
  }
}

}  // namespace

// Word 1 of the counter keeps these draws apart from the choices of a grammar.
double split_draw(std::uint64_t seed, std::int64_t document) {
  const auto index = static_cast<std::uint64_t>(document);
  return to_unit(philox(philox_key(seed, PhiloxStream::corpus),
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

bool replaces_dataset(const PrepareOptions& options) {
  using Fault = PrepareError::Fault;
  const auto& out = options.out;
  if (out.empty()) throw PrepareError(Fault::folder_in_use, "the output folder has no name");
  if (fs::exists(out) && !fs::is_directory(out)) {
    throw PrepareError(Fault::folder_in_use, fmt::format("{}: exists and is no folder", out.string()));
  }
  if (!fs::exists(out) || fs::is_empty(out)) return false;
  if (!fs::exists(out / "meta.json")) {
    throw PrepareError(
        Fault::folder_in_use,
        fmt::format("{}: the folder exists and holds something other than a dataset of Shoal's",
                    out.string()));
  }
  if (options.force) return true;
  throw PrepareError(Fault::dataset_exists,
                     fmt::format("{} holds {}", out.string(), describe_dataset(out / "meta.json")));
}

int token_width(const Tokenizer& tokenizer) { return tokenizer.vocab_size() <= 65'535 ? 2 : 4; }

void finish_dataset(const PrepareOptions& options, const Tokenizer& tokenizer, int bytes_per_token,
                    std::span<SplitWriter> splits, StagedFolder& folder, DatasetMeta& meta) {
  for (std::size_t i = 0; i < splits.size(); ++i) {
    if (splits[i].tokens() > 0) continue;
    throw PrepareError(PrepareError::Fault::empty_split,
                       fmt::format("the {} split is empty: there is too little text for a validation share "
                                   "of {}",
                                   kSplitNames[i], options.val_fraction));
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
  if (tokenizer.name() == "bpe") {
    for (const auto& [name, text] : bpe_files(tokenizer)) write_text(folder.path() / name, text);
  }
  write_text(folder.path() / "meta.json", to_json_text(meta));
  folder.commit();
}

}  // namespace shoal
