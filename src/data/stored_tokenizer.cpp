#include "data/stored_tokenizer.h"

#include <nlohmann/json.hpp>

#include "core/error.h"
#include "data/char_tokenizer.h"
#include "data/gpt2_tokenizer.h"

namespace shoal {
namespace {

// The string at `key`; "" if there is none.
std::string string_at(const nlohmann::json& object, const char* key) {
  if (!object.is_object()) return "";
  const auto found = object.find(key);
  return found != object.end() && found->is_string() ? found->get<std::string>() : "";
}

}  // namespace

std::unique_ptr<Tokenizer> tokenizer_from_json(const nlohmann::json& stored,
                                               const std::filesystem::path& source) {
  const std::string name = string_at(stored, "name");
  if (name == "bytes") return make_byte_tokenizer();
  if (name == "char") return make_char_tokenizer_of(string_at(stored, "vocabulary"), source.string());
  if (name == "gpt2") return make_gpt2_tokenizer(string_at(stored, "merges"), source.string());
  fail_user("{}: the tokenizer's name is \"{}\"; it must be char, bytes or gpt2", source.string(), name);
}

}  // namespace shoal
