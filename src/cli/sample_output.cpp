#include "cli/sample_output.h"

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "core/json_text.h"

namespace shoal::cli {

void Terminal::end_text() {
  write(joiner_.finish());
  if (!at_line_start_) write("\n");
}

void Terminal::write(std::string_view text) {
  if (text.empty()) return;
  at_line_start_ = text.ends_with('\n');
  if (std::fwrite(text.data(), 1, text.size(), stdout) != text.size() || std::fflush(stdout) != 0) {
    fail_user("cannot write to standard output: {}", std::strerror(errno));
  }
}

void begin_text(const SamplePrompt& prompt, const Print& print) {
  if (prompt.reference.empty()) return print(prompt.text);
  print("PROMPT: " + prompt.text + "\nOUTPUT: ");
}

void end_text(const SamplePrompt& prompt, const Print& print) {
  if (!prompt.reference.empty()) print("\nREFERENCE: " + prompt.reference);
}

std::string to_json(const Sample& sample, const Tokenizer& tokenizer) {
  using Json = nlohmann::ordered_json;
  const auto text_of = [&](std::int32_t id) { return tokenizer.decode({&id, 1}); };
  Json json = {{"index", sample.index},
               {"prompt", sample.prompt},
               {"text", sample.text},
               {"finish_reason", sample.finished ? "stop" : "length"},
               {"tokens", Json::array()}};
  if (sample.score) json["score"] = *sample.score;
  for (const auto& token : sample.tokens) {
    json["tokens"].push_back(token.id);
    if (!token.logprobs) continue;
    Json top = Json::array();
    for (const auto& [id, logprob] : token.logprobs->top)
      top.push_back({{"id", id}, {"token", text_of(id)}, {"logprob", logprob}});
    json["logprobs"].push_back(
        {{"token", text_of(token.id)}, {"logprob", token.logprobs->chosen}, {"top", std::move(top)}});
  }
  return json_text(json);
}

}  // namespace shoal::cli
