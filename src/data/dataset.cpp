#include "data/dataset.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "core/text.h"
#include "data/stored_tokenizer.h"
#include "data/token_folder.h"

namespace shoal {

Dataset::Dataset(std::filesystem::path dir, const DatasetOptions& options) : dir_(std::move(dir)) {
  if (!(options.truncate > 0 && options.truncate <= 1)) {
    fail_user("a share of {} of the training data cannot be kept; it must be above 0 and at most 1",
              options.truncate);
  }
  require_data_folder(dir_);
  const auto meta_file = dir_ / "meta.json";
  std::filesystem::exists(meta_file) ? open_prepared(meta_file) : open_foreign(options);
  for (auto& [name, file] : splits_) file.set_vocab_size(vocab_size_);

  auto& train_file = splits_.at("train");
  const auto kept = std::llround(std::floor(options.truncate * static_cast<double>(train_file.size())));
  train_file.truncate(std::max<std::int64_t>(kept, 1));
}

Dataset::~Dataset() = default;
Dataset::Dataset(Dataset&&) noexcept = default;

void Dataset::open_prepared(const std::filesystem::path& meta_file) {
  meta_ = read_dataset_meta(meta_file);
  for (const char* required : {"train", "val"}) {
    if (!meta_->splits.contains(required)) {
      fail_user("{}: has no \"{}\" split; prepare the data again", meta_file.string(), required);
    }
  }
  for (const char* name : {"train", "val", "test"}) {
    if (meta_->splits.contains(name)) open_split(name);
  }
  vocab_size_ = meta_->vocab_size;
  tokenizer_text_ = meta_->tokenizer;
}

void Dataset::open_foreign(const DatasetOptions& options) {
  auto found = open_token_folder(dir_);
  splits_ = std::move(found.splits);
  vocab_size_ = found.vocab_size;
  tokenizer_text_ = std::move(found.tokenizer);
  description_ = std::move(found.description);
  if (!found.assumed_vocabulary) return;
  if (options.vocab_size > 0) {
    vocab_size_ = options.vocab_size;
  } else {
    description_ += fmt::format("; GPT-2's vocabulary of {} is assumed", with_commas(vocab_size_));
  }
}

void Dataset::open_split(const std::string& name) {
  const auto path = dir_ / (name + ".bin");
  TokenFile file(path, meta_->bytes_per_token);
  if (file.size() != meta_->splits.at(name).tokens) {
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
  if (!has_tokenizer()) {
    fail_user("{}: has neither meta.json nor meta.pkl, so its tokens cannot be decoded to text",
              dir_.string());
  }
  if (!tokenizer_) {
    const auto file = dir_ / (meta_ ? "meta.json" : "meta.pkl");
    tokenizer_ = tokenizer_from_json(nlohmann::json::parse(tokenizer_text_), file);
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
