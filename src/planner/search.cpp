#include "planner/search.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <set>

#include "config/layout.h"
#include "core/error.h"
#include "parallel/pipeline/stages.h"
#include "planner/described_machine.h"

namespace shoal {
namespace {

std::vector<int> divisors(int n) {
  std::vector<int> all;
  for (int i = 1; i <= n; ++i) {
    if (n % i == 0) all.push_back(i);
  }
  return all;
}

// A CPU that nobody has measured, to decide in which order layouts are measured.
Cluster typical_cpu(int ranks) {
  Cluster cpu{.name = "typical CPU", .devices_per_host = ranks, .memory = 1e18};
  cpu.peak_float32 = 1e11;
  cpu.peak_bfloat16 = 2e11;
  cpu.bandwidth = 1e10;
  cpu.launch = 2e-6;
  cpu.product = cpu.attention = cpu.streaming = 1;
  cpu.inside = cpu.between = {.latency = 1e-5, .bandwidth = 4e9};
  return cpu;
}

// The choices of one key: the config's value where it is given, else all.
template <typename T>
std::vector<T> choices(const Config& config, const char* key, T value, std::vector<T> all) {
  return config.given.contains(key) ? std::vector<T>{value} : all;
}

class Search {
 public:
  Search(const Config& config, int ranks, Machine& machine)
      : config_(config), ranks_(ranks), machine_(machine), predict_(machine) {
    config_.fixed = {};
    const double limit = config.plan.memory_gib * (1 << 30);
    result_.limit = limit > 0 ? limit : machine.memory_of_rank();
  }

  SearchResult run() {
    enumerate();
    if (candidates_.empty() && !result_.smallest) {
      fail_user("no layout of {} rank{} satisfies the config{}", ranks_, ranks_ == 1 ? "" : "s",
                problem_.empty() ? "" : ": " + problem_);
    }
    order();
    evaluate();
    std::ranges::stable_sort(result_.plans, {}, [](const RankedPlan& p) { return p.prediction.seconds(); });
    return std::move(result_);
  }

 private:
  struct Candidate {
    Config config;
    RunPlan plan;
    double memory = 0;  // bytes of a rank
    double guess = 0;   // seconds: a bound, or those of a typical machine
  };

  void enumerate() {
    const auto& given = config_.parallel;
    const int instance = config_.plan.instance_ranks;
    for (const int stages : choices(config_, "parallel.pipeline", given.pipeline, divisors(ranks_))) {
      if (stages > config_.model.n_layer) continue;
      for (const int tensor : choices(config_, "parallel.tensor", given.tensor, divisors(ranks_))) {
        const std::int64_t per_model = std::int64_t{stages} * tensor;
        if (per_model > ranks_ || ranks_ % per_model != 0) continue;
        if (instance > 0 && per_model != instance) continue;
        const int data = static_cast<int>(ranks_ / per_model);
        if (given.data > 0 && config_.given.contains("parallel.data") && given.data != data) continue;
        if (config_.train.global_batch % data != 0) continue;
        with_mesh(stages, data, tensor);
      }
    }
  }

  void with_mesh(int stages, int data, int tensor) {
    const auto& given = config_.parallel;
    const auto sequence =
        tensor > 1 ? choices(config_, "parallel.sequence", int{given.sequence}, {0, 1}) : std::vector<int>{0};
    const auto zero =
        data > 1 ? choices(config_, "parallel.zero", given.zero, {0, 1, 2, 3}) : std::vector<int>{given.zero};
    const auto micro = choices(config_, "train.micro_batch", config_.train.micro_batch,
                               divisors(config_.train.global_batch / data));
    for (const int share : sequence) {
      for (const int stage : zero) {
        for (const int size : micro) {
          if (size == 0 || config_.train.global_batch % size != 0) continue;
          if (config_.train.global_batch / size % data != 0) continue;
          for (const auto& [schedule, chunks] : schedules(stages)) {
            Config config = config_;
            auto& p = config.parallel;
            p.pipeline = stages;
            p.data = data;
            p.tensor = tensor;
            p.sequence = share != 0;
            p.zero = stage;
            p.schedule = schedule;
            p.chunks = chunks;
            p.plan = PlanKind::manual;
            config.train.micro_batch = size;
            with_recompute(config);
          }
        }
      }
    }
  }

  std::vector<std::pair<ScheduleKind, int>> schedules(int stages) const {
    const auto& given = config_.parallel;
    if (stages == 1) return {{given.schedule, 1}};
    if (config_.given.contains("parallel.schedule") || config_.given.contains("parallel.chunks"))
      return {{given.schedule, given.chunks}};
    std::vector<std::pair<ScheduleKind, int>> all = {{ScheduleKind::one_f_one_b, 1}};
    for (const int chunks : {2, 4}) {
      if (stages * chunks <= config_.model.n_layer && given.stages.empty())
        all.emplace_back(ScheduleKind::interleaved, chunks);
    }
    return all;
  }

  // Recomputing more never makes a step faster, so only the least that fits is of interest.
  void with_recompute(Config& config) {
    for (const auto recompute :
         choices(config_, "train.recompute", config_.train.recompute,
                 {Recompute::none, Recompute::gelu, Recompute::light, Recompute::block})) {
      config.train.recompute = recompute;
      Candidate candidate;
      try {
        Config resolved = config;
        resolve_layout(resolved, ranks_);
        if (resolved.train.micro_batch != config.train.micro_batch) return;
        validate(resolved);
        candidate.plan = make_plan(resolved);
        candidate.config = std::move(resolved);
      } catch (const UserError& error) {
        problem_ = error.what();
        return;
      }
      ++result_.considered;
      candidate.memory = memory_of_rank(candidate.plan, machine_);
      if (candidate.memory <= result_.limit) {
        candidates_.push_back(std::move(candidate));
        return;
      }
      ++result_.too_large;
      if (!result_.smallest || candidate.memory < result_.smallest->prediction.memory) {
        result_.smallest = ranked(std::move(candidate), {});
      }
    }
  }

  static RankedPlan ranked(Candidate&& candidate, Prediction&& prediction) {
    prediction.memory = candidate.memory;
    return {.config = std::move(candidate.config),
            .plan = std::move(candidate.plan),
            .prediction = std::move(prediction)};
  }

  // On a described machine by bounds, which cost little; where parts have to be measured, by the promise that
  // a typical machine gives.
  void order() {
    DescribedMachine typical(typical_cpu(ranks_));
    Predictor guess(typical);
    for (auto& candidate : candidates_) {
      candidate.guess =
          machine_.measures() ? guess(candidate.plan).seconds() : predict_.bound(candidate.plan);
    }
    std::ranges::stable_sort(candidates_, {}, &Candidate::guess);
  }

  // With bounds the fastest are found for certain. Of layouts that have to be measured those are left out
  // that would have to be much faster than guessed.
  void evaluate() {
    constexpr double kDoubt = 1.6;
    std::multiset<double> fastest;
    double best_guess = 0;
    for (auto& candidate : candidates_) {
      const bool full = std::ssize(fastest) == SearchResult::kListed;
      if (machine_.measures() ? best_guess > 0 && candidate.guess > kDoubt * best_guess
                              : full && candidate.guess > *fastest.rbegin()) {
        ++result_.pruned;
        continue;
      }
      if (!predict_.ready(candidate.plan)) {
        ++result_.unmeasured;
        continue;
      }
      auto prediction = predict_(candidate.plan);
      if (fastest.empty() || prediction.seconds() < *fastest.begin()) best_guess = candidate.guess;
      if (auto other = cut_by_times(candidate)) {
        auto its = predict_(other->plan);
        if (its.seconds() < prediction.seconds()) {
          candidate = std::move(*other);
          prediction = std::move(its);
        }
      }
      fastest.insert(prediction.seconds());
      if (std::ssize(fastest) > SearchResult::kListed) fastest.erase(std::prev(fastest.end()));
      result_.plans.push_back(ranked(std::move(candidate), std::move(prediction)));
    }
  }

  // The layout with stages that are balanced by predicted times, where that is another cut than by FLOPs, and
  // the config leaves the cut open.
  std::optional<Candidate> cut_by_times(const Candidate& candidate) {
    const auto& ranges = candidate.plan.ranges;
    if (ranges.empty() || !config_.parallel.stages.empty()) return std::nullopt;
    const auto cut = balanced_ranges(predict_.unit_seconds(candidate.plan), static_cast<int>(ranges.size()));
    if (cut == ranges) return std::nullopt;
    Candidate other{.config = candidate.config, .plan = {}, .memory = 0, .guess = candidate.guess};
    const int head = candidate.plan.model.n_layer + 1;
    for (const auto& [begin, end] : cut) {
      other.config.parallel.stages.push_back(std::min(end, head) - std::max(begin, 1));
    }
    other.plan = make_plan(other.config);
    other.memory = memory_of_rank(other.plan, machine_);
    if (other.memory > result_.limit) return std::nullopt;
    return other;
  }

  Config config_;
  int ranks_;
  Machine& machine_;
  Predictor predict_;
  SearchResult result_;
  std::vector<Candidate> candidates_;
  std::string problem_;
};

}  // namespace

SearchResult search_plans(const Config& config, int ranks, Machine& machine) {
  return Search(config, ranks, machine).run();
}

std::string layout_arguments(const Config& config) {
  const auto& p = config.parallel;
  std::vector<std::string> all;
  const auto add = [&](const char* key, const std::string& value) {
    all.push_back(fmt::format("{}={}", key, value));
  };
  if (p.pipeline > 1) {
    add("parallel.pipeline", std::to_string(p.pipeline));
    add("parallel.schedule", std::string(name_of(p.schedule)));
    if (p.chunks > 1) add("parallel.chunks", std::to_string(p.chunks));
  }
  if (!p.stages.empty()) add("parallel.stages", fmt::format("{}", fmt::join(p.stages, ",")));
  if (p.tensor > 1) add("parallel.tensor", std::to_string(p.tensor));
  if (p.sequence) add("parallel.sequence", "true");
  if (p.zero > 0) add("parallel.zero", std::to_string(p.zero));
  add("train.micro_batch", std::to_string(config.train.micro_batch));
  if (config.train.recompute != Recompute::none)
    add("train.recompute", std::string(name_of_choice(config, "train.recompute")));
  return fmt::format("{}", fmt::join(all, " "));
}

}  // namespace shoal
