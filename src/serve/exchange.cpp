#include "serve/exchange.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "core/clock.h"
#include "core/log.h"
#include "core/text.h"
#include "serve/routes.h"

namespace shoal::serve {
namespace {

class Exchange {
 public:
  Exchange(Metrics& metrics, std::atomic<int>& running) : metrics_(metrics), running_(running) {
    ++running_;
    metrics_.request_begun();
  }
  ~Exchange() {
    metrics_.request_ended(route_, status_, watch_.seconds());
    --running_;
  }
  Exchange(const Exchange&) = delete;
  Exchange& operator=(const Exchange&) = delete;

  double seconds() const { return watch_.seconds(); }
  void note(std::string text) { note_ = std::move(text); }
  void end(const httplib::Request& request, int status) {
    route_ = route_of(request.path);
    status_ = status;
    const bool probe = route_ == kHealthRoute || route_ == kMetricsRoute;
    log::write(probe ? log::Level::debug : log::Level::info,
               fmt::format("{} {} {} {}{}", request.method, printable(request.path), status,
                           format_duration(watch_.seconds()), note_.empty() ? "" : ", " + note_));
  }

 private:
  Metrics& metrics_;
  std::atomic<int>& running_;
  Stopwatch watch_;
  std::string route_ = "other", note_;
  int status_ = 0;  // the connection broke before the answer
};

thread_local std::optional<Exchange> exchange;

}  // namespace

std::string printable(std::string text) {
  text.resize(std::min<std::size_t>(text.size(), 200));
  std::ranges::replace_if(
      text, [](char c) { return c < ' ' || c > '~'; }, '?');
  return text;
}

void begin_exchange(Metrics& metrics, std::atomic<int>& running) { exchange.emplace(metrics, running); }

double exchange_seconds() { return exchange ? exchange->seconds() : 0; }

void note_of_exchange(std::string text) {
  if (exchange) exchange->note(std::move(text));
}

void end_exchange(const httplib::Request& request, int status) {
  if (exchange) exchange->end(request, status);
  exchange.reset();
}

}  // namespace shoal::serve
