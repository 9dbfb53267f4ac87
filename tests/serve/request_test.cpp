#include "serve/request.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "serve/api_error.h"

namespace shoal::serve {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

class RequestTest : public testing::Test {
 protected:
  CompletionRequest read(const std::string& body) const { return read_request(body, model_); }
  // The error for a body, which is to name `field`.
  std::string refusal(const std::string& body, const std::string& field = "") const {
    try {
      read(body);
    } catch (const ApiError& error) {
      EXPECT_EQ(error.param, field) << body;
      EXPECT_EQ(error.status, 400) << body;
      return error.what();
    }
    ADD_FAILURE() << body << " was taken";
    return "";
  }

  std::unique_ptr<Tokenizer> tokenizer_ = make_char_tokenizer("abcdefgh");
  ServedModel model_{
      .name = "runs/a", .tokenizer = *tokenizer_, .vocab_size = 8, .block_size = 6, .max_tokens = 50};
};

TEST_F(RequestTest, HasOpenAIsDefaults) {
  const auto request = read(R"({"prompt": "abc", "model": "runs/a", "user": "me", "nonsense": [1]})");
  ASSERT_EQ(request.prompts.size(), 1u);
  EXPECT_THAT(request.prompts[0].tokens, ElementsAre(0, 1, 2));
  EXPECT_EQ(request.n, 1);
  EXPECT_FALSE(request.echo || request.stream || request.stream_usage);
  EXPECT_TRUE(request.stops.empty());
  const auto& sampling = request.sampling;
  EXPECT_EQ(sampling.max_tokens, 16);
  EXPECT_EQ(sampling.temperature, 1);
  EXPECT_EQ(sampling.top_p, 1);
  EXPECT_EQ(sampling.top_k, 0);
  EXPECT_EQ(sampling.min_p, 0);
  EXPECT_EQ(sampling.logprobs, -1);
  EXPECT_EQ(sampling.vocab_size, 8);
  EXPECT_NE(read(R"({"prompt": "abc"})").sampling.seed, sampling.seed) << "seeds are random";
}

TEST_F(RequestTest, ReadsEveryField) {
  const auto request =
      read(R"({"prompt": ["abc", [7, 6]], "max_tokens": 50, "temperature": 0, "top_p": 0.5, "n": 3,
    "stream": true, "stream_options": {"include_usage": true}, "logprobs": 5, "echo": true, "stop": ["x", "yz"],
    "presence_penalty": -2, "frequency_penalty": 2, "best_of": 3, "seed": -4, "top_k": 9, "min_p": 0.1,
    "repetition_penalty": 1.5, "suffix": null, "logit_bias": {}})");
  ASSERT_EQ(request.prompts.size(), 2u);
  EXPECT_THAT(request.prompts[1].tokens, ElementsAre(7, 6));
  EXPECT_EQ(request.n, 3);
  EXPECT_EQ(request.choices(), 6u);
  EXPECT_TRUE(request.echo && request.stream && request.stream_usage);
  EXPECT_THAT(request.stops, ElementsAre("x", "yz"));
  const auto& sampling = request.sampling;
  EXPECT_EQ(sampling.max_tokens, 50);
  EXPECT_EQ(sampling.temperature, 0);
  EXPECT_EQ(sampling.top_p, 0.5);
  EXPECT_EQ(sampling.top_k, 9);
  EXPECT_EQ(sampling.min_p, 0.1);
  EXPECT_EQ(sampling.repetition_penalty, 1.5);
  EXPECT_EQ(sampling.presence_penalty, -2);
  EXPECT_EQ(sampling.frequency_penalty, 2);
  EXPECT_EQ(sampling.logprobs, 5);
  EXPECT_EQ(static_cast<std::int64_t>(sampling.seed), -4);
  EXPECT_EQ(read(R"({"prompt": "a", "seed": 9223372036854775807})").sampling.seed,
            static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max()));
  EXPECT_THAT(read(R"({"prompt": "a", "stop": "b"})").stops, ElementsAre("b"));
  EXPECT_EQ(read(R"({"prompt": "a", "top_k": -1})").sampling.top_k, 0);
  EXPECT_THAT(read(R"({"prompt": [1, 2]})").prompts[0].tokens, ElementsAre(1, 2));
}

TEST_F(RequestTest, AnEmptyPromptBeginsAText) {
  const auto request = read(R"({"prompt": ["", "a"]})");
  EXPECT_TRUE(request.prompts[0].empty);
  EXPECT_EQ(request.prompts[0].tokens.size(), 1u);
  EXPECT_FALSE(request.prompts[1].empty);
}

TEST_F(RequestTest, NamesTheFieldThatIsWrong) {
  EXPECT_THAT(refusal(R"({})", "prompt"), HasSubstr("prompt is missing"));
  for (const char* prompt : {"5", "true", "[]", "{}", "[[]]", "[\"a\", 5]", "[5, \"a\"]", "[null]", "[8]",
                             "[-1]", "[1.5]", "[18446744073709551615]", "\"xyz\""}) {
    const auto body = std::string(R"({"prompt": )") + prompt + "}";
    try {
      read(body);
      ADD_FAILURE() << body;
    } catch (const ApiError& error) {
      EXPECT_THAT(error.param, testing::StartsWith("prompt")) << body;
    }
  }
  const std::vector<std::pair<const char*, const char*>> wrong = {
      {"max_tokens", "0"},
      {"max_tokens", "51"},
      {"max_tokens", "2.5"},
      {"max_tokens", "\"9\""},
      {"max_tokens", "true"},
      {"max_tokens", "1e999"},
      {"temperature", "-0.1"},
      {"temperature", "2.1"},
      {"temperature", "\"hot\""},
      {"top_p", "0"},
      {"top_p", "1.1"},
      {"min_p", "-1"},
      {"top_k", "-2"},
      {"n", "0"},
      {"n", "129"},
      {"best_of", "2"},
      {"logprobs", "6"},
      {"logprobs", "true"},
      {"echo", "1"},
      {"stream", "\"yes\""},
      {"stop", "5"},
      {"stop", "[5]"},
      {"stop", "\"\""},
      {"stop", R"(["a","b","c","d","e"])"},
      {"presence_penalty", "3"},
      {"frequency_penalty", "-3"},
      {"repetition_penalty", "0"},
      {"suffix", "\"a\""},
      {"logit_bias", R"({"50256": -100})"},
      {"seed", "1.5"},
      {"seed", "18446744073709551615"},
      {"stream_options", "{}"},
      {"model", "7"}};
  for (const auto& [name, value] : wrong) {
    const std::string body = std::string(R"({"prompt": "a", ")") + name + "\": " + value + "}";
    if (std::string(value) == "1e999") {
      EXPECT_THAT(refusal(body), HasSubstr("not JSON"));  // it does not fit any number
    } else {
      EXPECT_THAT(refusal(body, name), HasSubstr(name));
    }
  }
  EXPECT_NO_THROW(read(R"({"prompt": "a", "echo": true, "max_tokens": 0})"));
}

// Every text of a request has a copy of them.
TEST_F(RequestTest, LimitsStops) {
  const auto with_stop = [&](std::size_t bytes) {
    return R"({"prompt": "a", "stop": ")" + std::string(bytes, 'x') + "\"}";
  };
  EXPECT_EQ(read(with_stop(kMostStopBytes)).stops.size(), 1u);
  try {
    read(with_stop(kMostStopBytes + 1));
    ADD_FAILURE();
  } catch (const ApiError& error) {
    EXPECT_THAT(error.what(), HasSubstr("stop has a text of 1025 bytes"));
  }
}

TEST_F(RequestTest, RefusesAnotherModelAsNotFound) {
  try {
    read(R"({"prompt": "a", "model": "gpt-4"})");
    ADD_FAILURE();
  } catch (const ApiError& error) {
    EXPECT_EQ(error.status, 404);
    EXPECT_EQ(error.code, "model_not_found");
    EXPECT_THAT(error.what(), HasSubstr("\"runs/a\""));
  }
}

TEST_F(RequestTest, LimitsPromptsAndTexts) {
  EXPECT_NO_THROW(read(R"({"prompt": "abcdef"})"));
  EXPECT_THAT(refusal(R"({"prompt": "abcdefa"})", "prompt"),
              HasSubstr("7 tokens, and the model sees at most 6"));
  EXPECT_NO_THROW(read(R"({"prompt": ["a", "b"], "n": 64})"));
  EXPECT_THAT(refusal(R"({"prompt": ["a", "b"], "n": 65})", "n"), HasSubstr("130"));
  std::string many = R"({"prompt": ["a")";
  for (int i = 0; i < 128; ++i) many += ",\"a\"";
  EXPECT_THAT(refusal(many + "]}", "prompt"), HasSubstr("129"));
}

TEST_F(RequestTest, BodiesThatAreNoJson) {
  for (const std::string body : {"", "{", "{\"prompt\": \"a\"", "{\"prompt\": \"\xFF\"}", "{'prompt': 'a'}",
                                 "NaN", "{\"prompt\": \"a\"} x"})
    EXPECT_THAT(refusal(body), HasSubstr("not JSON")) << body;
  for (const char* body : {"[]", "5", "null", "\"a\""})
    EXPECT_THAT(refusal(body), HasSubstr("not an object"));
  EXPECT_THAT(refusal(std::string(100'000, '[')), HasSubstr("not JSON"));  // no recursion
}

// Showing such a value in a message would overflow the stack.
TEST_F(RequestTest, RefusesDeepNesting) {
  const auto body = [](const std::string& field, std::size_t lists) {
    return R"({"prompt": "a", ")" + field + "\": " + std::string(lists, '[') + std::string(lists, ']') + "}";
  };
  for (const std::string field :
       {"model", "prompt", "stop", "n", "seed", "best_of", "stream_options", "nonsense"})
    EXPECT_THAT(refusal(body(field, 200'000)), HasSubstr("nested more than 64 deep")) << field;
  EXPECT_THAT(refusal(body("model", 64)), HasSubstr("nested more than 64 deep"));
  EXPECT_THAT(refusal(body("model", 63), "model"), HasSubstr("model is [[["));
}

TEST(ApiErrorJson, HasOpenAIsForm) {
  EXPECT_EQ(error_json(ApiError(400, "n is 0", "n")),
            R"({"error":{"message":"n is 0","type":"invalid_request_error","param":"n","code":null}})");
  EXPECT_THAT(error_json(ApiError(500, "a \xFF")), HasSubstr("server_error"));
}

}  // namespace
}  // namespace shoal::serve
