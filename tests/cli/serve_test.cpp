// shoal serve, on a model after a few training steps.
#include <httplib.h>

#include <csignal>
#include <nlohmann/json.hpp>

#include "cli/tiny_runs.h"

namespace shoal::test {
namespace {

using Json = nlohmann::json;
using testing::HasSubstr;

class ServeTest : public TinyRuns {
 protected:
  ServeTest() { train_well({"train.steps=4", "eval.interval=100"}); }

  // A server on any free port, and its address once it has printed that.
  std::unique_ptr<Process> serve(const Settings& settings = {}, const Settings& environment = {}) {
    auto process = std::make_unique<Process>(
        with({"serve", "--checkpoint", "runs/tiny", "--port", "0"}, settings), folder_.path(), environment);
    EXPECT_TRUE(eventually([&] { return process->out_so_far().ends_with("/v1\n"); }))
        << process->err_so_far();
    const auto out = process->out_so_far();
    const auto at = out.find("http://");
    address_ = out.substr(at, out.rfind("/v1") - at);
    return process;
  }
  httplib::Client client() const { return httplib::Client(address_); }

  std::string address_;
};

TEST_F(ServeTest, WritesTheTextsOfSample) {
  const auto server = serve({"--name", "plays", "--batch", "3"});
  EXPECT_THAT(server->out_so_far(), HasSubstr("Serving plays at http://127.0.0.1:"));
  Json body = {{"model", "plays"}, {"prompt", "the "}, {"n", 3}, {"max_tokens", 30}, {"seed", 7}};
  const auto result = client().Post("/v1/completions", body.dump(), "application/json");
  ASSERT_TRUE(result && result->status == 200);
  const auto sampled =
      shoal({"sample", "--checkpoint", "runs/tiny", "--prompt", "the ", "--samples", "3", "--max-tokens",
             "30", "--seed", "7", "--temperature", "1", "--top-k", "0", "--json"});
  std::istringstream lines(sampled.out);
  const auto choices = Json::parse(result->body)["choices"];
  ASSERT_EQ(choices.size(), 3u);
  for (const auto& choice : choices) {
    std::string line;
    std::getline(lines, line);
    EXPECT_EQ(choice["text"], Json::parse(line)["text"]);
  }
  server->signal(SIGTERM);
  const auto end = server->wait();
  EXPECT_EQ(end.code, 0) << end.err;
  EXPECT_THAT(end.err, HasSubstr("POST /v1/completions 200"));
}

TEST_F(ServeTest, TensorRanksShareTheModel) {
  const auto server = serve({"parallel.tensor=2"});
  const Json body = {{"model", "runs/tiny"}, {"prompt", "the "}, {"max_tokens", 20}, {"temperature", 0}};
  const auto result = client().Post("/v1/completions", body.dump(), "application/json");
  ASSERT_TRUE(result && result->status == 200);
  const auto sampled = shoal({"sample", "--checkpoint", "runs/tiny", "--prompt", "the ", "--max-tokens", "20",
                              "--temperature", "0", "--json"});
  EXPECT_EQ(Json::parse(result->body)["choices"][0]["text"], Json::parse(sampled.out)["text"]);
  server->signal(SIGTERM);
  EXPECT_EQ(server->wait().code, 0);
}

TEST_F(ServeTest, SigtermFinishesTheStream) {
  const auto server = serve();
  std::string text;
  const Json body = {{"prompt", "the "}, {"max_tokens", 2000}, {"stream", true}};
  bool asked = false;
  httplib::Request request;
  request.method = "POST";
  request.path = "/v1/completions";
  request.body = body.dump();
  request.content_receiver = [&](const char* data, std::size_t size, auto, auto) {
    if (!asked) server->signal(SIGTERM);
    asked = true;
    text.append(data, size);
    return true;
  };
  auto asking = client();
  ASSERT_TRUE(asking.send(request));
  EXPECT_TRUE(text.ends_with("data: [DONE]\n\n"));
  EXPECT_EQ(server->wait().code, 0);
}

TEST_F(ServeTest, ASecondSignalEndsAtOnce) {
  const auto server = serve({"--max-tokens", "1000000000"});
  std::thread endless([&] {
    client().Post("/v1/completions", R"({"prompt": "a", "max_tokens": 1000000000})", "application/json");
  });
  EXPECT_TRUE(eventually([&] {
    const auto metrics = client().Get("/metrics");
    return metrics && metrics->body.find("\nshoal_texts_running 1\n") != std::string::npos;
  }));
  server->signal(SIGINT);
  EXPECT_TRUE(eventually([&] { return server->err_so_far().find("stopping: ") != std::string::npos; }));
  server->signal(SIGINT);
  EXPECT_EQ(server->wait().code, 128 + SIGINT);
  endless.join();
}

TEST_F(ServeTest, TakesItsKeyFromTheEnvironment) {
  const auto server = serve({}, {"SHOAL_API_KEY=secret"});
  EXPECT_EQ(client().Get("/v1/models")->status, 401);
  const auto models = client().Get("/v1/models", {{"Authorization", "Bearer secret"}});
  ASSERT_EQ(models->status, 200);
  EXPECT_EQ(Json::parse(models->body)["data"][0]["id"], "runs/tiny");
}

TEST_F(ServeTest, ErrorsOfTheCommand) {
  const auto serve_with = [&](const Settings& settings) {
    return shoal(with({"serve", "--checkpoint", "runs/tiny"}, settings));
  };
  expect_user_error(shoal({"serve"}), "--checkpoint is required");
  expect_user_error(shoal({"serve", "--checkpoint", "runs/none"}), "runs/none");
  expect_user_error(serve_with({"--port", "70000"}), "--port");
  expect_user_error(serve_with({"--batch", "0"}), "--batch");
  expect_user_error(serve_with({"--timeout", "0"}), "--timeout");
  expect_user_error(serve_with({"--host", "no such host"}), "cannot listen on no such host");
  expect_user_error(serve_with({"parallel.pipeline=2"}), "parallel.pipeline");
  const auto first = serve();
  expect_user_error(serve_with({"--port", address_.substr(address_.rfind(':') + 1)}), "in use", "--port");
}

}  // namespace
}  // namespace shoal::test
