// shoal serve: answers requests for completions over HTTP.
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "cli/checkpoint_option.h"
#include "cli/text_model.h"
#include "core/error.h"
#include "core/interrupt.h"
#include "core/log.h"
#include "launch/ranks.h"
#include "serve/server.h"

namespace shoal::cli {
namespace {

struct ServeArguments : TextModelArguments {
  std::string name;
  std::int64_t batch = 8, max_tokens = 2048, body_limit = 1 << 20;
  serve::ServerOptions server;
};

Config load_serve_config(const ServeArguments& options) {
  auto config = load_text_config(options);
  config.parallel.data = 1;
  return config;
}

bool is_loopback(const std::string& host) {
  return host.starts_with("127.") || host == "localhost" || host == "::1";
}

void serve_model(const ServeArguments& options, const Config& config, World& world) {
  const auto model = load_text_model(options, config, world.ranks, world);
  const auto& size = model.plan.model;
  auto generator = make_generator(*model.runtime, model.plan, static_cast<int>(options.batch));
  const InterruptGuard guard;
  if (world.ranks.rank() > 0) return generator.follow();
  auto server_options = options.server;
  server_options.body_limit = static_cast<std::size_t>(options.body_limit);
  if (const char* key = std::getenv("SHOAL_API_KEY"); key && server_options.api_key.empty())
    server_options.api_key = key;
  const serve::ServedModel served{
      .name = options.name.empty() ? options.checkpoint : options.name,
      .tokenizer = *model.tokenizer,
      .vocab_size = std::min<std::int64_t>(size.vocab_size, model.tokenizer->vocab_size()),
      .block_size = size.block_size,
      .max_tokens = options.max_tokens};
  serve::Server server(generator, served, server_options);
  if (!is_loopback(server_options.host) && server_options.api_key.empty())
    log::warn("whoever reaches {} may use the model: SHOAL_API_KEY is not set", server_options.host);
  fmt::print("Serving {} at {}/v1\n", served.name, server.url());
  std::fflush(stdout);
  server.run([] { return InterruptGuard::requested() != nullptr; });
  generator.dismiss();
}

}  // namespace

void add_serve(CLI::App& app) {
  auto options = std::make_shared<ServeArguments>();
  auto& server = options->server;
  auto* command = add_command(
      app, "serve", "Answer requests for completions over HTTP, as OpenAI's API does",
      {{"shoal serve --checkpoint runs/quickstart", "At http://127.0.0.1:8000/v1, for this machine only"},
       {"shoal serve --checkpoint runs/quickstart --name plays --port 9000 --batch 16",
        "Under a short name, up to 16 texts at a time"},
       {"SHOAL_API_KEY=secret shoal serve --checkpoint runs/quickstart --host 0.0.0.0",
        "For other machines, which need the key"},
       {"shoal serve --checkpoint runs/gpt2 parallel.tensor=2",
        "Two ranks of this machine share the model"}});
  add_checkpoint_option(*command, options->checkpoint);
  command->add_option("--name", options->name, "The model's name in requests (default: the path)")
      ->option_text("NAME");
  command->add_option("--host", server.host, "Address to listen on; 0.0.0.0 is every network")
      ->option_text("HOST")
      ->capture_default_str();
  command->add_option("--port", server.port, "Port to listen on; 0 is any that is free")
      ->check(takes_integer(0, 65535))
      ->capture_default_str();
  command
      ->add_option("--batch", options->batch,
                   "Texts that are generated together; others wait. A text is the same in any batch")
      ->check(takes_integer(1, 4096))
      ->capture_default_str();
  command->add_option("--max-tokens", options->max_tokens, "Largest max_tokens that a request may ask for")
      ->check(takes_integer(1))
      ->capture_default_str();
  command
      ->add_option("--max-requests", server.max_requests,
                   "Requests that run or wait at a time; more are answered 429")
      ->check(takes_integer(1, 512))
      ->capture_default_str();
  command->add_option("--timeout", server.timeout, "Seconds that an answer may take")
      ->check(takes_number({.low = 0, .high = 1e6, .low_open = true}))
      ->capture_default_str();
  command
      ->add_option("--body-limit", options->body_limit,
                   "Bytes that a request may have; more are answered 413")
      ->check(takes_integer(1 << 10, 1 << 30))
      ->capture_default_str();
  command
      ->add_option("--api-key", server.api_key,
                   "Bearer token that requests to /v1 need (default: the variable SHOAL_API_KEY, which other "
                   "users of the machine cannot see)")
      ->option_text("KEY");
  add_text_backend(*command, *options);
  add_settings(*command, options->settings);
  command->callback([options, command] {
    require_checkpoint(*command, options->checkpoint, options->settings);
    with_ranks(
        0, [&] { return load_serve_config(*options); },
        [&](const Config& config, World& world) { serve_model(*options, config, world); });
  });
}

}  // namespace shoal::cli
