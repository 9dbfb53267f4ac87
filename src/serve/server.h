// The HTTP server of `shoal serve`: OpenAI's /v1/completions and /v1/models, /health and /metrics.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "generate/generator.h"
#include "serve/request.h"
#include "serve/server_options.h"

namespace shoal::serve {

class Server {
 public:
  // Binds the address; connections wait until run(). Throws UserError where it cannot.
  Server(Generator& generator, ServedModel model, ServerOptions options);
  ~Server();

  std::string url() const;  // "http://127.0.0.1:8000"

  // Answers requests; the texts are made on the calling thread. `stop` is asked many times a second. Once it
  // is true, new requests are answered 503, and run() returns when the others are done. Throws what the
  // generator throws, after all requests have failed, and Error when no connection can be accepted.
  void run(const std::function<bool()>& stop);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace shoal::serve
