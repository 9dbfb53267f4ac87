// Clients that are wrong, slow, gone or too many, and the end of the server.
#include "serve/server.h"

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <limits>

#include "core/clock.h"
#include "core/error.h"
#include "core/logged.h"
#include "serve/test_server.h"

namespace shoal::serve {
namespace {

using test::eventually;
using test::Json;
using test::TestServer;
using testing::HasSubstr;
using testing::Not;

// Until the end of the test, unless somebody ends it.
const Json kEndless = {{"prompt", "a"}, {"max_tokens", TestServer::kMost}};

// A connection that sends what it is told to.
class RawClient {
 public:
  RawClient(int port, const std::string& text) : socket_(::socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<std::uint16_t>(port));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    const timeval limit{.tv_sec = 30, .tv_usec = 0};
    ::setsockopt(socket_, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
    if (::connect(socket_, reinterpret_cast<sockaddr*>(&address), sizeof(address)) != 0)
      ADD_FAILURE() << "no server";
    send(text);
  }
  ~RawClient() { ::close(socket_); }
  RawClient(const RawClient&) = delete;
  RawClient& operator=(const RawClient&) = delete;

  void send(const std::string& text) {
    if (::send(socket_, text.data(), text.size(), MSG_NOSIGNAL) < 0) ADD_FAILURE() << "cannot send";
  }
  // The server's bytes until `end`, or until it closes the connection.
  std::string read(const std::string& end = "") {
    std::string all(1 << 16, '\0');
    std::size_t size = 0;
    const auto ended = [&] { return !end.empty() && std::string_view(all).substr(0, size).ends_with(end); };
    for (ssize_t got; !ended() && (got = ::recv(socket_, all.data() + size, all.size() - size, 0)) > 0;)
      size += static_cast<std::size_t>(got);
    all.resize(size);
    return all;
  }

 private:
  int socket_;
};

std::string post(const std::string& body, const std::string& headers = "") {
  return "POST /v1/completions HTTP/1.1\r\nHost: a\r\n" + headers +
         "Content-Length: " + std::to_string(body.size()) + "\r\n\r\n" + body;
}

Json streamed(Json body) {
  body["stream"] = true;
  return body;
}

void expect_well(const TestServer& server) {
  const auto [status, json] = server.complete({{"prompt", "abc"}, {"max_tokens", 3}});
  EXPECT_EQ(status, 200) << json;
}

TEST(Server, LogsRequestsButNotProbes) {
  const auto text = shoal::test::logged([] {
    TestServer server;
    auto client = server.client();
    for (const char* path : {"/health", "/metrics", "/v1/models"}) EXPECT_EQ(client.Get(path)->status, 200);
  });
  EXPECT_THAT(text, HasSubstr("GET /v1/models 200 "));
  EXPECT_THAT(text, Not(HasSubstr("/health")));
  EXPECT_THAT(text, Not(HasSubstr("/metrics")));
}

TEST(Server, AnswersItsRoutes) {
  TestServer server;
  auto client = server.client();
  EXPECT_EQ(client.Get("/health")->body, R"({"status":"ok"})");
  const auto models = Json::parse(client.Get("/v1/models")->body);
  ASSERT_EQ(models["data"].size(), 1u);
  EXPECT_EQ(models["data"][0]["id"], "tiny");
  EXPECT_EQ(Json::parse(client.Get("/v1/models/tiny")->body), models["data"][0]);
  EXPECT_EQ(client.Get("/v1/models/other")->status, 404);
  EXPECT_THAT(client.Get("/v1/models/")->body, HasSubstr("there is no /v1/models/"));
  EXPECT_EQ(client.Get("/v1/chat/completions")->status, 404);
  EXPECT_EQ(client.Get("/v1/completions")->status, 405);
  EXPECT_EQ(client.Post("/v1/models", "{}", "application/json")->status, 405);
  EXPECT_EQ(client.Post("/elsewhere", "{}", "application/json")->status, 404);
  EXPECT_EQ(client.Head("/health")->status, 200);
  const auto error = Json::parse(client.Get("/nothing")->body)["error"];
  EXPECT_EQ(error["type"], "invalid_request_error");
  EXPECT_THAT(std::string(error["message"]), HasSubstr("/v1/completions"));
  // A request is counted once its answer is sent.
  EXPECT_TRUE(eventually(
      [&] { return server.metric("shoal_requests_total{route=\"/health\",status=\"200\"}") == 2; }));
  // A histogram has one last bucket, of all.
  const auto metrics = client.Get("/metrics")->body;
  const std::string last = "shoal_first_piece_seconds_bucket{le=\"+Inf\"}";
  EXPECT_THAT(metrics, HasSubstr(last));
  EXPECT_EQ(metrics.find(last), metrics.rfind(last));
  expect_well(server);
}

TEST(Server, AnswersMalformedRequests) {
  TestServer server;
  for (const std::string body : {"", "{", "\xFF\xFE", "[]", R"({"prompt": 5})"}) {
    const auto result = server.client().Post("/v1/completions", body, "application/json");
    ASSERT_TRUE(result) << body;
    EXPECT_EQ(result->status, 400) << body;
    EXPECT_FALSE(std::string(Json::parse(result->body)["error"]["message"]).empty());
  }
  EXPECT_THAT(RawClient(server.port, "rubbish\r\n\r\n").read("}}"), HasSubstr("400"));
  EXPECT_THAT(RawClient(server.port, "POST /v1/completions HTTP/1.1\r\n\r\n").read(), HasSubstr(" 411 "));
  EXPECT_THAT(RawClient(server.port, post("", "Content-Type: multipart/form-data; boundary=a\r\n")).read(),
              HasSubstr(" 415 "));
  EXPECT_THAT(RawClient(server.port, "POST /v1/completions HTTP/1.1\r\nContent-Length: -1\r\n\r\n").read(),
              HasSubstr(" 413 "));
  expect_well(server);
}

TEST(Server, RefusesLargeBodiesWithoutReadingThem) {
  TestServer server({.body_limit = 10'000});
  const Stopwatch watch;
  for (const char* path : {"/v1/completions", "/elsewhere"}) {
    RawClient large(server.port,
                    std::string("POST ") + path + " HTTP/1.1\r\nContent-Length: 1000000000\r\n\r\n{");
    EXPECT_THAT(large.read(), testing::ContainsRegex("HTTP/1.1 4(13|04) ")) << path;
  }
  EXPECT_THAT(RawClient(server.port,
                        "POST /v1/completions HTTP/1.1\r\nContent-Length: 1000000000\r\n"
                        "Expect: 100-continue\r\nConnection: close\r\n\r\n")
                  .read(),
              HasSubstr("HTTP/1.1 413 "));
  // Nobody says how long this one is.
  std::string chunked = "POST /v1/completions HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n";
  for (int i = 0; i < 11; ++i) chunked += "3e8\r\n" + std::string(1000, ' ') + "\r\n";
  EXPECT_THAT(RawClient(server.port, chunked).read(), HasSubstr("HTTP/1.1 413 "));
  EXPECT_LT(watch.seconds(), 20);
  EXPECT_EQ(server.complete({{"prompt", std::string(11'000, 'a')}}).first, 413);
  expect_well(server);
}

// Whether the body was read or not.
TEST(Server, NamesTheTypeOfARefusalOnce) {
  TestServer server;
  const std::string begin = "POST /v1/completions HTTP/1.1\r\nConnection: close\r\n";
  for (const std::string request : {"Content-Length: 2\r\n\r\n{}", "\r\n"}) {
    const auto answer = RawClient(server.port, begin + request).read();
    const std::string type = "Content-Type: application/json\r\n";
    EXPECT_THAT(answer, HasSubstr(type));
    EXPECT_EQ(answer.find("Content-Type"), answer.rfind("Content-Type")) << answer;
  }
}

// Bytes behind a refused body are not taken for a request.
TEST(Server, ClosesAConnectionWhoseBodyItDidNotRead) {
  TestServer server;
  const std::string hidden = "GET /health HTTP/1.1\r\nHost: a\r\n\r\n";
  RawClient client(server.port, "POST /elsewhere HTTP/1.1\r\nContent-Length: " +
                                    std::to_string(hidden.size()) + "\r\n\r\n" + hidden);
  const auto answer = client.read();
  EXPECT_THAT(answer, HasSubstr("404"));
  EXPECT_THAT(answer, testing::Not(HasSubstr("200 OK")));
}

// The same of a body that follows the refusal, and of bodies that cpp-httplib refuses.
TEST(Server, ClosesAConnectionWhoseBodyComesLate) {
  TestServer server({.body_limit = 10'000});
  const std::string begin = "POST /v1/completions HTTP/1.1\r\nHost: a\r\n";
  const std::vector<std::pair<std::string, const char*>> refused = {
      {begin + "Content-Length: 20000\r\nExpect: 100-continue\r\n\r\n", " 413 "},
      {begin + "Expect: 100-continue\r\n\r\n", " 411 "},
      {"POST /elsewhere HTTP/1.1\r\nContent-Length: 40\r\nExpect: 100-continue\r\n\r\n", " 404 "},
      {"GET /health HTTP/1.1\r\nHost: a\r\nContent-Length: 40\r\n\r\n", " 400 "},
      {begin + "Content-Length: 40\r\nRange: rubbish\r\n\r\n", " 416 "},
      {"rubbish\r\n\r\n", " 400 "}};
  for (const auto& [request, status] : refused) {
    RawClient client(server.port, request);
    EXPECT_THAT(client.read("}}"), HasSubstr(status)) << request;
    client.send("GET /health HTTP/1.1\r\nHost: a\r\n\r\n");
    EXPECT_EQ(client.read(), "") << request;
  }
  expect_well(server);
}

TEST(Server, IgnoresRanges) {
  TestServer server;
  const Json body = {{"prompt", "abc"}, {"seed", 1}, {"max_tokens", 3}};
  const auto whole = server.complete(body).second["choices"];
  for (const char* range : {"bytes=0-10", "bytes=100000-", "bytes=0-1,3-4"}) {
    const httplib::Headers headers = {{"Range", range}};
    auto client = server.client();
    const auto answer = client.Post("/v1/completions", headers, body.dump(), "application/json");
    ASSERT_TRUE(answer) << range;
    EXPECT_EQ(answer->status, 200) << range;
    EXPECT_EQ(Json::parse(answer->body, nullptr, false)["choices"], whole) << range;
    EXPECT_EQ(client.Post("/v1/completions", headers, streamed(body).dump(), "application/json")->status,
              200);
    EXPECT_EQ(client.Get("/health", headers)->body, R"({"status":"ok"})") << range;
    const auto error = client.Post("/v1/completions", headers, "{}", "application/json");
    EXPECT_EQ(error->status, 400) << range;
    EXPECT_THAT(error->body, HasSubstr("prompt is missing")) << range;
  }
}

TEST(Server, AClientThatReadsNothingHoldsUpNobody) {
  TestServer server({.patience = 1});
  RawClient deaf(server.port, post(streamed(kEndless).dump()));
  ASSERT_TRUE(eventually([&] { return server.metric("shoal_texts_running") == 1; }));
  expect_well(server);
  EXPECT_TRUE(eventually([&] { return server.metric("shoal_texts_running") == 0; })) << "it is given up";
  expect_well(server);
}

TEST(Server, ForgetsClientsThatAreGone) {
  TestServer server;
  for (const auto& body : {kEndless, streamed(kEndless)}) {
    auto client = std::make_unique<RawClient>(server.port, post(body.dump()));
    ASSERT_TRUE(eventually([&] { return server.metric("shoal_texts_running") == 1; }));
    client.reset();
    EXPECT_TRUE(eventually([&] { return server.metric("shoal_texts_running") == 0; }));
  }
  // Also one that waits for a place, and one that leaves within its body.
  Json many = kEndless;
  many["n"] = 4;
  auto all = std::make_unique<RawClient>(server.port, post(many.dump()));
  ASSERT_TRUE(eventually([&] { return server.metric("shoal_texts_running") == 4; }));
  auto waiting = std::make_unique<RawClient>(server.port, post(kEndless.dump()));
  ASSERT_TRUE(eventually([&] { return server.metric("shoal_texts_waiting") == 1; }));
  waiting.reset();
  EXPECT_TRUE(eventually([&] { return server.metric("shoal_texts_waiting") == 0; }))
      << "while no place is free";
  EXPECT_EQ(server.metric("shoal_texts_running"), 4);
  all.reset();
  RawClient(server.port, "POST /v1/completions HTTP/1.1\r\nContent-Length: 100\r\n\r\n{");
  EXPECT_TRUE(eventually([&] {
    return server.metric("shoal_texts_running") == 0 && server.metric("shoal_requests_running") == 1;
  }));
  expect_well(server);
}

TEST(Server, EndsAnAnswerThatTakesTooLong) {
  TestServer server({.timeout = 0.3});
  const auto [status, json] = server.complete(kEndless);
  EXPECT_EQ(status, 504);
  EXPECT_THAT(std::string(json["error"]["message"]), HasSubstr("--timeout"));
  EXPECT_TRUE(eventually([&] { return server.metric("shoal_texts_running") == 0; }));
  expect_well(server);
}

TEST(Server, AStreamThatTakesTooLongEndsWithAnError) {
  TestServer server({.timeout = 0.3});
  std::string text;
  RawClient raw(server.port, post(streamed(kEndless).dump()));
  for (std::string got; !(got = raw.read()).empty();) text += got;  // 64 KiB at a time
  EXPECT_THAT(text, HasSubstr("\"error\":{\"message\":\"the answer took longer"));
  EXPECT_THAT(text, testing::Not(HasSubstr("[DONE]")));
}

// Chunks came with HTTP/1.1: before it a stream ends with its connection, even where the client would keep
// that.
TEST(Server, StreamsToOldClientsWithoutChunks) {
  TestServer server;
  const Json body = {{"prompt", "a"}, {"seed", 1}, {"max_tokens", 20}};
  const auto whole = server.complete(body).second["choices"][0]["text"];
  const auto sent = streamed(body).dump();
  for (const std::string header : {"", "Connection: Keep-Alive\r\n"}) {
    auto request = post(sent, header);
    request.replace(request.find("HTTP/1.1"), 8, "HTTP/1.0");
    const auto answer = RawClient(server.port, request).read();
    const auto end = answer.find("\r\n\r\n");
    ASSERT_NE(end, std::string::npos) << answer;
    EXPECT_THAT(answer.substr(0, end),
                testing::AllOf(HasSubstr("Connection: close"), Not(HasSubstr("Transfer-Encoding"))));
    std::string text;
    for (const auto& event : TestServer::events_of(answer.substr(end + 4)))
      text += event["choices"][0]["text"].get<std::string>();
    EXPECT_EQ(whole, text);
    EXPECT_THAT(answer, testing::EndsWith("data: [DONE]\n\n"));
  }
  expect_well(server);
}

TEST(Server, SaysThatItIsFull) {
  TestServer server({.max_requests = 2});
  RawClient one(server.port, post(kEndless.dump())), two(server.port, post(streamed(kEndless).dump()));
  ASSERT_TRUE(eventually([&] { return server.metric("shoal_texts_running") == 2; }));
  const auto result = server.client().Post("/v1/completions", R"({"prompt": "a"})", "application/json");
  ASSERT_TRUE(result);
  EXPECT_EQ(result->status, 429);
  EXPECT_EQ(result->get_header_value("Retry-After"), "1");
  EXPECT_EQ(server.client().Get("/health")->status, 200);
}

// Connections that are kept open hold threads: of more than --max-requests each gets one answer.
TEST(Server, KeepsNoConnectionThatOthersWillNeed) {
  TestServer server({.max_requests = 2});
  const std::string health = "GET /health HTTP/1.1\r\nHost: a\r\n\r\n";
  std::vector<std::unique_ptr<RawClient>> clients;
  for (int i = 0; i < 30; ++i) {  // the server has 18 threads
    auto& client = clients.emplace_back(std::make_unique<RawClient>(server.port, health));
    const auto answer = client->read(R"({"status":"ok"})");
    EXPECT_THAT(answer, HasSubstr("HTTP/1.1 200 ")) << i;
    EXPECT_EQ(answer.find("Connection: close") != std::string::npos, i >= 2) << i << answer;
    EXPECT_EQ(answer.find("Keep-Alive") != std::string::npos, i < 2) << i << answer;
    if (i >= 2) {
      EXPECT_EQ(client->read(), "") << i;
    }
  }
  clients[0]->send(health);
  EXPECT_THAT(clients[0]->read(R"({"status":"ok"})"), HasSubstr("HTTP/1.1 200 "));
}

TEST(Server, WantsItsKey) {
  TestServer server({.api_key = "secret"});
  EXPECT_EQ(server.client().Get("/v1/models")->status, 401);
  EXPECT_EQ(server.complete({{"prompt", "a"}}).first, 401);
  for (const char* key : {"", "Bearer ", "Bearer secre", "Bearer secrets", "secret"})
    EXPECT_EQ(server.client().Get("/v1/models", {{"Authorization", key}})->status, 401) << key;
  EXPECT_EQ(server.client().Get("/v1/models", {{"Authorization", "Bearer secret"}})->status, 200);
  EXPECT_EQ(server.client().Get("/health")->status, 200);
}

TEST(Server, FinishesWhatRunsBeforeItEnds) {
  TestServer server;
  const Json body = {{"prompt", "a"}, {"seed", 1}, {"max_tokens", 8000}};
  std::vector<Json> events;
  std::pair<int, Json> whole;
  std::thread streams([&] { events = server.events(body); });
  std::thread waits([&] { whole = server.complete(body); });
  ASSERT_TRUE(eventually([&] { return server.metric("shoal_texts_running") == 2; }));
  server.stop();
  ASSERT_TRUE(eventually([&] { return server.client().Get("/health")->status == 503; }));
  const auto late = server.client().Post("/v1/completions", R"({"prompt": "a"})", "application/json");
  EXPECT_TRUE(late && late->status == 503);
  streams.join();
  waits.join();
  std::string text;
  for (const auto& event : events) text += event["choices"][0]["text"].get<std::string>();
  ASSERT_EQ(whole.first, 200);
  EXPECT_EQ(whole.second["choices"][0]["text"], text);
  EXPECT_EQ(text, server.alone("a", {.temperature = 1, .seed = 1, .max_tokens = 8000, .vocab_size = 61}, 0));
  EXPECT_TRUE(eventually([&] { return server.ended.load(); }));
  EXPECT_EQ(server.failure, "");
}

// Neither a request whose headers do not end nor a connection that is kept open.
TEST(Server, EndsWithoutClientsThatSendNothing) {
  TestServer server({.patience = 60});
  RawClient slow(server.port, "GET /health HTTP/1.1\r\nHost: ");
  RawClient idle(server.port, "GET /health HTTP/1.1\r\nHost: a\r\n\r\n");
  EXPECT_THAT(idle.read(R"({"status":"ok"})"), HasSubstr("HTTP/1.1 200 "));
  const Stopwatch watch;
  server.stop();
  EXPECT_TRUE(eventually([&] { return server.ended.load(); }));
  EXPECT_LT(watch.seconds(), 4);  // an idle connection is kept open for five
}

TEST(Server, FailsAllRequestsWithTheModel) {
  TestServer server;
  for (const auto& tensor : server.model.engine->state(false, DataEngine::Share::held))
    tensor.data.as<float>()[0] = std::numeric_limits<float>::quiet_NaN();
  server.model.engine->state_loaded();
  const auto [status, json] = server.complete({{"prompt", "a"}});
  EXPECT_EQ(status, 500);
  EXPECT_THAT(std::string(json["error"]["message"]), HasSubstr("is nan"));
  EXPECT_TRUE(eventually([&] { return server.ended.load(); }));
  EXPECT_THAT(server.failure, HasSubstr("is nan"));
}

TEST(Server, SaysThatItsPortIsTaken) {
  TestServer first;
  Generator generator(*first.model.backend, *first.model.engine, first.model.config, first.model.compute);
  const ServedModel model{.name = "a", .tokenizer = *first.tokenizer};
  EXPECT_THAT([&] { Server(generator, model, {.port = first.port}); },
              testing::ThrowsMessage<UserError>(HasSubstr("choose another --port")));
  EXPECT_THROW(Server(generator, model, {.host = "no such host"}), UserError);
}

}  // namespace
}  // namespace shoal::serve
