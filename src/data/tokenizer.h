// Tokenizers convert text to token ids and back. All are lossless on the text that they accept, and safe to
// share between threads.
#pragma once

#include <bitset>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace shoal {

class Tokenizer {
 public:
  virtual ~Tokenizer() = default;

  virtual std::string_view name() const = 0;  // "char" | "bytes" | "gpt2" | "bpe"
  virtual std::int64_t vocab_size() const = 0;

  // The token that ends a document: 50256 for GPT-2's vocabulary, 256 for bytes, none for char and for a BPE
  // without one. encode() never produces it: "<|endoftext|>" inside a text is ordinary text.
  virtual std::optional<std::int32_t> end_of_text() const = 0;

  // Appends the ids of `text` to `out`. Throws UserError when the vocabulary lacks a character of the text,
  // naming it and its position (char only; the others accept every byte string). Then `out` keeps its old
  // ids, and may have more.
  virtual void encode(std::string_view text, std::vector<std::int32_t>& out) const = 0;

  // The raw bytes of `tokens`; the end-of-text token becomes "<|endoftext|>". The bytes may end within a
  // UTF-8 character. Throws UserError for an id outside [0, vocab_size).
  virtual std::string decode(std::span<const std::int32_t> tokens) const = 0;

  // A complete description for tokenizer_from_json (data/stored_tokenizer.h): {"name": ..., ...}.
  virtual nlohmann::json to_json() const = 0;
};

// Collects the vocabulary of a text that is read piece by piece, in constant memory.
class CharVocabulary {
 public:
  // Throws UserError for invalid UTF-8, naming the byte and its offset. So a piece must not end within a
  // character.
  void add(std::string_view text);

  // Ids number the code points seen, in ascending order. Throws UserError when there are none.
  std::unique_ptr<Tokenizer> build() const;

 private:
  std::bitset<0x110000> seen_;
};

std::unique_ptr<Tokenizer> make_char_tokenizer(std::string_view text);  // CharVocabulary of one piece
std::unique_ptr<Tokenizer> make_byte_tokenizer();

// Reads a byte-level BPE (data/bpe_tokenizer.h) from vocab.json and merges.txt, or, by GPT-2's own names,
// encoder.json and vocab.bpe. Entries of vocab.json that are no results of merges are special tokens. Throws
// UserError when a file is missing or damaged, they do not belong together, or a tokenizer.json beside them
// says that text is not cut as GPT-2's.
std::unique_ptr<Tokenizer> load_bpe_tokenizer(const std::filesystem::path& folder);

}  // namespace shoal
