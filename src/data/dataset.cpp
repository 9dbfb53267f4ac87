#include "data/dataset.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "core/text.h"
#include "data/tokenizer.h"

namespace shoal {

Dataset::Dataset(std::filesystem::path dir, const DatasetOptions& options) : dir_(std::move(dir)) {
  if (!(options.truncate > 0 && options.truncate <= 1)) {
    fail_user("data.truncate = {}: must be above 0 and at most 1", options.truncate);
  }
  if (!std::filesystem::is_directory(dir_)) {
    fail_user("{}: no such data folder; make it with `shoal prepare DATASET --out {}`, or set data.dir",
              dir_.string(), dir_.string());
  }
  const auto meta_file = dir_ / "meta.json";
  if (std::filesystem::exists(meta_file)) meta_ = read_dataset_meta(meta_file);

  open_split("train", true);
  open_split("val", true);
  open_split("test", false);

  vocab_size_ = meta_ ? meta_->vocab_size : options.vocab_size;
  if (vocab_size_ == 0) {
    for (const auto& [name, file] : splits_)
      vocab_size_ = std::max<std::int64_t>(vocab_size_, file.max_id() + 1ll);
  }
  for (auto& [name, file] : splits_) file.set_vocab_size(vocab_size_);

  auto& train_file = splits_.at("train");
  const auto kept = std::llround(std::floor(options.truncate * static_cast<double>(train_file.size())));
  train_file.truncate(std::max<std::int64_t>(kept, 1));
}

Dataset::~Dataset() = default;
Dataset::Dataset(Dataset&&) noexcept = default;

void Dataset::open_split(const std::string& name, bool required) {
  const auto path = dir_ / (name + ".bin");
  const bool promised = meta_ && meta_->splits.contains(name);
  if (!required && !promised && !std::filesystem::exists(path)) return;
  if (required && meta_ && !promised) {
    fail_user("{}: has no \"{}\" split; prepare the data again", (dir_ / "meta.json").string(), name);
  }
  TokenFile file(path, meta_ ? meta_->bytes_per_token : 2);
  if (promised && file.size() != meta_->splits.at(name).tokens) {
    fail_user(
        "{}: holds {} tokens, but meta.json promises {}; the file was truncated or replaced, prepare it "
        "again",
        path.string(), with_commas(file.size()), with_commas(meta_->splits.at(name).tokens));
  }
  splits_.emplace(name, std::move(file));
}

const TokenFile& Dataset::split(const std::string& name) const {
  const auto found = splits_.find(name);
  if (found == splits_.end()) fail_user("{}: has no {}.bin", dir_.string(), name);
  return found->second;
}

std::optional<double> Dataset::entropy_per_token() const {
  return meta_ ? meta_->entropy_per_token : std::nullopt;
}

std::optional<double> Dataset::split_entropy(const std::string& name) const {
  if (!meta_ || !meta_->splits.contains(name)) return std::nullopt;
  return meta_->splits.at(name).entropy;
}

const Tokenizer& Dataset::tokenizer() const {
  if (!meta_) {
    fail_user(
        "{}: has no meta.json, so nothing says how its tokens read as text; prepare the data with Shoal",
        dir_.string());
  }
  if (!tokenizer_) {
    const auto file = dir_ / "meta.json";
    tokenizer_ = tokenizer_from_json(nlohmann::json::parse(meta_->tokenizer), file);
    if (tokenizer_->vocab_size() != vocab_size_) {
      fail_user("{}: vocab_size is {}, but its tokenizer has {} tokens; prepare the data again",
                file.string(), vocab_size_, tokenizer_->vocab_size());
    }
  }
  return *tokenizer_;
}

void Dataset::verify() const {
  for (const auto& [name, file] : splits_) file.verify();
}

void Dataset::verify_checksums() const {
  if (!meta_) return;
  for (const auto& [name, split_meta] : meta_->splits) {
    const auto& file = split(name);
    if (file.checksum() != split_meta.xxh64) {
      fail_user(
          "{}: its checksum is not the one in meta.json; the file was changed or damaged, prepare it again",
          file.path().string());
    }
  }
}

}  // namespace shoal
