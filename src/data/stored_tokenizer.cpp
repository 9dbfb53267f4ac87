#include "data/stored_tokenizer.h"

#include <nlohmann/json.hpp>

#include "core/error.h"
#include "data/bpe_tokenizer.h"
#include "data/char_tokenizer.h"

namespace shoal {
namespace {

// The string at `key`; "" if there is none.
std::string string_at(const nlohmann::json& object, const char* key) {
  if (!object.is_object()) return "";
  const auto found = object.find(key);
  return found != object.end() && found->is_string() ? found->get<std::string>() : "";
}

SpecialTokens special_tokens(const nlohmann::json& stored, const std::filesystem::path& source) {
  try {
    return stored.at("special").get<SpecialTokens>();
  } catch (const nlohmann::json::exception&) {
    fail_user("{}: the tokenizer has no ids of special tokens", source.string());
  }
}

}  // namespace

std::unique_ptr<Tokenizer> tokenizer_from_json(const nlohmann::json& stored,
                                               const std::filesystem::path& source) {
  const std::string name = string_at(stored, "name");
  if (name == "bytes") return make_byte_tokenizer();
  if (name == "char") return make_char_tokenizer_of(string_at(stored, "vocabulary"), source.string());
  if (name == "gpt2") return make_bpe_tokenizer(string_at(stored, "merges"), source.string());
  if (name == "bpe") {
    return make_bpe_tokenizer(string_at(stored, "merges"), source.string(), special_tokens(stored, source));
  }
  fail_user("{}: the tokenizer's name is \"{}\"; it must be char, bytes, gpt2 or bpe", source.string(), name);
}

}  // namespace shoal
