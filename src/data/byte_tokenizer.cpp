#include <nlohmann/json.hpp>

#include "core/error.h"
#include "data/tokenizer.h"

namespace shoal {
namespace {

class ByteTokenizer final : public Tokenizer {
 public:
  std::string_view name() const override { return "bytes"; }
  std::int64_t vocab_size() const override { return kEndOfText + 1; }
  std::optional<std::int32_t> end_of_text() const override { return kEndOfText; }

  void encode(std::string_view text, std::vector<std::int32_t>& out) const override {
    const auto* bytes = reinterpret_cast<const std::uint8_t*>(text.data());
    out.insert(out.end(), bytes, bytes + text.size());
  }

  std::string decode(std::span<const std::int32_t> tokens) const override {
    std::string text;
    for (const std::int32_t token : tokens) {
      if (token < 0 || token > kEndOfText)
        fail_user("token {} is outside the vocabulary of 256 bytes", token);
      if (token == kEndOfText) {
        text += "<|endoftext|>";
      } else {
        text.push_back(static_cast<char>(token));
      }
    }
    return text;
  }

  nlohmann::json to_json() const override { return {{"name", name()}}; }

 private:
  static constexpr std::int32_t kEndOfText = 256;
};

}  // namespace

std::unique_ptr<Tokenizer> make_byte_tokenizer() { return std::make_unique<ByteTokenizer>(); }

}  // namespace shoal
