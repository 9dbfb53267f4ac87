#include "data/tokenizer.h"

#include <nlohmann/json.hpp>

#include "core/error.h"
#include "data/char_tokenizer.h"
#include "data/gpt2_tokenizer.h"

namespace shoal {
namespace {

// The string at `key`, or "" where there is none.
std::string string_at(const nlohmann::json& json, const char* key) {
  if (!json.is_object()) return "";
  const auto found = json.find(key);
  return found != json.end() && found->is_string() ? found->get<std::string>() : "";
}

}  // namespace

std::unique_ptr<Tokenizer> tokenizer_from_json(const nlohmann::json& json,
                                               const std::filesystem::path& source) {
  const std::string name = string_at(json, "name");
  if (name == "bytes") return make_byte_tokenizer();
  if (name == "char") return make_char_tokenizer_of(string_at(json, "vocabulary"), source.string());
  if (name == "gpt2") return make_gpt2_tokenizer(string_at(json, "merges"), source.string());
  fail_user("{}: the tokenizer's name is \"{}\"; it must be char, bytes or gpt2", source.string(), name);
}

}  // namespace shoal
