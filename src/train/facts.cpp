#include "train/facts.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>

#include "checkpoint/output_file.h"
#include "config/schema.h"
#include "core/text.h"
#include "core/version.h"

namespace shoal {
namespace {

// The checksum of windows spread from the file's first token to its last. It tells files of one size apart
// without reading all of them.
std::uint64_t sample_checksum(const TokenFile& file) {
  constexpr std::int64_t kWindow = 1024, kWindows = 64;
  const std::int64_t window = std::min(kWindow, file.size()), last = file.size() - window;
  std::vector<std::int32_t> tokens(static_cast<std::size_t>(window * kWindows));
  for (std::int64_t i = 0; i < kWindows; ++i) {
    const auto part = std::span(tokens).subspan(static_cast<std::size_t>(i * window));
    file.copy(last * i / (kWindows - 1), part.first(static_cast<std::size_t>(window)));
  }
  return checksum(std::as_bytes(std::span(tokens)));
}

}  // namespace

std::vector<Fact> facts_of(const Config& config) {
  std::vector<Fact> facts = {{"the version of Shoal", kVersion}};
  for (const auto& field : config_fields()) facts.push_back({field.name(), field.value(config)});
  return facts;
}

std::string contents_of(const TokenFile& file) {
  return fmt::format("{} tokens, checksum {:016x}", with_commas(file.size()), sample_checksum(file));
}

std::vector<Fact> facts_of(const Dataset& data) {
  std::vector<Fact> facts;
  for (const char* name : {"train", "val", "test"}) {
    if (!data.has_split(name)) continue;
    const auto& file = data.split(name);
    const auto path = file.path().string();
    if (data.meta()) {
      facts.push_back({fmt::format("{} in {}", path, (data.dir() / "meta.json").string()),
                       fmt::format("xxh64 {:016x}", data.meta()->splits.at(name).xxh64)});
    }
    facts.push_back({path, contents_of(file)});
  }
  if (data.has_tokenizer()) {
    facts.push_back({fmt::format("the tokenizer in {}", data.dir().string()),
                     fmt::format("checksum {:016x}", checksum(data.tokenizer_text()))});
  }
  facts.push_back({fmt::format("the vocabulary of {}", data.dir().string()),
                   fmt::format("{} tokens", with_commas(data.vocab_size()))});
  return facts;
}

std::vector<Fact> facts_of(const Mixture& data) {
  std::vector<Fact> facts;
  for (const auto& source : data.sources())
    std::ranges::move(facts_of(source.data), std::back_inserter(facts));
  return facts;
}

}  // namespace shoal
