// Times generation: tokens that are read one after the other, each with its logits on the host, by a random
// GPT with as many positions as it needs.
//   bench_decode N_LAYER N_HEAD N_EMBD VOCAB PROMPT TEXTS TOKENS float32|bfloat16 [--backend cpu|cuda]
//   [--eager] [--int8]
// Each of TEXTS texts has PROMPT tokens before; --eager launches what a GPU would replay as a graph; --int8
// puts the weights in 8 bits. Prints one line: ms to read a prompt, median and minimum ms of a step of one
// token for each text, and the bytes of weights, keys and values that it reads per second.
#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "comm/communicator.h"
#include "core/clock.h"
#include "core/error.h"
#include "generate/decoder.h"
#include "ops/make_backend.h"
#include "parallel/data/data_engine.h"

using namespace shoal;

namespace {

struct Settings {
  GptConfig model;
  std::int64_t prompt = 0;
  int texts = 0, tokens = 0;
  DType compute = DType::f32;
  std::string backend = "cpu";
  bool eager = false, int8 = false;
};

Settings read_settings(int argc, char** argv) {
  if (argc < 9) {
    fail_user(
        "usage: {} N_LAYER N_HEAD N_EMBD VOCAB PROMPT TEXTS TOKENS DTYPE [--backend NAME] [--eager] [--int8]",
        argv[0]);
  }
  Settings settings;
  settings.model.n_layer = std::atoi(argv[1]);
  settings.model.n_head = std::atoi(argv[2]);
  settings.model.n_embd = std::atoi(argv[3]);
  settings.model.vocab_size = std::atoi(argv[4]);
  settings.prompt = std::atoi(argv[5]);
  settings.texts = std::atoi(argv[6]);
  settings.tokens = std::atoi(argv[7]);
  settings.model.block_size = static_cast<int>(settings.prompt) + settings.tokens;
  settings.compute = std::strcmp(argv[8], "bfloat16") == 0 ? DType::bf16 : DType::f32;
  for (int i = 9; i < argc; ++i) {
    const std::string option = argv[i];
    if (option == "--eager") {
      settings.eager = true;
    } else if (option == "--int8") {
      settings.int8 = true;
    } else if (option == "--backend" && i + 1 < argc) {
      settings.backend = argv[++i];
    } else {
      fail_user("unknown argument {}", option);
    }
  }
  return settings;
}

// Read by a step in the middle: the blocks and the head's classes, and each text's keys and values.
double bytes_of_step(const Settings& settings) {
  const auto& model = settings.model;
  const double c = static_cast<double>(model.n_embd), layers = static_cast<double>(model.n_layer),
               positions = static_cast<double>(model.block_size),
               middle = (static_cast<double>(settings.prompt) + positions) / 2;
  const auto size = static_cast<double>(size_of(settings.compute));
  return (layers * 12 * c * c + static_cast<double>(model.vocab_size) * c) * (settings.int8 ? 1 : size) +
         settings.texts * layers * 2 * c * middle * size;
}

void run(const Settings& settings) {
  const auto& config = settings.model;
  const auto backend = make_backend(backend_kind(settings.backend).value(), {});
  const auto alone = make_self_communicator();
  Mesh mesh(*alone, {});
  EngineOptions options{.part = {}, .compute = settings.compute};
  options.training = false;
  DataEngine engine(*backend, mesh, config, options);
  engine.initialize(1337);
  if (settings.int8) engine.to_int8();
  Decoder decoder(*backend, engine, config, settings.compute, settings.texts, {}, !settings.eager);

  std::vector<Decoder::Token> next;
  double prompt_ms = 0;
  const std::vector<std::int32_t> prompt(static_cast<std::size_t>(settings.prompt), 17);
  for (int text = 0; text < settings.texts; ++text) {
    const Stopwatch watch;
    decoder.prefill(text, prompt);
    prompt_ms = watch.seconds() * 1e3;  // of the last one: memory is warm
    next.push_back({text, 5});
  }
  std::vector<double> ms;
  for (int token = 0; token < settings.tokens; ++token) {
    const Stopwatch watch;
    decoder.extend(next);
    ms.push_back(watch.seconds() * 1e3);
    for (auto& [text, id] : next) {
      const auto logits = decoder.logits(text);
      id = static_cast<std::int32_t>(std::ranges::max_element(logits) - logits.begin());
    }
  }
  std::ranges::sort(ms);
  const double median = ms[ms.size() / 2];
  fmt::print("shoal {} prompt ms {:.2f}  step ms median {:.4f} min {:.4f}  tokens/s {:.0f}  {:.1f} GB/s\n",
             name_of(settings.compute), prompt_ms, median, ms.front(), 1e3 * settings.texts / median,
             bytes_of_step(settings) / median / 1e6);
}

}  // namespace

int main(int argc, char** argv) try {
  run(read_settings(argc, argv));
  return 0;
} catch (const std::exception& error) {
  fmt::print(stderr, "bench_decode: {}\n", error.what());
  return 1;
}
