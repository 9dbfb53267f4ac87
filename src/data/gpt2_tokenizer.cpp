#include "data/gpt2_tokenizer.h"

#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <unordered_map>

#include "core/error.h"
#include "core/utf8.h"
#include "data/byte_pairs.h"
#include "data/gpt2_split.h"

namespace shoal {
namespace {

constexpr std::string_view kEndOfText = "<|endoftext|>";

// GPT-2's files spell bytes as visible characters: printable Latin-1 as itself, the others from U+0100 on.
// The tokens of single bytes are numbered in that order.
struct ByteAlphabet {
  std::array<std::uint8_t, 256> byte_of_id{};
  std::array<char32_t, 256> character{};  // by byte

  ByteAlphabet() {
    std::size_t id = 0;
    const auto add = [&](unsigned byte, char32_t spelled) {
      byte_of_id[id++] = static_cast<std::uint8_t>(byte);
      character[byte] = spelled;
    };
    const auto visible = [](unsigned byte) {
      return (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte != 0xAD);
    };
    for (unsigned byte = 0; byte < 256; ++byte) {
      if (visible(byte)) add(byte, byte);
    }
    char32_t next = 0x100;
    for (unsigned byte = 0; byte < 256; ++byte) {
      if (!visible(byte)) add(byte, next++);
    }
  }

  std::string spell(std::string_view bytes) const {
    std::string text;
    for (const char byte : bytes) append_utf8(text, character[static_cast<std::uint8_t>(byte)]);
    return text;
  }
};

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

class Gpt2Tokenizer final : public Tokenizer {
 public:
  Gpt2Tokenizer(std::string merges, BytePairs pairs) : merges_(std::move(merges)), pairs_(std::move(pairs)) {}

  std::string_view name() const override { return "gpt2"; }
  std::int64_t vocab_size() const override { return pairs_.size() + 1; }
  std::optional<std::int32_t> end_of_text() const override { return pairs_.size(); }

  void encode(std::string_view text, std::vector<std::int32_t>& out) const override {
    for (std::size_t begin = 0; begin < text.size();) {
      const std::size_t end = splitter_.piece_end(text, begin);
      pairs_.encode(text, begin, end, out);
      begin = end;
    }
  }

  std::string decode(std::span<const std::int32_t> tokens) const override {
    std::string text;
    for (const std::int32_t token : tokens) text += spelling(token);
    return text;
  }

  nlohmann::json to_json() const override { return {{"name", name()}, {"merges", merges_}}; }

 private:
  std::string_view spelling(std::int32_t token) const {
    if (token < 0 || token > pairs_.size()) {
      fail_user("token {} is outside the vocabulary of {} tokens", token, vocab_size());
    }
    return token == pairs_.size() ? kEndOfText : pairs_.spelling(token);
  }

  std::string merges_;  // a line each, as in vocab.bpe
  Gpt2Splitter splitter_;
  BytePairs pairs_;
};

std::filesystem::path first_that_exists(const std::filesystem::path& folder, const char* name,
                                        const char* other) {
  for (const char* candidate : {name, other}) {
    if (std::filesystem::exists(folder / candidate)) return folder / candidate;
  }
  fail_user("{} has neither {} nor {}; the gpt2 tokenizer needs GPT-2's encoder.json and vocab.bpe there",
            folder.string(), name, other);
}

std::string read_whole(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  if (!file || !(text << file.rdbuf())) fail_user("cannot read {}, or it is empty", path.string());
  return std::move(text).str();
}

// Whether `id` is the number of the token that encoder.json spells so.
bool is_id_of(const Tokenizer& tokenizer, const ByteAlphabet& alphabet, const std::string& spelled,
              const nlohmann::json& id) {
  if (!id.is_number_integer()) return false;
  const auto wide = id.get<std::int64_t>();
  if (wide < 0 || wide >= tokenizer.vocab_size()) return false;
  const auto token = static_cast<std::int32_t>(wide);
  const std::string bytes = tokenizer.decode({&token, 1});
  return spelled == (token == tokenizer.end_of_text() ? bytes : alphabet.spell(bytes));
}

// Throws UserError unless encoder.json numbers the tokens as the merges do. Checks its entries while parsing,
// since collecting them in an object first takes several times as long.
void check_ids(const Tokenizer& tokenizer, const std::filesystem::path& path) {
  using Event = nlohmann::json::parse_event_t;
  const ByteAlphabet alphabet;
  std::int64_t entries = 0;
  std::string spelled, wrong;
  const auto check = [&](int, Event event, nlohmann::json& value) {
    if (event == Event::key) {
      spelled = value.get_ref<const std::string&>();
    } else if (event == Event::value) {
      ++entries;
      if (wrong.empty() && !is_id_of(tokenizer, alphabet, spelled, value)) {
        wrong = fmt::format("\"{}\" the id {}", spelled, value.dump());
      }
    }
    return event != Event::key && event != Event::value;  // keys and values need not be kept
  };
  if (!nlohmann::json::parse(read_whole(path), check, false).is_object()) {
    fail_user("{} is damaged: it is not a JSON object of token ids", path.string());
  }
  if (entries != tokenizer.vocab_size()) {
    fail_user("{} has {} tokens, but the merges beside it make {}: the two do not belong together",
              path.string(), entries, tokenizer.vocab_size());
  }
  if (!wrong.empty()) {
    fail_user("{} gives {}, which is not the place of its merge; only GPT-2's numbering is supported",
              path.string(), wrong);
  }
}

}  // namespace

std::unique_ptr<Tokenizer> make_gpt2_tokenizer(std::string_view merges, std::string_view source) {
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
  return std::make_unique<Gpt2Tokenizer>(std::move(kept), std::move(pairs));
}

std::map<std::string, std::string> gpt2_files(const Tokenizer& tokenizer) {
  const auto description = tokenizer.to_json();
  if (description.at("name") != "gpt2") return {};
  const ByteAlphabet alphabet;
  std::string ids = "{";
  for (std::int32_t token = 0; token < tokenizer.vocab_size(); ++token) {
    const auto bytes = tokenizer.decode({&token, 1});
    const nlohmann::json spelled = token == tokenizer.end_of_text() ? bytes : alphabet.spell(bytes);
    ids += fmt::format("{}{}: {}", token > 0 ? ", " : "", spelled.dump(), token);
  }
  return {{"vocab.json", ids + "}\n"},
          {"merges.txt", "#version: 0.2\n" + description.at("merges").get<std::string>()}};
}

std::unique_ptr<Tokenizer> load_gpt2_tokenizer(const std::filesystem::path& folder) {
  const std::filesystem::path merges = first_that_exists(folder, "vocab.bpe", "merges.txt");
  const std::filesystem::path ids = first_that_exists(folder, "encoder.json", "vocab.json");
  auto tokenizer = make_gpt2_tokenizer(read_whole(merges), merges.string());
  check_ids(*tokenizer, ids);
  return tokenizer;
}

}  // namespace shoal
