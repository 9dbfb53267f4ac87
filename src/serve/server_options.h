// The address and the limits of a server.
#pragma once

#include <cstddef>
#include <string>

namespace shoal::serve {

struct ServerOptions {
  std::string host = "127.0.0.1";
  int port = 8000;                   // 0: any that is free
  int max_requests = 128;            // completions that run or wait; more are answered 429
  double timeout = 600;              // seconds from a request to the end of its answer
  double patience = 10;              // seconds that a client may neither send nor read
  std::size_t body_limit = 1 << 20;  // bytes; larger bodies are answered 413
  std::string api_key = {};          // not empty: /v1 wants it as a bearer token
};

}  // namespace shoal::serve
