// Requests over HTTP, by libcurl.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "core/error.h"

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
  // By names in lower case. Behind redirects: those of the last response, and from any of them those that
  // begin with x-, by which the hub describes a file where it redirects to it. The first that has a name
  // counts.
  std::map<std::string, std::string> headers;
};

// The file that a download goes to cannot be written, from wherever it comes.
struct DownloadFileError : UserError {
  using UserError::UserError;
};

// Follows redirects. Gives up after 15 s without a connection and 30 s without a byte.
HttpResponse http_get(const HttpRequest& request);

// Appends the part of a body that the file `partial` lacks, with progress under `name`. The whole body has
// `size` bytes; 0: unknown. A file that has them is left as it is, and a longer body is a problem that no
// resumption mends. Throws DownloadFileError, with the system's reason, when the file cannot be written.
HttpResponse http_append(HttpRequest request, const std::filesystem::path& partial, const std::string& name,
                         std::int64_t size);

}  // namespace shoal
