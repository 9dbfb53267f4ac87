// Times whole training steps (forward, backward, clip, AdamW) of a GPT on random tokens, as
// bench/peers/torch_gpt.py does.
//   bench_train_step N_LAYER N_HEAD N_EMBD VOCAB BATCH POSITIONS DROPOUT float32|bfloat16 STEPS [THREADS]
// Prints one line: median and minimum ms per step, tokens/s, share of the measured peak.
#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <string>
#include <vector>

#include "core/clock.h"
#include "core/philox.h"
#include "model/gpt.h"
#include "parallel/data_engine.h"

using namespace shoal;

int main(int argc, char** argv) {
  if (argc < 10) {
    fmt::print(stderr,
               "usage: {} N_LAYER N_HEAD N_EMBD VOCAB BATCH POSITIONS DROPOUT DTYPE STEPS [THREADS]\n",
               argv[0]);
    return 2;
  }
  GptConfig config;
  config.n_layer = std::atoi(argv[1]);
  config.n_head = std::atoi(argv[2]);
  config.n_embd = std::atoi(argv[3]);
  config.vocab_size = std::atoi(argv[4]);
  const std::int64_t batch = std::atoi(argv[5]), positions = std::atoi(argv[6]);
  config.block_size = static_cast<int>(positions);
  config.dropout = std::atof(argv[7]);
  const DType compute = std::string(argv[8]) == "bfloat16" ? DType::bf16 : DType::f32;
  const int steps = std::atoi(argv[9]);
  const auto backend = make_cpu_backend(argc > 10 ? std::atoi(argv[10]) : 0);

  const auto self = make_self_communicator();
  const auto engine =
      make_data_engine(*backend, *self, config, {.compute = compute, .adamw = {}, .grad_clip = 1.0});
  engine->initialize(1337);
  Gpt model(*backend, *engine, config, {.batch = {batch, positions}, .compute = compute});

  std::vector<std::int32_t> tokens(static_cast<std::size_t>(batch * positions + 1));
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    const auto random = philox({1, 2}, {static_cast<std::uint32_t>(i), 0, 0, 0});
    tokens[i] = static_cast<std::int32_t>(to_below(random, static_cast<std::uint64_t>(config.vocab_size)));
  }
  double loss = 0;
  const Tensor loss_sum{&loss, DType::f64, {1}};
  const float scale = 1.0f / static_cast<float>(batch * positions);
  std::vector<double> times;
  for (int step = 0; step < steps + 2; ++step) {
    Stopwatch watch;
    loss = 0;
    engine->begin_step(1);
    model.train({.tokens = {tokens.data(), DType::i32, {batch, positions}},
                 .targets = {tokens.data() + 1, DType::i32, {batch, positions}},
                 .address = {.seed = 1337, .step = step}},
                loss_sum, scale);
    engine->gradient_norm();
    engine->update(1e-4, step + 1);
    if (step >= 2) times.push_back(watch.seconds());
  }
  std::sort(times.begin(), times.end());
  const double median = times[times.size() / 2];
  const double flops = flops_per_token(config) * static_cast<double>(batch * positions);
  const double peak = backend->measure_peak_flops(compute);
  fmt::print(
      "shoal {} ms/step median {:.2f} min {:.2f}  tokens/s {:.0f}  {:.1f} GFLOP/s = {:.1f} % of {:.1f}  loss "
      "{:.4f}\n",
      argv[8], median * 1e3, times.front() * 1e3, static_cast<double>(batch * positions) / median,
      flops / median * 1e-9, 100 * flops / median / peak, peak * 1e-9, loss * static_cast<double>(scale));
}
