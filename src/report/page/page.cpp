#include "report/page/page.h"

#include <array>
#include <chrono>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>

#include "core/error.h"
#include "core/json_text.h"
#include "core/version.h"
#include "model/unit.h"
#include "report/finals.h"
#include "report/page/curves.h"
#include "report/page/tables.h"
#include "report/page/template.h"
#include "report/plot.h"

namespace shoal {
namespace {

using nlohmann::ordered_json;

constexpr std::array kStateNames = {"running", "finished", "stopped", "ended"};  // by RunState

ordered_json figure(const std::optional<double>& value) {
  return value ? short_number(*value) : ordered_json();
}

// Perplexity of a whole split per word and per byte.
ordered_json text_json(const std::optional<TextPerplexity>& text) {
  if (!text) return nullptr;
  return {{"word", short_number(text->word)}, {"byte", short_number(text->byte)}};
}

ordered_json evaluation_json(const std::optional<EvalRecord>& record) {
  if (!record) return nullptr;
  return {{"step", record->step},
          {"train_loss", short_number(record->train_loss)},
          {"val_loss", short_number(record->val_loss)},
          {"val_accuracy", figure(record->val_accuracy)},
          {"perplexity", text_json(record->val_text)},
          {"consensus_distance", figure(record->consensus_distance)}};
}

ordered_json finals_json(const PageRun& run) {
  const auto finals = finals_of(run.metrics);
  const auto& steps = run.metrics.steps;
  ordered_json json = {{"last", evaluation_json(finals.last)},
                       {"best", evaluation_json(finals.best)},
                       {"train_loss", steps.empty() ? ordered_json() : short_number(steps.back().loss)},
                       {"tokens", steps.empty() ? 0 : steps.back().tokens},
                       {"seconds", short_number(training_seconds(run.metrics))},
                       {"tokens_per_s", figure(finals.tokens_per_s)},
                       {"peak_share", figure(finals.peak_share)},
                       {"memory_per_rank", figure(finals.memory_per_rank)},
                       {"entropy_floor", figure(finals.entropy_floor)}};
  if (const auto& test = run.metrics.test)
    json["test"] = {{"loss", short_number(test->loss)},
                    {"accuracy", short_number(test->accuracy)},
                    {"perplexity", text_json(test->text)}};
  return json;
}

// Texts that the model wrote, of some evaluations: the last, and others evenly before it.
ordered_json samples_json(const Metrics& metrics) {
  constexpr std::size_t kMost = 50;
  std::vector<const EvalRecord*> written;
  for (const auto& record : metrics.evals) {
    if (!record.samples.empty()) written.push_back(&record);
  }
  auto json = ordered_json::array();
  const std::size_t each = (written.size() + kMost - 1) / kMost;
  for (std::size_t back = 0; back < written.size(); back += each) {
    const auto& record = *written[written.size() - 1 - back];
    json.push_back({{"step", record.step}, {"texts", record.samples}});
  }
  return json;
}

ordered_json run_json(const PageRun& run, std::size_t index) {
  const auto [colour, dashes] = style_of_run(index);
  ordered_json json = {{"name", run.name},
                       {"folder", run.folder},
                       {"colour", colour},
                       {"dashes", dashes},
                       {"state", kStateNames[static_cast<std::size_t>(run.state)]},
                       {"step", run.last_step()},
                       {"notes", run.notes},
                       {"finals", finals_json(run)},
                       {"curves", curves_json(run.metrics)},
                       {"samples", samples_json(run.metrics)},
                       {"timeline", run.timeline}};
  if (!run.config) return json;
  json["steps"] = run.config->train.steps;
  json["config"] = to_toml(*run.config);
  if (run.config->model.vocab_size > 0) json["flops_per_token"] = flops_per_token(to_gpt_config(*run.config));
  return json;
}

// JSON for a script element, which ends at "</script" whatever is around it.
std::string script_text(const ordered_json& json) {
  std::string text;
  for (const char c : json_text(json)) {
    if (c == '<') {
      text += "\\u003c";
    } else {
      text += c;
    }
  }
  return text;
}

}  // namespace

std::string runs_page(std::vector<PageRun> runs, int refresh_seconds) {
  ordered_json data = {{"version", kVersion},
                       {"written", std::chrono::duration_cast<std::chrono::seconds>(
                                       std::chrono::system_clock::now().time_since_epoch())
                                       .count()},
                       {"refresh", refresh_seconds}};
  data["plans"] = plans_json(runs);  // first: it adds notes to runs
  data["differences"] = differences_json(runs);
  data["runs"] = ordered_json::array();
  for (std::size_t i = 0; i < runs.size(); ++i) data["runs"].push_back(run_json(runs[i], i));

  constexpr std::string_view kBefore = "<script id=\"data\" type=\"application/json\">", kNothing = "null";
  const auto at = kPageTemplate.find(kBefore) + kBefore.size();
  return std::string(kPageTemplate.substr(0, at)) + script_text(data) +
         std::string(kPageTemplate.substr(at + kNothing.size()));
}

}  // namespace shoal
