#include "serve/response.h"

#include <fmt/format.h>

#include <chrono>
#include <iterator>
#include <nlohmann/json.hpp>
#include <random>

#include "core/json_text.h"

namespace shoal::serve {
namespace {

using OrderedJson = nlohmann::ordered_json;

OrderedJson logprobs_json(const std::vector<TokenRecord>& records, const Tokenizer& tokenizer) {
  OrderedJson tokens = OrderedJson::array(), chosen = OrderedJson::array(), tops = OrderedJson::array(),
              offsets = OrderedJson::array();
  for (const auto& record : records) {
    tokens.push_back(record.text);
    offsets.push_back(record.offset);
    chosen.push_back(record.logprobs ? OrderedJson(record.logprobs->chosen) : OrderedJson());
    if (!record.logprobs) {
      tops.push_back(nullptr);
      continue;
    }
    OrderedJson top = OrderedJson::object();
    for (const auto& [id, logprob] : record.logprobs->top) top[token_text(tokenizer, id)] = logprob;
    top[record.text] = record.logprobs->chosen;  // there also where others are more likely
    tops.push_back(std::move(top));
  }
  return {{"tokens", tokens}, {"token_logprobs", chosen}, {"top_logprobs", tops}, {"text_offset", offsets}};
}

OrderedJson choice_json(std::size_t index, const Piece& piece, const CompletionRequest& request,
                        const Tokenizer& tokenizer) {
  return {
      {"text", piece.text},
      {"index", index},
      {"logprobs", request.sampling.logprobs < 0 ? OrderedJson() : logprobs_json(piece.tokens, tokenizer)},
      {"finish_reason", piece.finish_reason ? OrderedJson(piece.finish_reason) : OrderedJson()}};
}

OrderedJson object_of(const AnswerHead& head, OrderedJson choices) {
  return {{"id", head.id},
          {"object", "text_completion"},
          {"created", head.created},
          {"model", head.model},
          {"choices", std::move(choices)}};
}

OrderedJson usage_json(const Usage& usage) {
  return {{"prompt_tokens", usage.prompt_tokens},
          {"completion_tokens", usage.completion_tokens},
          {"total_tokens", usage.prompt_tokens + usage.completion_tokens}};
}

OrderedJson model_object(const std::string& model, std::int64_t created) {
  return {{"id", model}, {"object", "model"}, {"created", created}, {"owned_by", "shoal"}};
}

}  // namespace

AnswerHead make_head(const std::string& model) {
  thread_local std::mt19937_64 random{std::random_device{}()};
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return {.id = fmt::format("cmpl-{:016x}{:016x}", random(), random()),
          .created = std::chrono::duration_cast<std::chrono::seconds>(now).count(),
          .model = model};
}

std::string completion_json(const AnswerHead& head, const CompletionRequest& request,
                            const Tokenizer& tokenizer, std::vector<ChoicePiece> pieces, const Usage& usage) {
  std::vector<Piece> whole(request.choices());
  for (auto& [choice, piece] : pieces) {
    auto& text = whole[choice];
    text.text += piece.text;
    std::ranges::move(piece.tokens, std::back_inserter(text.tokens));
    text.finish_reason = piece.finish_reason;
  }
  OrderedJson choices = OrderedJson::array();
  for (std::size_t i = 0; i < whole.size(); ++i)
    choices.push_back(choice_json(i, whole[i], request, tokenizer));
  auto json = object_of(head, std::move(choices));
  json["usage"] = usage_json(usage);
  return json_text(json);
}

std::string event_of(const AnswerHead& head, const CompletionRequest& request, const Tokenizer& tokenizer,
                     const ChoicePiece& piece) {
  auto json =
      object_of(head, OrderedJson::array({choice_json(piece.choice, piece.piece, request, tokenizer)}));
  if (request.stream_usage) json["usage"] = nullptr;
  return "data: " + json_text(json) + "\n\n";
}

std::string last_events(const AnswerHead& head, const CompletionRequest& request, const Usage& usage) {
  std::string text;
  if (request.stream_usage) {
    auto json = object_of(head, OrderedJson::array());
    json["usage"] = usage_json(usage);
    text = "data: " + json_text(json) + "\n\n";
  }
  return text + "data: [DONE]\n\n";
}

std::string models_json(const std::string& model, std::int64_t created) {
  const OrderedJson list = {{"object", "list"}, {"data", OrderedJson::array({model_object(model, created)})}};
  return json_text(list);
}

std::string model_json(const std::string& model, std::int64_t created) {
  return json_text(model_object(model, created));
}

}  // namespace shoal::serve
