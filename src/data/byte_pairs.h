// Byte-pair encoding of one piece at a time, with tokens numbered as GPT-2 numbers them: the 256 bytes, then
// the result of each merge in order of rank. So the pair to merge first is the one with the lowest result.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace shoal {

class BytePairs {
 public:
  static constexpr std::int32_t kMaxTokens = 1 << 20;  // as many as a slot of pairs_ can name
  static constexpr std::size_t kMaxSpelling = 1024;    // bytes of a token; GPT-2's longest has 128

  // `bytes` lists the byte values by id; `merges` is how many times add_merge will be called.
  BytePairs(const std::array<std::uint8_t, 256>& bytes, std::size_t merges);

  // `left` and `right` must be tokens, what they spell together must not be one yet nor exceed kMaxSpelling,
  // and size() must be below kMaxTokens.
  void add_merge(std::int32_t left, std::int32_t right);

  std::int32_t size() const { return static_cast<std::int32_t>(ends_.size()) - 1; }
  std::string_view spelling(std::int32_t token) const {
    const auto i = static_cast<std::size_t>(token);
    return std::string_view(spellings_).substr(ends_[i], ends_[i + 1] - ends_[i]);
  }

  // Appends the tokens of text[begin, end), of n bytes. A short token takes O(1); the rest O(n log n) time
  // and, where long, some 40 n bytes of memory meanwhile.
  void encode(std::string_view text, std::size_t begin, std::size_t end,
              std::vector<std::int32_t>& out) const;

 private:
  static constexpr std::int32_t kNone = 0x7FFFFFFF;  // no token; above every id
  static constexpr std::size_t kShort = 16;

  // A token of up to kShort bytes, padded with zeros; the length tells padding from zero bytes, and is 0 in
  // an empty slot.
  struct ShortToken {
    std::uint64_t low = 0, high = 0;
    std::uint32_t length = 0;
    std::int32_t token = kNone;
  };

  static ShortToken read_short(std::string_view text, std::size_t begin, std::size_t length);
  std::size_t short_slot(const ShortToken& key) const;
  void add_short(std::int32_t token);
  std::size_t pair_slot(std::uint64_t key) const;
  std::int32_t merged(std::int32_t left, std::int32_t right) const;  // what the two make, or kNone
  void merge_short(std::string_view piece, std::vector<std::int32_t>& out) const;
  void merge_long(std::string_view piece, std::vector<std::int32_t>& out) const;

  std::string spellings_;               // of all tokens, by id
  std::vector<std::uint32_t> ends_{0};  // token i spells spellings_[ends_[i], ends_[i + 1])
  std::array<std::int32_t, 256> id_of_byte_{};
  std::vector<ShortToken> short_tokens_;  // both are hash tables with open addressing, at most half full
  std::vector<std::uint64_t> pairs_;      // left, right, result: 20 + 20 + 24 bits
};

}  // namespace shoal
