// Requests over HTTP, by libcurl.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace shoal {

struct HttpRequest {
  std::string url;                        // http, https, file
  std::vector<std::string> headers = {};  // "Authorization: Bearer ...", which no other host receives
  std::int64_t start = 0;                 // the first byte of the body that is wanted
  bool head = false;                      // the headers alone
  std::function<bool(std::string_view)> on_body = {};  // false stops
};

struct HttpResponse {
  long status = 0;
  std::string problem;         // "" for a complete one
  bool cannot_resume = false;  // the server does not send the rest of a body
  // By names in lower case. Of several responses, as redirects make them, the first that has a name counts.
  std::map<std::string, std::string> headers;
};

// Follows redirects. Gives up after 15 s without a connection and 30 s without a byte.
HttpResponse http_get(const HttpRequest& request);

}  // namespace shoal
