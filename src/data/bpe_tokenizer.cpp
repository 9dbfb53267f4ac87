#include "data/bpe_tokenizer.h"

#include <xxhash.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <unordered_map>

#include "core/error.h"
#include "data/byte_alphabet.h"
#include "data/byte_pairs.h"
#include "data/gpt2_split.h"

namespace shoal {
namespace {

constexpr std::string_view kEndOfText = "<|endoftext|>";
constexpr std::uint64_t kGpt2Merges = 0x8DC3ECA2FF98ED0A;  // XXH3 of GPT-2's merges, a line each

// Calls use(line, number from 1) for the lines with merges; the first line may be a version.
template <typename Use>
void for_each_merge(std::string_view merges, Use use) {
  for (std::size_t number = 1; !merges.empty(); ++number) {
    const std::size_t end = std::min(merges.find('\n'), merges.size());
    std::string_view line = merges.substr(0, end);
    merges.remove_prefix(std::min(end + 1, merges.size()));
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (!line.empty() && !(number == 1 && line.starts_with("#version"))) use(line, number);
  }
}

class BpeTokenizer final : public Tokenizer {
 public:
  // The ids of `special` are distinct and below the size of the vocabulary. `gpt2`: see name().
  BpeTokenizer(std::string merges, BytePairs pairs, SpecialTokens special, bool gpt2)
      : merges_(std::move(merges)), pairs_(std::move(pairs)), special_(std::move(special)), gpt2_(gpt2) {
    token_of_id_.resize(static_cast<std::size_t>(pairs_.size()) + special_.size(), 0);
    for (const auto& [text, id] : special_) {
      names_.push_back(text);
      token_of_id_[static_cast<std::size_t>(id)] = -static_cast<std::int32_t>(names_.size());
    }
    for (std::size_t id = 0; id < token_of_id_.size(); ++id) {
      if (token_of_id_[id] < 0) continue;
      token_of_id_[id] = static_cast<std::int32_t>(id_of_token_.size());
      id_of_token_.push_back(static_cast<std::int32_t>(id));
    }
    renumbered_ = id_of_token_.back() != pairs_.size() - 1;
    for (const auto& end : {std::string(kEndOfText), std::string("</s>")}) {
      const auto found = special_.find(end);
      if (found != special_.end() && !end_of_text_) end_of_text_ = found->second;
    }
  }

  std::string_view name() const override { return gpt2_ ? "gpt2" : "bpe"; }
  std::int64_t vocab_size() const override { return static_cast<std::int64_t>(token_of_id_.size()); }
  std::optional<std::int32_t> end_of_text() const override { return end_of_text_; }

  void encode(std::string_view text, std::vector<std::int32_t>& out) const override {
    const auto old_size = static_cast<std::ptrdiff_t>(out.size());
    for (std::size_t begin = 0; begin < text.size();) {
      const std::size_t end = splitter_.piece_end(text, begin);
      pairs_.encode(text, begin, end, out);
      begin = end;
    }
    if (!renumbered_) return;
    std::for_each(out.begin() + old_size, out.end(),
                  [&](std::int32_t& token) { token = id_of_token_[static_cast<std::size_t>(token)]; });
  }

  std::string decode(std::span<const std::int32_t> tokens) const override {
    std::string text;
    for (const std::int32_t id : tokens) {
      if (id < 0 || id >= vocab_size()) {
        fail_user("token {} is outside the vocabulary of {} tokens", id, vocab_size());
      }
      const std::int32_t token = token_of_id_[static_cast<std::size_t>(id)];
      text +=
          token < 0 ? std::string_view(names_[static_cast<std::size_t>(-token - 1)]) : pairs_.spelling(token);
    }
    return text;
  }

  nlohmann::json to_json() const override {
    nlohmann::json object = {{"name", name()}, {"merges", merges_}};
    if (!gpt2_) object["special"] = special_.empty() ? nlohmann::json::object() : nlohmann::json(special_);
    return object;
  }

  bool is_special(std::int32_t id) const { return token_of_id_[static_cast<std::size_t>(id)] < 0; }
  const std::string& merges() const { return merges_; }

 private:
  std::string merges_;  // a line each
  Gpt2Splitter splitter_;
  BytePairs pairs_;  // numbers tokens without the special ones
  SpecialTokens special_;
  std::vector<std::string> names_;         // of special tokens
  std::vector<std::int32_t> token_of_id_;  // in pairs_; -1 - i for names_[i]
  std::vector<std::int32_t> id_of_token_;
  bool gpt2_, renumbered_ = false;
  std::optional<std::int32_t> end_of_text_;
};

void check_special(const SpecialTokens& special, std::int32_t others, std::string_view source) {
  const auto size = others + static_cast<std::int64_t>(special.size());
  std::unordered_map<std::int32_t, std::string_view> taken;
  for (const auto& [text, id] : special) {
    if (id < 0 || id >= size) {
      fail_user("{}: the special token \"{}\" has the id {}, outside the vocabulary of {}", source, text, id,
                size);
    }
    if (const auto [other, added] = taken.emplace(id, text); !added) {
      fail_user("{}: the special tokens \"{}\" and \"{}\" have the same id {}", source, other->second, text,
                id);
    }
  }
}

}  // namespace

std::unique_ptr<Tokenizer> make_bpe_tokenizer(std::string_view merges, std::string_view source,
                                              const std::optional<SpecialTokens>& special) {
  std::size_t count = 0;
  for_each_merge(merges, [&](std::string_view, std::size_t) { ++count; });
  if (count == 0 || count > BytePairs::kMaxTokens - 257) {
    fail_user("{}: {} merges; there must be at least 1 and at most {}", source, count,
              BytePairs::kMaxTokens - 257);
  }
  const ByteAlphabet alphabet;
  BytePairs pairs(alphabet.byte_of_id, count);
  std::unordered_map<std::string, std::int32_t> ids;  // by spelling in the files' alphabet
  ids.reserve(count + 256);
  for (std::int32_t id = 0; id < 256; ++id) ids.emplace(alphabet.spell(pairs.spelling(id)), id);
  std::string kept;
  for_each_merge(merges, [&](std::string_view line, std::size_t number) {
    const std::size_t space = std::min(line.find(' '), line.size());
    const auto left = ids.find(std::string(line.substr(0, space)));
    const auto right = ids.find(std::string(line.substr(std::min(space + 1, line.size()))));
    if (left == ids.end() || right == ids.end()) {
      fail_user("{}, line {}: \"{}\" is not a merge of two earlier tokens", source, number, line);
    }
    if (!ids.emplace(left->first + right->first, pairs.size()).second) {
      fail_user("{}, line {}: \"{}\" makes a token that exists already", source, number, line);
    }
    if (pairs.spelling(left->second).size() + pairs.spelling(right->second).size() >
        BytePairs::kMaxSpelling) {
      fail_user("{}, line {}: makes a token of more than {} bytes", source, number, BytePairs::kMaxSpelling);
    }
    pairs.add_merge(left->second, right->second);
    kept.append(line).push_back('\n');
  });
  const SpecialTokens as_in_gpt2 = {{std::string(kEndOfText), pairs.size()}};
  check_special(special.value_or(as_in_gpt2), pairs.size(), source);
  const bool gpt2 =
      special.value_or(as_in_gpt2) == as_in_gpt2 && XXH3_64bits(kept.data(), kept.size()) == kGpt2Merges;
  return std::make_unique<BpeTokenizer>(std::move(kept), std::move(pairs), special.value_or(as_in_gpt2),
                                        gpt2);
}

std::string merges_text(std::span<const BpeMerge> merges) {
  const ByteAlphabet alphabet;
  std::vector<std::string> spelled;
  for (const std::uint8_t byte : alphabet.byte_of_id) {
    spelled.push_back(alphabet.spell(std::string(1, static_cast<char>(byte))));
  }
  std::string text;
  for (const auto [left, right] : merges) {
    const std::string &a = spelled[static_cast<std::size_t>(left)],
                      &b = spelled[static_cast<std::size_t>(right)];
    text.append(a).append(" ").append(b).append("\n");
    spelled.push_back(a + b);
  }
  return text;
}

std::map<std::string, std::string> bpe_files(const Tokenizer& tokenizer) {
  const auto* const bpe = dynamic_cast<const BpeTokenizer*>(&tokenizer);
  if (bpe == nullptr) return {};
  const ByteAlphabet alphabet;
  std::string ids = "{";
  for (std::int32_t id = 0; id < bpe->vocab_size(); ++id) {
    const auto bytes = bpe->decode({&id, 1});
    const nlohmann::json spelled = bpe->is_special(id) ? bytes : alphabet.spell(bytes);
    ids += fmt::format("{}{}: {}", id > 0 ? ", " : "", spelled.dump(), id);
  }
  return {{"vocab.json", ids + "}\n"}, {"merges.txt", "#version: 0.2\n" + bpe->merges()}};
}

}  // namespace shoal
