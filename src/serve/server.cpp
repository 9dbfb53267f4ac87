#include "serve/server.h"

#include <fmt/format.h>
#include <httplib.h>
#include <sys/socket.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <exception>
#include <optional>
#include <thread>
#include <utility>

#include "core/clock.h"
#include "core/error.h"
#include "core/log.h"
#include "core/text.h"
#include "serve/api_error.h"
#include "serve/connection.h"
#include "serve/exchange.h"
#include "serve/metrics.h"
#include "serve/refusal.h"
#include "serve/response.h"
#include "serve/routes.h"
#include "serve/scheduler.h"

namespace shoal::serve {
namespace {

using Clock = Completion::Clock;

// Connections beside those of the largest number of completions: health, metrics, and refusals.
constexpr int kMoreConnections = 16;
constexpr std::chrono::milliseconds kLookAtClient(200);

// Counts the connections that have a thread or wait for one. A thread stays with its connection, also while
// no request comes.
class ConnectionThreads : public httplib::TaskQueue {
 public:
  ConnectionThreads(int threads, std::atomic<int>& connections)
      : threads_(static_cast<std::size_t>(threads)), connections_(connections) {}
  // Returns nothing in cpp-httplib 0.11, and a bool in 0.18.
  using Enqueued = decltype(std::declval<httplib::TaskQueue&>().enqueue({}));
  Enqueued enqueue(std::function<void()> serve) override {
    ++connections_;
    return threads_.enqueue([this, serve = std::move(serve)] {
      serve();
      --connections_;
    });
  }
  void shutdown() override { threads_.shutdown(); }

 private:
  httplib::ThreadPool threads_;
  std::atomic<int>& connections_;
};

// cpp-httplib would cut any answer to the header Range, which a POST does not have (RFC 9110, 14.2). It shows
// its handlers a request as const, which it is not.
void ignore_ranges(const httplib::Request& request) { const_cast<httplib::Request&>(request).ranges.clear(); }

}  // namespace

struct Server::Impl {
  Impl(Generator& generator_, ServedModel model_, ServerOptions options_)
      : model(std::move(model_)), options(std::move(options_)), scheduler(generator_, metrics) {}

  const ServedModel model;
  const ServerOptions options;
  const std::int64_t created = make_head("").created;
  Metrics metrics;
  Scheduler scheduler;
  httplib::Server http;
  int listening = -1;  // socket
  int port = 0;
  std::atomic<int> running = 0, completions = 0, connections = 0;
  std::atomic<bool> draining = false, ended = false;

  void bind();
  void set_routes();
  std::string read_body(const httplib::ContentReader& read, const httplib::Response& response,
                        Clock::time_point deadline) const;
  void complete(const httplib::Request& request, httplib::Response& response,
                const httplib::ContentReader& read);
  void answer_whole(const std::shared_ptr<Completion>& completion, Clock::time_point deadline, int socket,
                    httplib::Response& response);
  bool stream(Completion& completion, Clock::time_point deadline, int socket, httplib::DataSink& sink);
  // Pieces until the end or a pause. Throws ApiError at the deadline, and when the client has gone.
  Completion::Taken take(Completion& completion, Clock::time_point deadline, int socket);
};

void Server::Impl::bind() {
  // Not cpp-httplib's SO_REUSEPORT, with which two servers share a port in silence.
  http.set_socket_options([this](socket_t socket) {
    const int yes = 1;
    ::setsockopt(socket, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes));
    listening = socket;
  });
  errno = 0;
  port = options.port;
  if (port == 0)
    port = http.bind_to_any_port(options.host.c_str());
  else if (!http.bind_to_port(options.host.c_str(), port))
    port = -1;
  if (port < 0) {
    fail_user("cannot listen on {}:{}: {}; choose another --port or --host", options.host, options.port,
              errno ? std::strerror(errno) : "the host is unknown");
  }
  // cpp-httplib lets five clients wait; of 64 at once most would try again later.
  ::listen(listening, SOMAXCONN);
}

void Server::Impl::set_routes() {
  using Handled = httplib::Server::HandlerResponse;
  http.new_task_queue = [this] {
    return new ConnectionThreads(options.max_requests + kMoreConnections, connections);
  };
  http.set_tcp_nodelay(true);
  http.set_keep_alive_max_count(1000);
  const auto patience = std::chrono::microseconds(static_cast<std::int64_t>(options.patience * 1e6));
  http.set_read_timeout(patience);
  http.set_write_timeout(patience);
  http.set_payload_max_length(options.body_limit);
  http.set_pre_routing_handler([this](const httplib::Request& request, httplib::Response& response) {
    begin_exchange(metrics, running);
    ignore_ranges(request);
    const auto error = objection(request, options, draining);
    if (!error) return Handled::Unhandled;
    refuse(*error, request, response);
    return Handled::Handled;
  });
  http.set_expect_100_continue_handler([this](const httplib::Request& request, httplib::Response& response) {
    const auto error = objection(request, options, draining);
    if (error) {
      begin_exchange(metrics, running);
      refuse(*error, request, response);  // the client may send the body all the same
    }
    return error ? error->status : 100;
  });
  http.set_error_handler([](const httplib::Request& request, httplib::Response& response) {
    ignore_ranges(request);
    if (response.has_header("Content-Type") || response.status == kClientGone) return;
    // cpp-httplib refuses before it has read the body.
    answer_and_close(ApiError(response.status, response.status == 416
                                                   ? "the header Range cannot be read; leave it out"
                                                   : "the request is not HTTP that this server understands"),
                     request, response);
  });
  http.set_exception_handler(
      [](const httplib::Request&, httplib::Response& response, std::exception_ptr error) {
        try {
          std::rethrow_exception(error);
        } catch (const ApiError& known) {
          answer(known, response);
        } catch (const std::exception& other) {
          log::write(log::Level::error, fmt::format("a request failed: {}", other.what()));
          answer(ApiError(500, "the server failed; its log says why"), response);
        }
      });
  http.set_post_routing_handler([this](const httplib::Request&, httplib::Response& response) {
    if (connections <= options.max_requests || response.has_header("Connection")) return;
    response.headers.erase("Keep-Alive");
    response.set_header("Connection", "close");
  });
  http.set_logger([](const httplib::Request& request, const httplib::Response& response) {
    // cpp-httplib would wait for the client to close it.
    if (response.get_header_value("Connection") == "close")
      end_reading(find_socket(request.remote_addr, request.remote_port));
    end_exchange(request, response.status);
  });
  http.Get(kHealthRoute, [this](const httplib::Request&, httplib::Response& response) {
    response.status = draining ? 503 : 200;
    response.set_content(draining ? R"({"status":"draining"})" : R"({"status":"ok"})", kJson);
  });
  http.Get(kMetricsRoute, [this](const httplib::Request&, httplib::Response& response) {
    response.set_content(metrics.text(), "text/plain; version=0.0.4");
  });
  http.Get(kModelsRoute, [this](const httplib::Request&, httplib::Response& response) {
    response.set_content(models_json(model.name, created), kJson);
  });
  http.Get(std::string(kModelsRoute) + "/(.+)",
           [this](const httplib::Request& request, httplib::Response& response) {
             if (request.matches[1] != model.name) {
               throw ApiError(404, fmt::format("there is no such model; this server has \"{}\"", model.name),
                              "model", "model_not_found");
             }
             response.set_content(model_json(model.name, created), kJson);
           });
  http.Post(kCompletionsRoute,
            [this](const httplib::Request& request, httplib::Response& response,
                   const httplib::ContentReader& read) { complete(request, response, read); });
}

std::string Server::Impl::read_body(const httplib::ContentReader& read, const httplib::Response& response,
                                    Clock::time_point deadline) const {
  std::string body;
  bool large = false, late = false;
  const bool whole = read([&](const char* data, std::size_t size) {
    large = body.size() + size > options.body_limit;
    late = Clock::now() > deadline;
    if (large || late) return false;
    body.append(data, size);
    return true;
  });
  if (large || response.status == 413)  // which later versions of cpp-httplib set, and read no further
    throw ApiError(413, fmt::format("the body has more than {} bytes (--body-limit)", options.body_limit));
  if (late) throw ApiError(408, "the body took too long to come");
  if (!whole) throw ApiError(400, "the body ends early, or is in a coding that this server does not know");
  return body;
}

void Server::Impl::complete(const httplib::Request& request, httplib::Response& response,
                            const httplib::ContentReader& read) {
  const auto deadline = Clock::now() + std::chrono::duration_cast<Clock::duration>(
                                           std::chrono::duration<double>(options.timeout));
  const std::shared_ptr<void> place(&completions,
                                    [](void* count) { --*static_cast<std::atomic<int>*>(count); });
  if (++completions > options.max_requests) {
    return answer_and_close(
        ApiError(429, fmt::format("{} requests run or wait already; try again later", options.max_requests)),
        request, response);
  }
  std::string body;
  try {
    body = read_body(read, response, deadline);
  } catch (const ApiError& error) {
    return answer_and_close(error, request, response);
  }
  auto completion = std::make_shared<Completion>(read_request(body, model), model.tokenizer);
  metrics.add_prompt_tokens(completion->prompt_tokens());
  const int socket = find_socket(request.remote_addr, request.remote_port);
  scheduler.submit(completion);
  if (!completion->request().stream) return answer_whole(completion, deadline, socket, response);
  response.set_header("Cache-Control", "no-cache");
  const char* const kind = "text/event-stream";
  const bool chunked = request.version != "HTTP/1.0";
  const auto provider = [this, completion, deadline, socket, place, chunked](std::size_t,
                                                                             httplib::DataSink& sink) {
    return stream(*completion, deadline, socket, sink) && chunked;
  };
  if (chunked) return response.set_chunked_content_provider(kind, provider);
  // HTTP/1.0 has no chunks: the answer ends with the connection, which cpp-httplib closes where a provider
  // says that it failed.
  response.set_header("Connection", "close");
  response.set_content_provider(kind, provider);
}

Completion::Taken Server::Impl::take(Completion& completion, Clock::time_point deadline, int socket) {
  auto taken = completion.take(std::min(deadline, Clock::now() + kLookAtClient));
  if (!taken.failure.empty()) throw ApiError(500, "the model failed: " + taken.failure);
  if (taken.finished) return taken;
  if (Clock::now() >= deadline) {
    throw ApiError(504,
                   fmt::format("the answer took longer than {} (--timeout); ask for fewer tokens, or again "
                               "when fewer requests wait",
                               format_duration(options.timeout)));
  }
  if (is_closed(socket)) throw ApiError(kClientGone, "the client is gone");
  return taken;
}

void Server::Impl::answer_whole(const std::shared_ptr<Completion>& completion, Clock::time_point deadline,
                                int socket, httplib::Response& response) {
  std::vector<ChoicePiece> pieces;
  try {
    for (bool finished = false; !finished;) {
      auto taken = take(*completion, deadline, socket);
      if (pieces.empty() && !taken.pieces.empty()) metrics.first_piece(exchange_seconds());
      std::ranges::move(taken.pieces, std::back_inserter(pieces));
      finished = taken.finished;
    }
  } catch (...) {
    completion->cancel();
    throw;
  }
  const Usage usage{completion->prompt_tokens(), completion->made_tokens()};
  note_of_exchange(fmt::format("{} + {} tokens", usage.prompt_tokens, usage.completion_tokens));
  response.set_content(completion_json(make_head(model.name), completion->request(), model.tokenizer,
                                       std::move(pieces), usage),
                       kJson);
}

// The whole stream in one call: cpp-httplib would end it between two calls when the server stops.
bool Server::Impl::stream(Completion& completion, Clock::time_point deadline, int socket,
                          httplib::DataSink& sink) {
  const auto head = make_head(model.name);
  const auto write = [&](const std::string& events) {
    if (!events.empty() && !sink.write(events.data(), events.size()))
      throw ApiError(kClientGone, "the client is gone");
  };
  try {
    for (bool finished = false, begun = false; !finished;) {
      const auto taken = take(completion, deadline, socket);
      if (!begun && !taken.pieces.empty()) {
        metrics.first_piece(exchange_seconds());
        begun = true;
      }
      std::string events;
      for (const auto& piece : taken.pieces)
        events += event_of(head, completion.request(), model.tokenizer, piece);
      write(events);
      finished = taken.finished;
    }
    const Usage usage{completion.prompt_tokens(), completion.made_tokens()};
    note_of_exchange(fmt::format("{} + {} tokens, streamed", usage.prompt_tokens, usage.completion_tokens));
    write(last_events(head, completion.request(), usage));
    sink.done();
    return true;
  } catch (const ApiError& error) {
    completion.cancel();
    note_of_exchange(fmt::format("the stream ended early: {}", error.what()));
    if (error.status != kClientGone) {
      const auto event = "data: " + error_json(error) + "\n\n";
      sink.write(event.data(), event.size());
    }
    return false;
  } catch (const std::exception& error) {  // cpp-httplib catches nothing here
    completion.cancel();
    log::write(log::Level::error, fmt::format("a stream failed: {}", error.what()));
    return false;
  }
}

Server::Server(Generator& generator, ServedModel model, ServerOptions options)
    : impl_(std::make_unique<Impl>(generator, std::move(model), std::move(options))) {
  impl_->set_routes();
  impl_->bind();
}

Server::~Server() = default;

std::string Server::url() const {
  const auto& host = impl_->options.host;
  const bool colons = host.find(':') != std::string::npos;
  return fmt::format("http://{}{}{}:{}", colons ? "[" : "", host, colons ? "]" : "", impl_->port);
}

void Server::run(const std::function<bool()>& stop) {
  auto& server = *impl_;
  std::thread accepting([&] {
    server.http.listen_after_bind();
    server.ended = true;
  });
  while (!server.http.is_running() && !server.ended) std::this_thread::yield();
  const auto end = [&] {
    const auto patience = Clock::now() + std::chrono::seconds(10);  // answers are on their way
    while (server.running > 0 && Clock::now() < patience)
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    server.http.stop();
    end_reading_at(server.port);  // of clients whose requests do not end
    accepting.join();
  };
  bool lost = false;
  try {
    server.scheduler.run([&] {
      lost = server.ended;
      if (!server.draining && stop()) {
        server.draining = true;
        log::info("stopping: {} requests are still being answered", server.running.load());
      }
      return lost || (server.draining && server.running == 0);
    });
  } catch (...) {
    server.draining = true;
    end();
    throw;
  }
  end();
  if (lost) fail("the server can accept no more connections");
}

}  // namespace shoal::serve
