// Texts over HTTP are those of the generator.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "serve/test_server.h"

namespace shoal::serve {
namespace {

using test::Json;
using test::TestServer;
using testing::HasSubstr;

SampleOptions options(std::uint64_t seed, std::int64_t tokens, double temperature = 1) {
  return {.temperature = temperature, .seed = seed, .max_tokens = tokens, .vocab_size = 61};
}

TEST(Completions, AreTheGeneratorsTexts) {
  TestServer server;
  const auto [status, json] = server.complete(
      {{"prompt", {"abc", "Z€"}}, {"n", 3}, {"seed", 5}, {"max_tokens", 20}, {"model", "tiny"}});
  ASSERT_EQ(status, 200) << json;
  EXPECT_EQ(json["object"], "text_completion");
  EXPECT_EQ(json["model"], "tiny");
  EXPECT_THAT(std::string(json["id"]), testing::StartsWith("cmpl-"));
  ASSERT_EQ(json["choices"].size(), 6u);
  for (int i = 0; i < 6; ++i) {
    const auto& choice = json["choices"][static_cast<std::size_t>(i)];
    EXPECT_EQ(choice["index"], i);
    EXPECT_EQ(choice["text"], server.alone(i < 3 ? "abc" : "Z€", options(5, 20), i % 3));
    EXPECT_EQ(choice["finish_reason"], "length");
    EXPECT_TRUE(choice["logprobs"].is_null());
  }
  EXPECT_EQ(json["usage"], (Json{{"prompt_tokens", 5}, {"completion_tokens", 120}, {"total_tokens", 125}}));
}

TEST(Completions, StreamsAddUpToTheWholeAnswer) {
  TestServer server;
  const auto stop = server.alone("ab", options(9, 60), 0).substr(30, 4);
  for (Json body : {Json{{"logprobs", 2}, {"echo", true}}, Json{{"stop", stop}, {"logprobs", 0}},
                    Json{{"n", 3}}, Json{{"max_tokens", 1}}}) {
    body.update(Json{{"prompt", "ab"}, {"seed", 9}});
    if (!body.contains("max_tokens")) body["max_tokens"] = 60;
    const auto whole = server.complete(body).second;
    body["stream_options"] = {{"include_usage", true}};
    const auto events = server.events(body);
    ASSERT_GT(events.size(), 1u);
    std::vector<Json> choices(whole["choices"].size());
    for (const auto& event : events) {
      EXPECT_EQ(event["id"], events[0]["id"]);
      for (const auto& choice : event["choices"]) {
        auto& sum = choices[choice["index"].get<std::size_t>()];
        if (sum.is_null()) {
          sum = choice;
          continue;
        }
        EXPECT_TRUE(sum["finish_reason"].is_null()) << "a choice ends once";
        sum["text"] = sum["text"].get<std::string>() + choice["text"].get<std::string>();
        sum["finish_reason"] = choice["finish_reason"];
        if (choice["logprobs"].is_null()) continue;
        for (const auto& [name, values] : choice["logprobs"].items())
          sum["logprobs"][name].insert(sum["logprobs"][name].end(), values.begin(), values.end());
      }
    }
    EXPECT_EQ(Json(choices), whole["choices"]) << body;
    EXPECT_EQ(events.back()["usage"], whole["usage"]);
    EXPECT_TRUE(events.back()["choices"].empty());
  }
}

TEST(Completions, EndBeforeAStopString) {
  TestServer server;
  const auto text = server.alone("ab", options(9, 60), 0);
  const auto stop = text.substr(30, 4);
  const auto [status, json] = server.complete(
      {{"prompt", "ab"}, {"seed", 9}, {"max_tokens", 60}, {"stop", {stop, "nothing"}}, {"logprobs", 0}});
  ASSERT_EQ(status, 200);
  const auto& choice = json["choices"][0];
  EXPECT_EQ(choice["text"], text.substr(0, text.find(stop)));
  EXPECT_EQ(choice["finish_reason"], "stop");
  std::string joined;
  for (const std::string token : choice["logprobs"]["tokens"]) joined += token;
  EXPECT_EQ(choice["text"], joined);
}

// A text that was generated and then given as a prompt has the same logprobs.
TEST(Completions, ScoreAPrompt) {
  TestServer server;
  const Json ask = {
      {"prompt", "ab"}, {"temperature", 0}, {"max_tokens", 11}, {"logprobs", 3}, {"echo", true}};
  const auto made = server.complete(ask).second["choices"][0];
  const auto scored =
      server.complete({{"prompt", made["text"]}, {"max_tokens", 0}, {"logprobs", 3}, {"echo", true}})
          .second["choices"][0];
  EXPECT_EQ(scored["text"], made["text"]);
  EXPECT_EQ(scored["logprobs"]["tokens"], made["logprobs"]["tokens"]);
  EXPECT_EQ(scored["logprobs"]["text_offset"], made["logprobs"]["text_offset"]);
  const auto& ours = scored["logprobs"]["token_logprobs"];
  ASSERT_EQ(ours.size(), 13u);
  EXPECT_TRUE(ours[0].is_null());
  for (std::size_t i = 1; i < ours.size(); ++i) {
    EXPECT_NEAR(ours[i].get<double>(), made["logprobs"]["token_logprobs"][i].get<double>(), 1e-4) << i;
    EXPECT_GE(scored["logprobs"]["top_logprobs"][i].size(), 3u);
  }
}

TEST(Completions, AnEmptyPromptIsNotEchoed) {
  TestServer server;
  const auto [status, json] =
      server.complete({{"prompt", ""}, {"echo", true}, {"max_tokens", 5}, {"logprobs", 1}});
  ASSERT_EQ(status, 200) << json;
  EXPECT_EQ(json["choices"][0]["logprobs"]["tokens"].size(), 5u);
}

TEST(Completions, OfManyClientsAtOnceAreTheSame) {
  constexpr int kClients = 64;
  TestServer server({}, 8);
  std::vector<Json> answers(kClients);
  std::vector<std::thread> clients;
  for (int i = 0; i < kClients; ++i) {
    clients.emplace_back([&, i] {
      const Json body = {{"prompt", "abc"}, {"seed", i}, {"max_tokens", 10 + i % 7}, {"temperature", i % 2}};
      if (i % 3 > 0) {
        answers[static_cast<std::size_t>(i)] = server.complete(body).second["choices"][0]["text"];
        return;
      }
      std::string text;
      for (const auto& event : server.events(body)) text += event["choices"][0]["text"].get<std::string>();
      answers[static_cast<std::size_t>(i)] = text;
    });
  }
  for (auto& client : clients) client.join();
  for (int i = 0; i < kClients; ++i) {
    EXPECT_EQ(answers[static_cast<std::size_t>(i)],
              server.alone("abc", options(static_cast<std::uint64_t>(i), 10 + i % 7, i % 2), 0))
        << i;
  }
  EXPECT_TRUE(test::eventually([&] {  // once its answer is sent
    return server.metric("shoal_requests_total{route=\"/v1/completions\",status=\"200\"}") == kClients;
  }));
  EXPECT_LT(server.metric("shoal_steps_total"), server.metric("shoal_generated_tokens_total"))
      << "texts share steps";
}

}  // namespace
}  // namespace shoal::serve
