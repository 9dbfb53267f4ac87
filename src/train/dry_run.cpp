#include "train/dry_run.h"

#include <fmt/format.h>

#include <algorithm>

#include "model/arena.h"
#include "ops/dry/dry_backend.h"
#include "parallel/data_engine.h"
#include "train/layout.h"
#include "train/memory.h"

namespace shoal {
namespace {

// What a rank of the trainer has for its steps.
class DryRank {
 public:
  DryRank(const Config& config, int ranks, int rank)
      : config_(config),
        recording_(ranks, rank),
        engine_(make_data_engine(backend_, recording_.ranks(), to_gpt_config(config.model), options(config))),
        model_(backend_, *engine_, to_gpt_config(config.model), gpt_options(config)),
        arena_(backend_, take_batch(measure_, config)) {
    take_batch(arena_, config);
    engine_->initialize(0);
  }

  // What a step sends depends on what the one before has left in place, so the second one counts.
  DryRun::Rank second_step() {
    step(0);
    recording_.clear();
    const double before = backend_.flops();
    step(1);
    return {.ranks = {recording_.ranks().rank()},
            .passes = engine_->passes(),
            .flops = backend_.flops() - before,
            .allocated = backend_.most_allocated(),
            .traffic = recording_.totals(),
            .links = recording_.links(),
            .bytes = recording_.bytes()};
  }

 private:
  // State on disk changes nothing of what is sent, and needs a file.
  static EngineOptions options(const Config& config) {
    auto options = engine_options(config);
    options.offload.clear();
    return options;
  }

  std::size_t take_batch(Arena& arena, const Config& config) {
    const Shape shape{config.train.micro_batch, config.model.block_size};
    tokens_ = arena.take(DType::i32, shape);
    targets_ = arena.take(DType::i32, shape);
    losses_ = arena.take(DType::f64, {config.train.global_batch / config.train.micro_batch});
    return arena.used();
  }

  void step(std::int64_t step) {
    engine_->begin_step(step);
    for (int pass = 0; pass < engine_->passes(); ++pass) {
      model_.train({.tokens = tokens_, .targets = targets_, .address = {.step = step}},
                   {losses_.data, DType::f64, {1}}, 1.0f);
    }
    engine_->gradient_norm();
    recording_.ranks().set_purpose(fmt::format("step {}, losses", step + 1));
    // With them, whether a rank got one of two signals.
    recording_.ranks().all_reduce({nullptr, DType::f64, {losses_.count() + 2}}).wait();
    engine_->update(config_.optim.lr, step + 1);
  }

  const Config& config_;
  DryBackend backend_;
  Recording recording_;
  std::unique_ptr<DataEngine> engine_;
  Gpt model_;
  Tensor tokens_, targets_, losses_;
  Arena measure_, arena_;
};

bool alike(const DryRun::Rank& a, const DryRun::Rank& b) {
  const auto same = [](const Recording::Total& x, const Recording::Total& y) {
    return x.collective == y.collective && x.matter == y.matter && x.calls == y.calls && x.bytes == y.bytes;
  };
  return a.passes == b.passes && a.flops == b.flops && a.allocated == b.allocated && a.bytes == b.bytes &&
         std::equal(a.traffic.begin(), a.traffic.end(), b.traffic.begin(), b.traffic.end(), same);
}

}  // namespace

DryRun dry_run(const Config& config, int ranks, int ranks_per_host) {
  DryRun result;
  std::map<int, std::int64_t> leaving;  // by host
  for (int rank = 0; rank < ranks; ++rank) {
    auto one = DryRank(config, ranks, rank).second_step();
    for (const auto& [to, bytes] : one.links) {
      if (ranks_per_host > 0 && to / ranks_per_host != rank / ranks_per_host) {
        leaving[rank / ranks_per_host] += bytes;
      }
    }
    const auto like = std::find_if(result.ranks.begin(), result.ranks.end(),
                                   [&](const DryRun::Rank& other) { return alike(one, other); });
    if (like != result.ranks.end()) {
      like->ranks.push_back(rank);
    } else {
      result.ranks.push_back(std::move(one));
    }
  }
  for (const auto& [host, bytes] : leaving) result.host_bytes = std::max(result.host_bytes, bytes);
  return result;
}

}  // namespace shoal
