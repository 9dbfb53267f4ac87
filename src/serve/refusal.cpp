#include "serve/refusal.h"

#include <cstdlib>

#include "serve/connection.h"
#include "serve/exchange.h"
#include "serve/routes.h"

namespace shoal::serve {
namespace {

bool reads_only(const httplib::Request& request) {
  return request.method == "GET" || request.method == "HEAD";
}

std::size_t announced_length(const httplib::Request& request) {
  return std::strtoull(request.get_header_value("Content-Length").c_str(), nullptr, 10);
}

bool has_body(const httplib::Request& request) {
  return announced_length(request) > 0 || request.has_header("Transfer-Encoding");
}

// The time does not tell how much of a key is right.
bool same_secret(const std::string& given, const std::string& wanted) {
  unsigned difference = given.size() == wanted.size() ? 0 : 1;
  for (std::size_t i = 0; i < given.size(); ++i)
    difference |= static_cast<unsigned char>(given[i] ^ wanted[i % wanted.size()]);
  return difference == 0;
}

// All of an answer but its text.
void begin_refusal(const ApiError& error, httplib::Response& response) {
  response.status = error.status;
  if (error.status == 429 || error.status == 503) response.set_header("Retry-After", "1");
  if (error.status == 401) response.set_header("WWW-Authenticate", "Bearer");
  note_of_exchange(printable(error.what()));
}

}  // namespace

std::optional<ApiError> objection(const httplib::Request& request, const ServerOptions& options,
                                  bool draining) {
  const auto route = route_of(request.path);
  if (!options.api_key.empty() && request.path.starts_with("/v1/") &&
      !same_secret(request.get_header_value("Authorization"), "Bearer " + options.api_key)) {
    return ApiError(401, "the API key is missing or wrong: send the header \"Authorization: Bearer KEY\"", "",
                    "invalid_api_key");
  }
  if (route == kOtherRoute) {
    return ApiError(404,
                    fmt::format("there is no {}; this server has {}, {}, {} and {}", printable(request.path),
                                kCompletionsRoute, kModelsRoute, kHealthRoute, kMetricsRoute));
  }
  const bool completion = route == kCompletionsRoute;
  if (completion ? request.method != "POST" : !reads_only(request))
    return ApiError(405, fmt::format("{} takes {}", route, completion ? "POST" : "GET"));
  if (draining && (completion || route == kModelsRoute)) return ApiError(503, "the server is shutting down");
  if (!completion && has_body(request))  // cpp-httplib would take it for the next request
    return ApiError(400, fmt::format("a request for {} has no body; leave it out", route));
  if (!completion) return std::nullopt;
  if (announced_length(request) > options.body_limit)
    return ApiError(413, fmt::format("the body has {} bytes; at most {} are taken (--body-limit)",
                                     announced_length(request), options.body_limit));
  if (!request.has_header("Content-Length") && !request.has_header("Transfer-Encoding"))
    return ApiError(411, "the length of the body is missing: send Content-Length");
  if (request.is_multipart_form_data())
    return ApiError(415, "send the body as application/json, not as a form");
  return std::nullopt;
}

void answer(const ApiError& error, httplib::Response& response) {
  begin_refusal(error, response);
  response.set_content(error_json(error), kJson);
}

void answer_and_close(const ApiError& error, const httplib::Request& request, httplib::Response& response) {
  begin_refusal(error, response);
  response.set_header("Connection", "close");
  const auto text = error_json(error);
  // cpp-httplib closes a connection at once only where the answer's provider says that it failed.
  response.set_content_provider(text.size(), kJson,
                                [text, address = request.remote_addr, port = request.remote_port](
                                    std::size_t, std::size_t, httplib::DataSink& sink) {
                                  sink.write(text.data(), text.size());
                                  finish_answer(find_socket(address, port));
                                  return false;
                                });
}

void refuse(const ApiError& error, const httplib::Request& request, httplib::Response& response) {
  reads_only(request) && !has_body(request) ? answer(error, response)
                                            : answer_and_close(error, request, response);
}

}  // namespace shoal::serve
