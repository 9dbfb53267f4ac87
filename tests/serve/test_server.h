// A server in this process, with a tiny random model, and texts of the same model without the server.
#pragma once

#include <httplib.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

#include "generate/tiny_model.h"
#include "ops/cpu/cpu.h"
#include "serve/server.h"

namespace shoal::serve::test {

using Json = nlohmann::json;

// 61 characters: the tiny model's classes. Some have two or three bytes.
inline constexpr const char* kAlphabet = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456é€";

struct Address {
  std::string host = "127.0.0.1";
  int port = 0;
};

inline bool eventually(const std::function<bool()>& condition, double seconds = 30) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
  while (!condition()) {
    if (std::chrono::steady_clock::now() > end) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  return true;
}

class TestServer {
 public:
  explicit TestServer(ServerOptions options = {}, int places = 4)
      : generator_(*model.backend, *model.engine, model.config, model.compute, places) {
    options.port = 0;
    server_ = std::make_unique<Server>(
        generator_,
        ServedModel{
            .name = "tiny", .tokenizer = *tokenizer, .vocab_size = 61, .block_size = 13, .max_tokens = kMost},
        options);
    port = std::stoi(server_->url().substr(server_->url().rfind(':') + 1));
    thread_ = std::thread([this] {
      try {
        server_->run([this] { return stop_.load(); });
      } catch (const std::exception& error) {
        failure = error.what();
      }
      ended = true;
    });
  }
  ~TestServer() {
    stop();
    thread_.join();
  }
  void stop() { stop_ = true; }

  httplib::Client client() const {
    httplib::Client made("127.0.0.1", port);
    made.set_read_timeout(60);
    made.set_keep_alive(false);
    return made;
  }
  // The status and the body of a request for a completion.
  std::pair<int, Json> complete(const Json& body) const {
    const auto result = client().Post("/v1/completions", body.dump(), "application/json");
    if (!result) return {-1, httplib::to_string(result.error())};
    return {result->status, Json::parse(result->body, nullptr, false)};
  }
  // The events of a stream, without the last "[DONE]", which is to be there.
  std::vector<Json> events(Json body) const {
    body["stream"] = true;
    const auto result = client().Post("/v1/completions", body.dump(), "application/json");
    if (!result) return {};
    return events_of(result->body);
  }
  static std::vector<Json> events_of(const std::string& text) {
    std::vector<Json> events;
    std::size_t at = 0;
    for (std::size_t end; (end = text.find("\n\n", at)) != std::string::npos; at = end + 2) {
      const auto line = text.substr(at, end - at);
      if (line == "data: [DONE]") return events;
      events.push_back(Json::parse(line.substr(6)));
    }
    events.push_back("no [DONE]");
    return events;
  }
  // A value of /metrics.
  double metric(const std::string& name) const {
    const auto result = client().Get("/metrics");
    const auto at = result->body.find("\n" + name + " ");
    return at == std::string::npos ? -1 : std::stod(result->body.substr(at + name.size() + 2));
  }

  // The text that the generator alone makes of a prompt.
  std::string alone(const std::string& prompt, SampleOptions options, std::int64_t sample) {
    shoal::test::TinyModel other(make_cpu_backend(1));
    Generator generator(*other.backend, *other.engine, other.config, other.compute);
    std::vector<std::int32_t> ids;
    tokenizer->encode(prompt, ids);
    std::string text;
    options.top_k = 0;
    generator.generate(ids, options, sample, [&](const GeneratedToken& token) {
      text += tokenizer->decode({&token.id, 1});
      return true;
    });
    return text;
  }

  static constexpr std::int64_t kMost = 50'000'000;
  std::unique_ptr<Tokenizer> tokenizer = make_char_tokenizer(kAlphabet);
  shoal::test::TinyModel model{make_cpu_backend(1)};
  int port = 0;
  std::string failure;
  std::atomic<bool> ended = false;

 private:
  Generator generator_;
  std::unique_ptr<Server> server_;
  std::atomic<bool> stop_ = false;
  std::thread thread_;
};

}  // namespace shoal::serve::test
