#include "data/nanogpt_meta.h"

#include <fstream>
#include <iterator>
#include <vector>

#include "core/error.h"
#include "core/pickle.h"
#include "core/text.h"
#include "core/utf8.h"
#include "data/char_tokenizer.h"
#include "data/errors.h"

namespace shoal {
namespace {

constexpr std::int64_t kLargestMeta = 1 << 23;        // bytes
constexpr std::int64_t kLargestVocabulary = 1 << 16;  // ids are uint16

class MetaReader {
 public:
  MetaReader(const Pickle& pickle, const std::filesystem::path& file) : pickle_(pickle), file_(file) {}

  std::string vocabulary() const {
    if (pickle_.root().type != PickleType::dictionary) fail_meta("it holds no dictionary");
    const auto& size = get("vocab_size", PickleType::integer);
    if (size.integer < 1 || size.integer > kLargestVocabulary) {
      fail_meta(fmt::format("\"vocab_size\" is {}, not between 1 and {}", size.integer, kLargestVocabulary));
    }
    std::vector<std::string_view> characters(static_cast<std::size_t>(size.integer));
    const auto& itos = get("itos", PickleType::dictionary).items;
    for (std::size_t i = 0; i < itos.size(); i += 2) {
      add(characters, pickle_[itos[i]], pickle_[itos[i + 1]], "itos");
    }
    auto encoded = characters;
    const auto& stoi = get("stoi", PickleType::dictionary).items;
    for (std::size_t i = 0; i < stoi.size(); i += 2) {
      add(encoded, pickle_[stoi[i + 1]], pickle_[stoi[i]], "stoi");
    }
    if (encoded != characters) fail_meta("\"itos\" and \"stoi\" name different characters");
    std::string text;
    for (std::size_t id = 0; id < characters.size(); ++id) {
      if (characters[id].empty()) fail_meta(fmt::format("\"itos\" has no character for the token {}", id));
      text += characters[id];
    }
    return text;
  }

 private:
  [[noreturn]] void fail_meta(const std::string& problem) const {
    throw DataError(DataError::Fault::vocabulary_file, file_,
                    problem + ", and nanoGPT's datasets of characters have vocab_size, itos and stoi");
  }
  const PickleValue& get(std::string_view key, PickleType type) const {
    const auto* value = pickle_.find(pickle_.root(), key);
    if (value == nullptr) fail_meta(fmt::format("it has no \"{}\"", key));
    if (value->type != type) {
      fail_meta(fmt::format("\"{}\" is no {}", key, type == PickleType::integer ? "integer" : "dictionary"));
    }
    return *value;
  }
  void add(std::vector<std::string_view>& characters, const PickleValue& id, const PickleValue& character,
           std::string_view name) const {
    const auto& text = character.text;
    if (id.type != PickleType::integer || id.integer < 0 ||
        id.integer >= static_cast<std::int64_t>(characters.size())) {
      fail_meta(fmt::format("\"{}\" has an id outside the vocabulary", name));
    }
    if (character.type != PickleType::string || text.empty() ||
        static_cast<std::size_t>(decode_utf8(text, 0).length) != text.size()) {
      fail_meta(fmt::format("\"{}\" has a token that is not one character", name));
    }
    characters[static_cast<std::size_t>(id.integer)] = text;
  }

  const Pickle& pickle_;
  const std::filesystem::path& file_;
};

}  // namespace

std::unique_ptr<Tokenizer> read_nanogpt_meta(const std::filesystem::path& file) {
  std::ifstream in(file, std::ios::binary | std::ios::ate);
  const std::int64_t size = in.tellg();
  if (!in) fail_user("{}: cannot be read", file.string());
  if (size > kLargestMeta) {
    fail_user("{}: {} are too many for the vocabulary of a dataset of characters", file.string(),
              format_bytes(static_cast<double>(size)));
  }
  std::string bytes(static_cast<std::size_t>(size), '\0');
  if (!in.seekg(0).read(bytes.data(), size)) fail_user("{}: cannot be read", file.string());
  const Pickle pickle(bytes, file.string());
  return make_char_tokenizer_of(MetaReader(pickle, file).vocabulary(), file.string());
}

}  // namespace shoal
