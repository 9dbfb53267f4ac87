// A dataset: a folder with train.bin, val.bin, perhaps test.bin, and meta.json; or a folder of token files of
// llm.c or nanoGPT.
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
  std::optional<double> entropy;  // synthetic data: -log p of the split's tokens, in nats per token
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
  std::string split_rule;  // a description
};

std::string to_json_text(const DatasetMeta& meta);
// Throws UserError naming the file and the key when a key is missing, of a wrong type or out of range.
DatasetMeta read_dataset_meta(const std::filesystem::path& file);

struct DatasetOptions {
  double truncate = 1.0;  // the share of the train split that is used, in (0, 1]
  // The vocabulary of ids whose tokenizer is not known; 0 means the usual one of that kind of file.
  std::int64_t vocab_size = 0;
};

class Dataset {
 public:
  // Opens and maps the splits. A folder without meta.json is read as llm.c's or nanoGPT's
  // (data/token_folder.h); if nothing in it tells the vocabulary, options.vocab_size does. Throws UserError
  // when the folder or a split is missing, a file is damaged or does not hold as many tokens as meta.json
  // promises, or an option is out of range.
  explicit Dataset(std::filesystem::path dir, const DatasetOptions& options = {});
  ~Dataset();
  Dataset(Dataset&&) noexcept;

  const std::filesystem::path& dir() const { return dir_; }
  const TokenFile& train() const { return split("train"); }
  const TokenFile& val() const { return split("val"); }
  bool has_split(const std::string& name) const { return splits_.contains(name); }
  const TokenFile& split(const std::string& name) const;  // throws UserError when there is no such split

  std::int64_t vocab_size() const { return vocab_size_; }
  // The entropy of the process that generated the data, in nats per token; known for synthetic data only.
  std::optional<double> entropy_per_token() const;
  // -log p of the tokens of a split, in nats per token; known for synthetic data only.
  std::optional<double> split_entropy(const std::string& name) const;
  const std::optional<DatasetMeta>& meta() const { return meta_; }
  // A description for the log; empty for a folder with meta.json.
  const std::string& description() const { return description_; }

  // Built at the first call, which is not thread-safe. Throws UserError when the folder has no tokenizer.
  const Tokenizer& tokenizer() const;
  bool has_tokenizer() const { return !tokenizer_text_.empty(); }
  // Tokenizer::to_json as text; empty when there is none.
  const std::string& tokenizer_text() const { return tokenizer_text_; }

  // Reads every token. Throws UserError for an id outside the vocabulary.
  void verify() const;
  // Reads every byte. Throws UserError when a checksum differs from the one in meta.json. Does nothing
  // without meta.json.
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
