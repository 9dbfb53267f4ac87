#include "data/llmc_header.h"

#include <array>
#include <cstring>
#include <fstream>

#include "core/error.h"
#include "core/text.h"

namespace shoal {
namespace {

struct LlmcKind {
  std::int32_t magic, version;
  int bytes_per_token;
  std::int64_t vocab_size;
  const char* tokenizer;
};

constexpr std::array kKinds = {LlmcKind{20240520, 1, 2, 50'257, "GPT-2"},
                               LlmcKind{20240801, 7, 4, 128'256, "Llama 3"}};
constexpr std::int32_t kEvaluationMagic = 20240522;  // multiple choice: HellaSwag, MMLU

}  // namespace

bool has_llmc_header(const std::filesystem::path& file) {
  std::ifstream in(file, std::ios::binary);
  if (!in) fail_user("{}: cannot be read", file.string());
  std::int32_t magic = 0;
  if (!in.read(reinterpret_cast<char*>(&magic), sizeof magic)) return false;
  for (const auto& kind : kKinds) {
    if (magic == kind.magic) return true;
  }
  return magic == kEvaluationMagic;
}

LlmcHeader read_llmc_header(std::span<const std::byte> bytes, const std::filesystem::path& file) {
  if (bytes.size() < LlmcHeader::kBytes) {
    fail_user(
        "{}: {} bytes are less than the header of llm.c's token files, which has {}; the file is damaged or "
        "of another type",
        file.string(), with_commas(static_cast<std::int64_t>(bytes.size())), with_commas(LlmcHeader::kBytes));
  }
  std::array<std::int32_t, 3> words{};
  std::memcpy(words.data(), bytes.data(), sizeof words);
  const auto [magic, version, count] = words;
  if (magic == kEvaluationMagic) {
    fail_user("{}: an evaluation set of llm.c (multiple choice), not text to train on", file.string());
  }
  const LlmcKind* kind = nullptr;
  for (const auto& known : kKinds) {
    if (known.magic == magic) kind = &known;
  }
  if (kind == nullptr) {
    fail_user(
        "{}: begins with {}, not with a magic number of llm.c's token files ({} or {}); the file is damaged "
        "or of another type",
        file.string(), magic, kKinds[0].magic, kKinds[1].magic);
  }
  if (version != kind->version) {
    fail_user("{}: version {} of llm.c's {} tokens; Shoal reads version {}", file.string(), version,
              kind->tokenizer, kind->version);
  }
  const auto held = static_cast<std::int64_t>(bytes.size() - LlmcHeader::kBytes);
  if (count < 1 || held != std::int64_t{count} * kind->bytes_per_token) {
    fail_user(
        "{}: the header promises {} tokens of {} bytes, but {} bytes follow it; the file is incomplete or "
        "damaged, get it again",
        file.string(), with_commas(count), kind->bytes_per_token, with_commas(held));
  }
  return {kind->bytes_per_token, count, kind->vocab_size, kind->tokenizer};
}

}  // namespace shoal
