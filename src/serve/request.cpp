#include "serve/request.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <random>
#include <utility>

#include "core/json_depth.h"
#include "core/json_integer.h"
#include "core/text.h"
#include "generate/prompt.h"
#include "serve/api_error.h"

namespace shoal::serve {
namespace {

using Json = nlohmann::json;

constexpr int kBadRequest = 400, kNotFound = 404;

template <typename... Args>
[[noreturn]] void reject(const std::string& field, fmt::format_string<Args...> format, Args&&... args) {
  throw ApiError(kBadRequest, field + " " + fmt::format(format, std::forward<Args>(args)...), field);
}

// A value as a message shows it.
std::string shown(const Json& value) {
  auto text = value.dump(-1, ' ', true, Json::error_handler_t::replace);
  if (text.size() > 40) text = text.substr(0, 40) + "...";
  return text;
}

// A field of the object, or null where it is absent.
const Json& field(const Json& object, const char* name) {
  static const Json absent;
  const auto found = object.find(name);
  return found == object.end() ? absent : *found;
}

bool read_bool(const Json& object, const std::string& name) {
  const auto& value = field(object, name.c_str());
  if (value.is_null()) return false;
  if (!value.is_boolean()) reject(name, "is {}; give true or false", shown(value));
  return value.get<bool>();
}

// Whether the value is a whole number from `low` to `high`.
bool is_between(const Json& value, std::int64_t low, std::int64_t high) {
  const auto number = integer_of<std::int64_t>(value);
  return number && low <= *number && *number <= high;
}

std::int64_t read_integer(const Json& object, const std::string& name, std::int64_t by_default,
                          std::int64_t low, std::int64_t high) {
  const auto& value = field(object, name.c_str());
  if (value.is_null()) return by_default;
  if (!is_between(value, low, high))
    reject(name, "is {}; give a whole number, {} to {}", shown(value), low, high);
  return value.get<std::int64_t>();
}

// `open`: `low` itself is refused.
double read_number(const Json& object, const std::string& name, double by_default, double low, double high,
                   bool open = false) {
  const auto& value = field(object, name.c_str());
  if (value.is_null()) return by_default;
  const double number = value.is_number() ? value.get<double>() : std::nan("");
  if (!(number >= low && number <= high) || (open && number == low)) {
    reject(name, "is {}; give a number, {}{} to {}", shown(value), open ? "above " : "", low, high);
  }
  return number;
}

CompletionPrompt from_text(const std::string& text, const std::string& name, const ServedModel& model) {
  if (text.empty()) return {.tokens = {first_token(model.tokenizer)}, .empty = true};
  CompletionPrompt prompt;
  try {
    model.tokenizer.encode(text, prompt.tokens);
  } catch (const UserError& error) {
    reject(name, "cannot be read: {}", error.what());
  }
  return prompt;
}

CompletionPrompt from_ids(const Json& ids, const std::string& name, const ServedModel& model) {
  CompletionPrompt prompt;
  prompt.tokens.reserve(ids.size());
  for (const auto& id : ids) {
    if (!is_between(id, 0, model.vocab_size - 1))
      reject(name, "has the token {}; the model knows 0 to {}", shown(id), model.vocab_size - 1);
    prompt.tokens.push_back(id.get<std::int32_t>());
  }
  return prompt;
}

std::vector<CompletionPrompt> read_prompts(const Json& value, const ServedModel& model) {
  const std::string name = "prompt";
  if (value.is_string()) return {from_text(value.get<std::string>(), name, model)};
  if (!value.is_array() || value.empty())
    reject(name, "is {}; give a text, a list of texts, a list of token ids or a list of such lists",
           value.is_null() ? "missing" : shown(value));
  if (value.front().is_number()) return {from_ids(value, name, model)};
  if (value.size() > kMostChoices)
    reject(name, "is a list of {}; give at most {}", value.size(), kMostChoices);
  std::vector<CompletionPrompt> prompts;
  for (const auto& one : value) {
    const auto place = fmt::format("prompt[{}]", prompts.size());
    if (one.is_string()) {
      prompts.push_back(from_text(one.get<std::string>(), place, model));
    } else if (one.is_array() && !one.empty()) {
      prompts.push_back(from_ids(one, place, model));
    } else {
      reject(place, "is {}; give a text or a list of token ids", shown(one));
    }
  }
  return prompts;
}

std::vector<std::string> read_stops(const Json& value) {
  std::vector<std::string> stops;
  if (value.is_null()) return stops;
  if (value.is_string()) stops = {value.get<std::string>()};
  if (value.is_array()) {
    if (value.size() > kMostStops)
      reject("stop", "is a list of {}; give at most {}", value.size(), kMostStops);
    for (const auto& stop : value) {
      if (!stop.is_string()) reject("stop", "has {}; give texts", shown(stop));
      stops.push_back(stop.get<std::string>());
    }
  } else if (!value.is_string()) {
    reject("stop", "is {}; give a text or a list of at most {}", shown(value), kMostStops);
  }
  for (const auto& stop : stops) {  // which each text has a copy of
    if (stop.size() > kMostStopBytes)
      reject("stop", "has a text of {} bytes; give at most {}", stop.size(), kMostStopBytes);
  }
  if (std::ranges::count(stops, "") > 0) reject("stop", "is empty, which every text has at once");
  return stops;
}

void check_model(const Json& value, const ServedModel& model) {
  if (value.is_null()) return;
  if (!value.is_string()) reject("model", "is {}; give \"{}\"", shown(value), model.name);
  if (const auto name = value.get<std::string>(); name != model.name) {
    throw ApiError(kNotFound,
                   fmt::format("the model {} is not here; this server has \"{}\"", shown(value), model.name),
                   "model", "model_not_found");
  }
}

std::uint64_t random_seed() {
  std::random_device device;
  return std::uint64_t{device()} << 32 | device();
}

SampleOptions read_sampling(const Json& json, const ServedModel& model, bool echo) {
  constexpr auto kMost = std::numeric_limits<std::int32_t>::max();
  SampleOptions sampling{.temperature = read_number(json, "temperature", 1, 0, 2),
                         .top_k = 0,
                         .top_p = read_number(json, "top_p", 1, 0, 1, true),
                         .min_p = read_number(json, "min_p", 0, 0, 1),
                         .repetition_penalty = read_number(json, "repetition_penalty", 1,
                                                           kLeastRepetitionPenalty, kMostRepetitionPenalty),
                         .presence_penalty = read_number(json, "presence_penalty", 0, -2, 2),
                         .frequency_penalty = read_number(json, "frequency_penalty", 0, -2, 2)};
  // vLLM has -1 for "off".
  sampling.top_k = static_cast<int>(std::max<std::int64_t>(0, read_integer(json, "top_k", 0, -1, kMost)));
  sampling.max_tokens = read_integer(json, "max_tokens", std::min<std::int64_t>(16, model.max_tokens),
                                     echo ? 0 : 1, model.max_tokens);
  sampling.logprobs = static_cast<int>(read_integer(json, "logprobs", -1, 0, kMostLogprobs));
  sampling.vocab_size = model.vocab_size;
  const auto& seed = field(json, "seed");
  sampling.seed =
      seed.is_null()
          ? random_seed()
          : static_cast<std::uint64_t>(read_integer(json, "seed", 0, std::numeric_limits<std::int64_t>::min(),
                                                    std::numeric_limits<std::int64_t>::max()));
  return sampling;
}

// Fields that would change the answer, and that nothing here does.
void reject_unsupported(const Json& json, int n) {
  const auto& suffix = field(json, "suffix");
  if (!suffix.is_null() && suffix != "")
    reject("suffix", "is not supported: the model only continues a text");
  if (const auto& bias = field(json, "logit_bias"); !bias.is_null() && !bias.empty())
    reject("logit_bias", "is not supported; leave it out");
  const auto& best = field(json, "best_of");
  if (!best.is_null() && !is_between(best, n, n))
    reject("best_of", "is {} and n is {}; texts are not ranked, so leave best_of out", shown(best), n);
}

Json parse(std::string_view body) {
  Json json;
  try {
    json = Json::parse(body);
  } catch (const Json::exception& error) {  // also of a number that nothing holds
    const std::string text = error.what();
    const auto detail = text.find("] ");  // behind the library's own number
    throw ApiError(kBadRequest,
                   "the body is not JSON: " + (detail == std::string::npos ? text : text.substr(detail + 2)));
  }
  if (is_deeper(json)) {
    throw ApiError(
        kBadRequest,
        fmt::format("the body has lists or objects nested more than {} deep; no field needs more than two",
                    kDeepestJson));
  }
  if (!json.is_object()) throw ApiError(kBadRequest, "the body is JSON, but not an object {\"prompt\": ...}");
  return json;
}

}  // namespace

CompletionRequest read_request(std::string_view body, const ServedModel& model) {
  const auto json = parse(body);
  check_model(field(json, "model"), model);
  CompletionRequest request;
  request.n = static_cast<int>(read_integer(json, "n", 1, 1, kMostChoices));
  reject_unsupported(json, request.n);
  request.echo = read_bool(json, "echo");
  request.sampling = read_sampling(json, model, request.echo);
  request.stops = read_stops(field(json, "stop"));
  request.stream = read_bool(json, "stream");
  if (const auto& options = field(json, "stream_options"); !options.is_null()) {
    if (!options.is_object()) reject("stream_options", "is {}; give an object", shown(options));
    if (!request.stream) reject("stream_options", "needs \"stream\": true");
    request.stream_usage = read_bool(options, "include_usage");
  }
  request.prompts = read_prompts(field(json, "prompt"), model);
  for (const auto& prompt : request.prompts) {
    if (std::ssize(prompt.tokens) <= model.block_size) continue;
    throw ApiError(kBadRequest,
                   fmt::format("prompt has {} tokens, and the model sees at most {}",
                               with_commas(std::ssize(prompt.tokens)), with_commas(model.block_size)),
                   "prompt", "context_length_exceeded");
  }
  if (request.choices() > kMostChoices) {
    reject("n", "times the number of prompts is {}; ask for at most {} texts at a time", request.choices(),
           kMostChoices);
  }
  return request;
}

}  // namespace shoal::serve
