#include "serve/metrics.h"

#include <fmt/format.h>

#include <algorithm>

#include "serve/routes.h"

namespace shoal::serve {
namespace {

std::string head(const std::string& name, const std::string& type, const std::string& help) {
  return fmt::format("# HELP {0} {2}\n# TYPE {0} {1}\n", name, type, help);
}

std::string line(const std::string& name, const std::string& type, const std::string& help,
                 std::int64_t value) {
  return head(name, type, help) + fmt::format("{} {}\n", name, value);
}

}  // namespace

void Metrics::Histogram::add(double value) {
  const auto bucket = std::ranges::lower_bound(kBounds, value) - kBounds.begin();
  ++counts[static_cast<std::size_t>(bucket)];
  sum += value;
}

void Metrics::request_begun() {
  const std::lock_guard lock(mutex_);
  ++running_requests_;
}

void Metrics::request_ended(const std::string& route, int status, double seconds) {
  const std::lock_guard lock(mutex_);
  --running_requests_;
  ++requests_[{route, status}];
  if (route == kCompletionsRoute && status == 200) completion_seconds_.add(seconds);
}

void Metrics::add_prompt_tokens(std::int64_t tokens) {
  const std::lock_guard lock(mutex_);
  prompt_tokens_ += tokens;
}

void Metrics::first_piece(double seconds) {
  const std::lock_guard lock(mutex_);
  first_seconds_.add(seconds);
}

void Metrics::add_token() {
  const std::lock_guard lock(mutex_);
  ++tokens_;
}

void Metrics::add_step(int texts_left) {
  const std::lock_guard lock(mutex_);
  ++steps_;
  running_texts_ = texts_left;
}

void Metrics::set_waiting(std::int64_t texts) {
  const std::lock_guard lock(mutex_);
  waiting_texts_ = texts;
}

std::string Metrics::lines(const std::string& name, const std::string& help, const Histogram& histogram) {
  auto text = head(name, "histogram", help);
  std::int64_t count = 0;
  for (std::size_t i = 0; i < histogram.counts.size(); ++i) {
    count += histogram.counts[i];
    const auto bound = i < kBounds.size() ? fmt::format("{}", kBounds[i]) : "+Inf";
    text += fmt::format("{}_bucket{{le=\"{}\"}} {}\n", name, bound, count);
  }
  return text + fmt::format("{0}_sum {1}\n{0}_count {2}\n", name, histogram.sum, count);
}

std::string Metrics::text() const {
  const std::lock_guard lock(mutex_);
  auto text = head("shoal_requests_total", "counter", "Requests answered, by route and status.");
  for (const auto& [key, count] : requests_) {
    text +=
        fmt::format("shoal_requests_total{{route=\"{}\",status=\"{}\"}} {}\n", key.first, key.second, count);
  }
  text += line("shoal_requests_running", "gauge", "Requests that are being answered.", running_requests_);
  text += line("shoal_texts_running", "gauge", "Texts in the batch after the last step.", running_texts_);
  text += line("shoal_texts_waiting", "gauge", "Texts that wait for a place in the batch.", waiting_texts_);
  text +=
      line("shoal_prompt_tokens_total", "counter", "Tokens of the prompts of completions.", prompt_tokens_);
  text += line("shoal_generated_tokens_total", "counter", "Tokens generated.", tokens_);
  text += line("shoal_steps_total", "counter", "Steps of the generator: a token of every text.", steps_);
  text +=
      lines("shoal_completion_seconds",
            "Seconds from a request for a completion to the end of its whole answer.", completion_seconds_);
  text += lines("shoal_first_piece_seconds", "Seconds from a request for a completion to its first text.",
                first_seconds_);
  return text;
}

}  // namespace shoal::serve
