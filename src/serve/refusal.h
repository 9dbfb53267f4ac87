// Requests that are refused, most of them before their body is read.
#pragma once

#include <httplib.h>

#include <optional>

#include "serve/api_error.h"
#include "serve/server_options.h"

namespace shoal::serve {

inline constexpr const char* kJson = "application/json";
inline constexpr int kClientGone = 499;  // nginx's number; nobody reads it

// The reason to refuse a request by its headers, if there is one.
std::optional<ApiError> objection(const httplib::Request& request, const ServerOptions& options,
                                  bool draining);

// Answers with an error.
void answer(const ApiError& error, httplib::Response& response);

// The same, for a request whose body was not read: the connection is closed, or the body would be taken for
// the next request.
void answer_and_close(const ApiError& error, const httplib::Request& request, httplib::Response& response);

// One or the other.
void refuse(const ApiError& error, const httplib::Request& request, httplib::Response& response);

}  // namespace shoal::serve
