// A dataset: a folder with train.bin, val.bin, perhaps test.bin, and meta.json, or one of llm.c's or
// nanoGPT's.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "data/token_file.h"

namespace shoal {

class Tokenizer;

struct SplitMeta {
  std::int64_t tokens = 0;
  std::uint64_t xxh64 = 0;        // of the file
  std::optional<double> entropy;  // synthetic data: -log p of this very split, nats per token
};

// The contents of meta.json.
struct DatasetMeta {
  std::string dataset;           // "synthetic", "text", ...
  std::string tokenizer = "{}";  // Tokenizer::to_json as text
  std::int64_t vocab_size = 0;
  int bytes_per_token = 2;
  std::map<std::string, SplitMeta> splits;  // "train", "val", "test"
  std::optional<double> entropy_per_token;  // synthetic data: the expected loss of a perfect model, in nats
  std::vector<std::string> sources;
  std::uint64_t seed = 0;
  std::string split_rule;  // in words
};

std::string to_json_text(const DatasetMeta& meta);
// Throws UserError naming the file and the key that is missing, of a wrong type or out of range.
DatasetMeta read_dataset_meta(const std::filesystem::path& file);

struct DatasetOptions {
  double truncate = 1.0;  // data.truncate: the share of the train split that is used, in (0, 1]
  std::int64_t vocab_size =
      0;  // model.vocab_size: of ids whose tokenizer is not known; 0 means as the data says
};

class Dataset {
 public:
  // Opens and maps the splits. A folder without meta.json is llm.c's or nanoGPT's (data/token_folder.h);
  // where no tokenizer is in it, its vocabulary is options.vocab_size, or else what its kind of file has.
  // Throws UserError when the folder or a split is missing, a file is damaged or does not hold as many tokens
  // as meta.json promises, or an option is out of range.
  explicit Dataset(std::filesystem::path dir, const DatasetOptions& options = {});
  ~Dataset();
  Dataset(Dataset&&) noexcept;

  const std::filesystem::path& dir() const { return dir_; }
  const TokenFile& train() const { return split("train"); }
  const TokenFile& val() const { return split("val"); }
  bool has_split(const std::string& name) const { return splits_.contains(name); }
  const TokenFile& split(const std::string& name) const;  // throws UserError for a split that is not there

  std::int64_t vocab_size() const { return vocab_size_; }
  // The entropy of the process that made the data, in nats per token; known for synthetic data only.
  std::optional<double> entropy_per_token() const;
  // The same for the very tokens of one whole split.
  std::optional<double> split_entropy(const std::string& name) const;
  const std::optional<DatasetMeta>& meta() const { return meta_; }
  // A description for the log; empty for a folder with meta.json.
  const std::string& description() const { return description_; }

  // Built at the first call (not thread-safe). Throws UserError when the folder has none.
  const Tokenizer& tokenizer() const;
  bool has_tokenizer() const { return !tokenizer_text_.empty(); }
  // Tokenizer::to_json as text; empty when there is none.
  const std::string& tokenizer_text() const { return tokenizer_text_; }

  // Reads every token: throws UserError for an id past the vocabulary.
  void verify() const;
  // Reads every byte: throws UserError when a file is not the one that was prepared. Does nothing without
  // meta.json.
  void verify_checksums() const;

 private:
  void open_prepared(const std::filesystem::path& meta_file);
  void open_foreign(const DatasetOptions& options);
  void open_split(const std::string& name);

  std::filesystem::path dir_;
  std::optional<DatasetMeta> meta_;
  std::map<std::string, TokenFile> splits_;
  std::int64_t vocab_size_ = 0;
  std::string description_, tokenizer_text_;
  mutable std::unique_ptr<Tokenizer> tokenizer_;
};

}  // namespace shoal
