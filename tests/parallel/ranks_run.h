// A short training run of a tiny model over data ranks that are threads, and everything that it leaves.
#pragma once

#include <cstring>
#include <map>
#include <mutex>
#include <numeric>

#include "comm/world.h"
#include "model/gpt.h"
#include "model/trainee.h"
#include "parallel/data_engine.h"

namespace shoal::test {

struct RanksRun {
  int ranks = 1;
  EngineOptions engine;  // micro_batches are those of the global batch
  int steps = 10;
  int batches = 1000;  // that there are: then they come again
  GptConfig model{.n_layer = 3,
                  .n_head = 2,
                  .n_embd = 12,
                  .block_size = 8,
                  .vocab_size = 61,
                  .dropout = 0.1,
                  .bias = true};
  Recompute recompute = Recompute::none;
  double lr = 1e-2;
  int evaluate_every = 5;  // steps; in between, as trainers do
};

struct RunOutcome {
  std::vector<double> losses, norms, evaluations;                // of each step; as every rank saw them
  std::map<std::string, std::vector<float>, std::less<>> state;  // whole parameters and moments

  // Everything as bytes, to be compared.
  std::string bytes() const {
    std::string all;
    const auto append = [&](const auto& values) {
      all.append(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(values[0]));
    };
    append(losses);
    append(norms);
    append(evaluations);
    for (const auto& [name, values] : state) append(values);
    return all;
  }
};

// Puts the parts that a rank holds, or would save, where they belong in whole tensors.
inline void collect(RunOutcome& into, DataEngine& engine, DataEngine::Share share) {
  for (const auto& tensor : engine.state(true, share)) {
    auto& whole = into.state[tensor.name];
    whole.resize(static_cast<std::size_t>(tensor.shape.count()), std::numeric_limits<float>::quiet_NaN());
    std::memcpy(whole.data() + tensor.first, tensor.data.data, tensor.data.bytes());
  }
}

inline RunOutcome train(const RanksRun& run) {
  RunOutcome outcome;
  std::mutex mutex;
  run_threads({.ranks = run.ranks, .deadline_seconds = 60}, [&](World& world) {
    const auto backend = make_cpu_backend(1);
    const auto engine = make_data_engine(*backend, world.ranks, run.model, run.engine);
    engine->initialize(Trainee::kSeed);
    Gpt model(
        *backend, *engine, run.model,
        {.batch = {1, run.model.block_size}, .compute = run.engine.compute, .recompute = run.recompute});
    const Buffer tokens(*backend, DType::i32, {1, run.model.block_size});
    const Buffer targets(*backend, DType::i32, {1, run.model.block_size});
    Buffer loss(*backend, DType::f64, {1});
    const int count = run.engine.micro_batches;
    const float scale = 1.0f / static_cast<float>(count * run.model.block_size);
    RunOutcome mine;
    for (int step = 0; step < run.steps; ++step) {
      const auto data = random_tokens(run.model, count, static_cast<std::uint32_t>(step % run.batches) + 1);
      std::vector<double> losses(static_cast<std::size_t>(count));
      engine->begin_step(step);
      for (int pass = 0; pass < engine->passes(); ++pass) {
        const int index = pass * world.ranks.size() + engine->first_micro_batch();
        const bool idle = index >= count;
        const std::int64_t first = idle ? 0 : index * run.model.block_size;
        const std::vector<std::int32_t> ignored(static_cast<std::size_t>(run.model.block_size), -1);
        backend->copy_from_host(tokens, data.tokens.data() + first);
        backend->copy_from_host(targets, idle ? ignored.data() : data.targets.data() + first);
        backend->zero(loss);
        model.train({.tokens = tokens,
                     .targets = targets,
                     .address = {.seed = Trainee::kSeed, .step = step, .first_sample = index}},
                    loss, scale);
        if (!idle) losses[static_cast<std::size_t>(index)] = loss.values()[0];
      }
      mine.norms.push_back(engine->gradient_norm());
      engine->update(run.lr, step + 1);
      world.ranks.all_reduce({losses.data(), DType::f64, {count}}).wait();
      mine.losses.push_back(std::accumulate(losses.begin(), losses.end(), 0.0) * static_cast<double>(scale));
      if ((step + 1) % run.evaluate_every == 0) {
        backend->copy_from_host(targets, data.targets.data());
        backend->copy_from_host(tokens, data.tokens.data());
        backend->zero(loss);
        model.evaluate({.tokens = tokens, .targets = targets, .address = {}}, loss);
        mine.evaluations.push_back(loss.values()[0]);
      }
    }
    const std::lock_guard lock(mutex);
    collect(outcome, *engine, world.ranks.rank() % 2 ? DataEngine::Share::to_save : DataEngine::Share::held);
    if (world.ranks.rank() == 0) {
      outcome.losses = mine.losses;
      outcome.norms = mine.norms;
      outcome.evaluations = mine.evaluations;
    } else if (!outcome.losses.empty()) {
      EXPECT_EQ(mine.losses, outcome.losses);
      EXPECT_EQ(mine.norms, outcome.norms);
    }
  });
  return outcome;
}

}  // namespace shoal::test
