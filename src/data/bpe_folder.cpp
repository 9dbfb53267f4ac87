// Reads a byte-level BPE from its files.
#include <nlohmann/json.hpp>
#include <unordered_map>
#include <unordered_set>

#include "core/error.h"
#include "core/file.h"
#include "core/json_depth.h"
#include "core/json_integer.h"
#include "data/bpe_tokenizer.h"
#include "data/byte_alphabet.h"
#include "data/json_problem.h"

namespace shoal {
namespace {

namespace fs = std::filesystem;

constexpr std::uint64_t kLargestFile = std::uint64_t{1} << 28;  // a million tokens take about 30 MiB

// The first of two names that exists in `folder`.
fs::path vocabulary_file(const fs::path& folder, const char* name, const char* other) {
  for (const char* candidate : {name, other}) {
    if (fs::exists(folder / candidate)) return folder / candidate;
  }
  const auto hint =
      fs::exists(folder / "tokenizer.json")
          ? fmt::format(
                "; from its tokenizer.json, Hugging Face's tokenizers writes both: python3 -c \"from "
                "tokenizers "
                "import Tokenizer; Tokenizer.from_file('{0}/tokenizer.json').model.save('{0}')\"",
                folder.string())
          : std::string();
  fail_user("{} has neither {} nor {}; the folder of a byte-level BPE has vocab.json and merges.txt{}",
            folder.string(), name, other, hint);
}

// Whether the "pre_tokenizer" of a tokenizer.json cuts text as GPT-2's does.
bool cuts_as_gpt2(const nlohmann::json& split) {
  if (!split.is_object()) return false;
  if (const auto parts = split.find("pretokenizers"); parts != split.end())  // a sequence
    return parts->size() == 1 && cuts_as_gpt2(parts->front());
  const auto says = [&](const char* key, const nlohmann::json& wanted, const nlohmann::json& otherwise = {}) {
    return split.value(key, otherwise) == wanted;
  };
  return says("type", "ByteLevel") && says("add_prefix_space", false) && says("use_regex", true, true);
}

// Throws UserError where the folder has a tokenizer.json that changes text or cuts it otherwise than GPT-2's:
// Shoal knows one split only, and the same merges make other tokens of other pieces.
void check_split(const fs::path& folder) {
  const auto file = folder / "tokenizer.json";
  if (!fs::exists(file)) return;
  const auto whole = nlohmann::json::parse(read_text(file, kLargestFile), nullptr, false);
  if (!whole.is_object() || is_deeper(whole))
    fail_user("{} is damaged: it is not a tokenizer", file.string());
  const auto refuse = [&](const char* key, const char* wanted) {
    fail_user(
        "{}: its \"{}\" is not {}, so Shoal would make other tokens of a text than this tokenizer does; take "
        "another tokenizer, or move this file away to have text cut as GPT-2 cuts it all the same",
        file.string(), key, wanted);
  };
  if (!whole.value("normalizer", nlohmann::json()).is_null()) refuse("normalizer", "null");
  if (!cuts_as_gpt2(whole.value("pre_tokenizer", nlohmann::json())))
    refuse("pre_tokenizer", "GPT-2's (ByteLevel, with \"add_prefix_space\" false)");
}

using Ids = std::unordered_map<std::string, std::int32_t>;  // by spelling

// Reads vocab.json. Its entries are taken while it is parsed, since an object of them takes several times as
// long.
Ids read_ids(const fs::path& path) {
  using Event = nlohmann::json::parse_event_t;
  Ids ids;
  std::string spelled, problem;
  const auto add = [&](const nlohmann::json& value) {
    const auto id = integer_of<std::int32_t>(value).value_or(-1);
    if (id < 0) {
      problem = fmt::format("gives \"{}\" the id {}", spelled, value.dump());
    } else if (!ids.emplace(spelled, id).second) {
      problem = fmt::format("has \"{}\" twice", spelled);
    }
  };
  const auto take = [&](int, Event event, nlohmann::json& value) {
    if (event == Event::key) spelled = value.get_ref<const std::string&>();
    if (event == Event::value && problem.empty()) add(value);
    return event != Event::key && event != Event::value;  // keys and values need not be kept
  };
  const auto text = read_text(path, kLargestFile);
  try {
    if (!nlohmann::json::parse(text, take).is_object())
      problem = "is damaged: it is not a JSON object of token ids";
  } catch (const nlohmann::json::parse_error& error) {
    problem = "is damaged: " + json_problem(text, error.byte);
  } catch (const nlohmann::json::exception&) {
    problem = "is damaged: a number is out of range";
  }
  if (!problem.empty()) fail_user("{} {}", path.string(), problem);
  return ids;
}

// A token that the merges make.
struct MadeToken {
  std::string spelled;
  std::int32_t id;  // in vocab.json
};

// Takes the tokens that the merges make out of `ids`, in their order; special tokens are left. `as_gpt2` has
// the merges in GPT-2's numbering. Throws UserError where a token has no entry.
std::vector<MadeToken> take_made_tokens(const Tokenizer& as_gpt2, Ids& ids, const fs::path& path) {
  const ByteAlphabet alphabet;
  std::vector<MadeToken> tokens;
  for (std::int32_t token = 0; token < as_gpt2.end_of_text(); ++token) {
    auto spelled = alphabet.spell(as_gpt2.decode({&token, 1}));
    if (const auto found = ids.find(spelled); found != ids.end()) {
      tokens.push_back({std::move(spelled), found->second});
      ids.erase(found);
      continue;
    }
    if (token < 256) {
      fail_user(
          "{} lacks \"{}\", the byte 0x{:02X}; a byte-level tokenizer here has all 256 bytes (in Hugging "
          "Face's tokenizers: initial_alphabet=ByteLevel.alphabet())",
          path.string(), spelled, alphabet.byte_of_id[static_cast<std::size_t>(token)]);
    }
    fail_user("{} lacks \"{}\", which a merge beside it makes: the two files do not belong together",
              path.string(), spelled);
  }
  return tokens;
}

// Throws UserError unless the ids of `tokens` are those that `special` leaves, in ascending order.
void check_numbering(const std::vector<MadeToken>& tokens, const SpecialTokens& special,
                     const fs::path& path) {
  std::unordered_set<std::int32_t> taken;
  for (const auto& [name, id] : special) taken.insert(id);
  std::int32_t expected = 0;
  for (const auto& [spelled, id] : tokens) {
    while (taken.contains(expected)) ++expected;
    if (id != expected++) {
      fail_user(
          "{} gives \"{}\" the id {}, which is not the place of its merge: the ids of bytes and merges must "
          "follow their order, with other tokens anywhere between",
          path.string(), spelled, id);
    }
  }
}

}  // namespace

std::unique_ptr<Tokenizer> load_bpe_tokenizer(const fs::path& folder) {
  check_split(folder);
  const auto merges_file = vocabulary_file(folder, "vocab.bpe", "merges.txt");
  const auto ids_file = vocabulary_file(folder, "encoder.json", "vocab.json");
  const auto merges = read_text(merges_file, kLargestFile);
  auto as_gpt2 = make_bpe_tokenizer(merges, merges_file.string());
  auto ids = read_ids(ids_file);
  const auto tokens = take_made_tokens(*as_gpt2, ids, ids_file);
  const SpecialTokens special(ids.begin(), ids.end());
  check_numbering(tokens, special, ids_file);
  const bool same = special == SpecialTokens{{"<|endoftext|>", as_gpt2->end_of_text().value()}};
  return same ? std::move(as_gpt2) : make_bpe_tokenizer(merges, ids_file.string(), special);
}

}  // namespace shoal
