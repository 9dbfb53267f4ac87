// Byte-pair encoding of one piece at a time. Tokens are numbered as in GPT-2: the 256 bytes, then the result
// of each merge in order of rank. So the pair to merge first is the one whose result has the lowest number.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace shoal {

class BytePairs {
 public:
  static constexpr std::int32_t kMaxTokens = 1 << 20;  // the limit of a slot of pairs_
  static constexpr std::size_t kMaxSpelling = 1024;    // bytes of a token; GPT-2's longest has 128

  // `bytes` lists the byte values by id; `merges` is the number of calls of add_merge that will follow.
  BytePairs(const std::array<std::uint8_t, 256>& bytes, std::size_t merges);

  // `left` and `right` must be tokens. Their joint spelling must not be a token yet, nor be longer than
  // kMaxSpelling, and size() must be below kMaxTokens.
  void add_merge(std::int32_t left, std::int32_t right);

  std::int32_t size() const { return static_cast<std::int32_t>(ends_.size()) - 1; }
  std::string_view spelling(std::int32_t token) const {
    const auto i = static_cast<std::size_t>(token);
    return std::string_view(spellings_).substr(ends_[i], ends_[i + 1] - ends_[i]);
  }

  // Appends the tokens of text[begin, end), n bytes. A piece that is one short token takes O(1) time; others
  // take O(n log n), and long ones about 40 n bytes of temporary memory.
  void encode(std::string_view text, std::size_t begin, std::size_t end,
              std::vector<std::int32_t>& out) const;

 private:
  static constexpr std::int32_t kNone = 0x7FFFFFFF;  // no token; above every id
  static constexpr std::size_t kShort = 16;

  // A token of up to kShort bytes, padded with zeros. The length distinguishes padding from zero bytes; it is
  // 0 in an empty slot.
  struct ShortToken {
    std::uint64_t low = 0, high = 0;
    std::uint32_t length = 0;
    std::int32_t token = kNone;
  };

  static ShortToken read_short(std::string_view text, std::size_t begin, std::size_t length);
  std::size_t short_slot(const ShortToken& key) const;
  void add_short(std::int32_t token);
  bool stay_apart(std::int32_t left, std::int32_t right) const;
  std::size_t pair_slot(std::uint64_t key) const;
  std::int32_t merged(std::int32_t left, std::int32_t right) const;  // the result of the merge, or kNone
  void merge_short(std::string_view piece, std::vector<std::int32_t>& out) const;
  void merge_long(std::string_view piece, std::vector<std::int32_t>& out) const;

  std::string spellings_;               // of all tokens, by id
  std::vector<std::uint32_t> ends_{0};  // token i spells spellings_[ends_[i], ends_[i + 1])
  std::array<std::int32_t, 256> id_of_byte_{};
  std::vector<std::array<std::int32_t, 2>> parts_;  // left and right of each merge
  // Whether a token's bytes merge into it. After the merges "b c" and "a b", "ab c" makes a token that no
  // text reaches.
  std::vector<bool> whole_;
  // Hash tables with open addressing, at most half full.
  std::vector<ShortToken> short_tokens_;  // the whole ones
  std::vector<std::uint64_t> pairs_;      // left, right, result: 20 + 20 + 24 bits
};

}  // namespace shoal
