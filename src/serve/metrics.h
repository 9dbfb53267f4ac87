// Counters in Prometheus' text format: https://prometheus.io/docs/instrumenting/exposition_formats
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <utility>

namespace shoal::serve {

// Safe to share between threads.
class Metrics {
 public:
  void request_begun();
  // `route` is one of the server's, or "other".
  void request_ended(const std::string& route, int status, double seconds);
  void add_prompt_tokens(std::int64_t tokens);
  void first_piece(double seconds);  // of a completion, after its request came
  void add_token();
  void add_step(int texts_left);
  void set_waiting(std::int64_t texts);

  std::string text() const;

 private:
  static constexpr std::array kBounds = {0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0};
  struct Histogram {
    std::array<std::int64_t, kBounds.size() + 1> counts = {};
    double sum = 0;
    void add(double value);
  };
  static std::string lines(const std::string& name, const std::string& help, const Histogram& histogram);

  mutable std::mutex mutex_;
  std::map<std::pair<std::string, int>, std::int64_t> requests_;  // by route and status
  std::int64_t running_requests_ = 0, running_texts_ = 0, waiting_texts_ = 0;
  std::int64_t prompt_tokens_ = 0, tokens_ = 0, steps_ = 0;
  Histogram completion_seconds_, first_seconds_;
};

}  // namespace shoal::serve
