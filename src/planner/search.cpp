#include "planner/search.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <numeric>
#include <set>

#include "config/layout.h"
#include "core/error.h"
#include "parallel/pipeline/stages.h"
#include "planner/stage_fit.h"
#include "planner/trials.h"
#include "planner/typical_cpu.h"

namespace shoal {
namespace {

std::vector<int> divisors(int n) {
  std::vector<int> all;
  for (int i = 1; i <= n; ++i) {
    if (n % i == 0) all.push_back(i);
  }
  return all;
}

// The choices of one key: the config's value where it is given, else all.
template <typename T>
std::vector<T> choices(const Config& config, const char* key, T value, std::vector<T> all) {
  return config.given.contains(key) ? std::vector<T>{value} : all;
}

class Search {
 public:
  Search(const Config& config, int ranks, Machine& machine)
      : config_(config),
        ranks_(ranks),
        machine_(machine),
        predict_(machine),
        limit_(config.plan.memory_gib > 0 ? config.plan.memory_gib * (1 << 30) : machine.memory_of_rank()),
        fit_(machine, limit_) {
    config_.fixed = {};
    result_.limit = limit_;
  }

  SearchResult run() {
    if (rests_on_host() && !machine_.measures())
      fail_user(
          "parallel.offload = \"host\" has a prediction on this machine alone, not on a described cluster");
    enumerate();
    if (candidates_.empty() && may_offload()) {
      config_.parallel.offload = Offload::host;
      result_.considered = result_.too_large = 0;
      problem_.clear();
      enumerate();
      if (candidates_.empty() && !problem_.empty()) fail_user("no layout fits on the GPU, and {}", problem_);
    }
    if (candidates_.empty() && !result_.smallest) {
      if (problem_.empty()) check_ranks(config_.parallel, ranks_);
      fail_user("no layout of {} rank{} satisfies the config{}", ranks_, ranks_ == 1 ? "" : "s",
                problem_.empty() ? "" : ": " + problem_);
    }
    order();
    evaluate();
    const bool on_cpu = config_.train.backend != BackendKind::cuda;
    if (machine_.measures() && on_cpu && config_.train.threads == 0) try_fewer_threads();
    std::ranges::stable_sort(result_.plans, {}, seconds_of);
    try_plans(result_.plans, machine_);
    return std::move(result_);
  }

 private:
  static double seconds_of(const RankedPlan& plan) { return plan.prediction.seconds(); }

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
        with_mesh(stages, data, tensor);
      }
    }
  }

  void with_mesh(int stages, int data, int tensor) {
    const auto& given = config_.parallel;
    const auto sequence =
        tensor > 1 ? choices(config_, "parallel.sequence", int{given.sequence}, {0, 1}) : std::vector<int>{0};
    // On one rank stages 2 and 3 decide what rests on the host beside the optimizer's state.
    const auto zero = data > 1          ? choices(config_, "parallel.zero", given.zero, {0, 1, 2, 3})
                      : rests_on_host() ? choices(config_, "parallel.zero", given.zero, {0, 2, 3})
                                        : std::vector<int>{given.zero};
    std::vector<int> micro;
    try {
      micro = micro_batches(data);
    } catch (const UserError& error) {
      return refuse(error.what());
    }
    std::vector<std::pair<int, int>> sharding;  // the ZeRO stage and the number of replicas
    for (const int stage : zero) {
      sharding.emplace_back(stage, given.replicate);
      const int hosts = hosts_of_data(data, tensor);
      if (stage > 0 && hosts > 1 && !config_.given.contains("parallel.replicate"))
        sharding.emplace_back(stage, hosts);
    }
    for (const int share : sequence) {
      for (const auto& [stage, replicate] : sharding) {
        for (const int size : micro) {
          for (const auto& [schedule, chunks] : schedules(stages)) {
            Config config = config_;
            auto& p = config.parallel;
            p.pipeline = stages;
            p.data = data;
            p.tensor = tensor;
            p.sequence = share != 0;
            p.zero = stage;
            p.replicate = replicate;
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

  // The sizes of micro-batches to try: every data rank gets equally many of them. With layout determinism the
  // run's bits depend on the size, so the planner does not choose it.
  std::vector<int> micro_batches(int data) const {
    Config config = config_;
    auto& size = config.train.micro_batch;
    const bool fixed = config.run.deterministic == Determinism::layout;
    if (fixed && size == 0) size = default_micro_batch(data);
    check_shares(config, data, "data ranks");
    return size > 0 ? std::vector<int>{size} : divisors(config.train.global_batch / data);
  }

  // Keeps why the first layout is none: that of plain data ranks, where nothing else is given.
  void refuse(const std::string& problem) {
    if (problem_.empty()) problem_ = problem;
  }

  bool rests_on_host() const {
    return config_.train.backend == BackendKind::cuda && config_.parallel.offload == Offload::host;
  }
  // State that rests on the host makes a step longer, so it is for models that do not fit otherwise.
  bool may_offload() const {
    return config_.train.backend == BackendKind::cuda && machine_.measures() &&
           !config_.given.contains("parallel.offload");
  }

  // The default of data ranks alone: one rank, or those of gossip's workers.
  int default_micro_batch(int data) const {
    Config config = config_;
    config.parallel = {};
    config.parallel.engine = config_.parallel.engine;
    const int models_per_host = std::max(1, machine_.ranks_per_host() / (ranks_ / data));
    resolve_layout(config, config.parallel.engine == EngineKind::gossip ? data : 1, models_per_host);
    return config.train.micro_batch;
  }

  // Over how many hosts data ranks spread, as many on each; 1 where they do not divide so.
  int hosts_of_data(int data, int tensor) const {
    const int here = machine_.ranks_per_host() / tensor;
    return here > 1 && data > here && data % here == 0 ? data / here : 1;
  }

  std::vector<std::pair<ScheduleKind, int>> schedules(int stages) const {
    const auto& given = config_.parallel;
    if (stages == 1) return {{given.schedule, 1}};
    const bool kind = config_.given.contains("parallel.schedule"),
               chunks_too = config_.given.contains("parallel.chunks"),
               some_chunks = kind && !chunks_too && given.schedule == ScheduleKind::interleaved;
    if ((kind || chunks_too) && !some_chunks) return {{given.schedule, given.chunks}};
    std::vector<std::pair<ScheduleKind, int>> all;
    if (!some_chunks) all.emplace_back(ScheduleKind::one_f_one_b, 1);
    for (const int chunks : {2, 4}) {
      if (stages * chunks <= config_.model.n_layer && given.stages.empty())
        all.emplace_back(ScheduleKind::interleaved, chunks);
    }
    return all;
  }

  // Recomputing more never makes a step faster, so that of each kind the fewest blocks that fit are of
  // interest, and none where everything fits.
  void with_recompute(Config& config) {
    const auto kinds = choices(config_, "train.recompute", config_.train.recompute,
                               {Recompute::none, Recompute::gelu, Recompute::light, Recompute::block});
    config.train.recompute = kinds.front();  // a layout that is valid with it is so with the others
    RunPlan plan;
    try {
      resolve_layout(config, ranks_, machine_.ranks_per_host());
      validate(config);
      plan = make_plan(config);
    } catch (const UserError& error) {
      return refuse(error.what());
    }
    for (const auto recompute : kinds) {
      Candidate all{.config = config, .plan = plan};
      all.config.train.recompute = all.plan.pipeline.recompute = recompute;
      if (rests_on_host() && !fits_host(all.plan, machine_)) {
        return refuse("parallel.offload = \"host\" needs more of the host's memory than is available");
      }
      ++result_.considered;
      const auto& smallest = result_.smallest;
      all.memory = smallest
                       ? memory_of_rank(all.plan, machine_, std::max(limit_, smallest->prediction.memory))
                       : memory_of_rank(all.plan, machine_);
      const bool fits = all.memory <= limit_;
      if (fits && (recompute == Recompute::none || !counts_are_free())) {
        candidates_.push_back(std::move(all));
        return;
      }
      if (auto other = fits ? recomputing_less(all) : cut_by_memory(all)) {
        candidates_.push_back(std::move(*other));
        continue;
      }
      ++result_.too_large;
      if (!smallest || all.memory < smallest->prediction.memory) {
        result_.smallest = ranked(std::move(all), {});
      }
    }
  }

  bool counts_are_free() const {
    return !config_.given.contains("train.recompute") && config_.train.recompute_blocks.empty();
  }
  bool cut_is_free(const RunPlan& plan) const {
    return !plan.ranges.empty() && config_.parallel.stages.empty();
  }

  // Threads that share a memory's bandwidth may be too many. Adds the fastest layout with fewer, as long as
  // that makes it faster.
  void try_fewer_threads() {
    if (result_.plans.empty()) return;
    RankedPlan best = *std::ranges::min_element(result_.plans, {}, seconds_of);
    for (int threads = machine_.threads_of(best.plan) / 2; threads > 0; threads /= 2) {
      RankedPlan other = best;
      other.config.train.threads = other.plan.threads = threads;
      if (!predict_.ready(other.plan)) return;
      other.prediction = predict_(other.plan);
      other.prediction.memory = memory_of_rank(other.plan, machine_);
      if (other.prediction.seconds() >= best.prediction.seconds()) return;
      result_.plans.push_back(other);
      best = std::move(other);
    }
  }

  // The layout with another cut of its blocks; nullopt where it does not fit.
  std::optional<Candidate> with_cut(const Candidate& candidate, const StageCut& cut) const {
    Candidate other{.config = candidate.config, .plan = {}, .memory = 0, .guess = candidate.guess};
    if (cut.blocks != blocks_of_ranges(candidate.plan)) other.config.parallel.stages = cut.blocks;
    auto& counts = other.config.train.recompute_blocks;
    if (counts_are_free()) {
      counts = cut.recomputed;
      if (std::ranges::all_of(counts, [](int count) { return count == 0; })) {
        other.config.train.recompute = Recompute::none;
      }
      if (other.config.train.recompute == Recompute::none || counts == cut.blocks) counts.clear();
    }
    other.plan = make_plan(other.config);
    other.memory = memory_of_rank(other.plan, machine_);
    if (other.memory > limit_) return std::nullopt;
    return other;
  }

  // The same stages with the fewest blocks recomputed; nullopt where they do not fit.
  std::optional<Candidate> recomputing_less(const Candidate& candidate) const {
    const auto cut = fit_.fewest_recomputed(candidate.plan);
    return cut ? with_cut(candidate, *cut) : std::nullopt;
  }

  // A layout that does not fit may do so with stages of other lengths.
  std::optional<Candidate> cut_by_memory(const Candidate& candidate) const {
    const auto& plan = candidate.plan;
    if (!cut_is_free(plan) || candidate.config.parallel.chunks > 1) return std::nullopt;
    const auto costs = unit_costs(plan.model);
    const auto cut = fit_.best_cut(plan, {.embedding = costs.front(),
                                          .block = costs[1],
                                          .head = costs.back(),
                                          .recomputed = 4.0 / 3 * costs[1]});
    return cut ? with_cut(candidate, *cut) : std::nullopt;
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
    if (machine_.measures()) {
      TypicalCpu typical(machine_);
      Predictor guess(typical);
      for (auto& candidate : candidates_) candidate.guess = guess(candidate.plan).seconds();
    } else {
      for (auto& candidate : candidates_) candidate.guess = predict_.bound(candidate.plan);
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
        result_.plain_data_left_out |= is_plain_data(candidate.plan);
        continue;
      }
      if (!predict_.ready(candidate.plan)) {
        ++result_.unmeasured;
        result_.plain_data_left_out |= is_plain_data(candidate.plan);
        continue;
      }
      auto prediction = predict_(candidate.plan);
      if (fastest.empty() || prediction.seconds() < *fastest.begin()) best_guess = candidate.guess;
      for (const auto& cut : other_cuts(candidate, prediction.seconds())) {
        auto other = with_cut(candidate, cut);
        if (!other) continue;
        auto its = predict_(other->plan);
        if (its.seconds() < prediction.seconds()) {
          candidate = std::move(*other);
          prediction = std::move(its);
        }
      }
      // Candidates of several kinds of recomputation may end as one layout that needs none.
      if (std::ranges::any_of(result_.plans, [&](const auto& p) { return p.plan == candidate.plan; }))
        continue;
      fastest.insert(prediction.seconds());
      if (std::ssize(fastest) > SearchResult::kListed) fastest.erase(std::prev(fastest.end()));
      result_.plans.push_back(ranked(std::move(candidate), std::move(prediction)));
    }
  }

  // Cuts that may be faster than the candidate's, whose step takes `seconds`: the best by predicted times,
  // and all where they are few, but those whose slowest stage alone takes longer.
  std::vector<StageCut> other_cuts(const Candidate& candidate, double seconds) {
    constexpr std::size_t kFew = 16;
    RunPlan plan = candidate.plan;
    if (!cut_is_free(plan)) return {};
    const auto units = predict_.unit_seconds(plan);
    std::vector<double> times(static_cast<std::size_t>(plan.model.n_layer) + 2, units.block);
    times.front() = units.embedding;
    times.back() = units.head;
    plan.pipeline.recompute_blocks.clear();
    std::vector<StageCut> cuts;
    const auto add = [&](const std::vector<UnitRange>& ranges) {
      if (ranges == candidate.plan.ranges) return;
      for (const auto& [begin, end] : ranges) {
        const double stage = std::accumulate(times.begin() + begin, times.begin() + end, 0.0);
        if (plan.pipeline.micro_batches * stage >= seconds) return;
      }
      plan.ranges = ranges;
      if (auto cut = fit_.fewest_recomputed(plan)) cuts.push_back(std::move(*cut));
    };
    if (candidate.config.parallel.chunks == 1) {
      const auto best = fit_.best_cut(plan, units);
      if (best &&
          *best != StageCut{blocks_of_ranges(candidate.plan), candidate.plan.pipeline.recompute_blocks})
        cuts.push_back(*best);
      for (const auto& ranges : all_cuts(plan, kFew)) add(ranges);
    } else {
      add(balanced_ranges(times, static_cast<int>(plan.ranges.size())));
    }
    return cuts;
  }

  Config config_;
  int ranks_;
  Machine& machine_;
  Predictor predict_;
  double limit_;  // bytes of a rank
  StageFit fit_;
  SearchResult result_;
  std::vector<Candidate> candidates_;
  std::string problem_;
};

}  // namespace

bool is_plain_data(const RunPlan& plan) { return plan.ranks_of_model() == 1 && plan.engine.zero == 0; }

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
  if (p.replicate > 1) add("parallel.replicate", std::to_string(p.replicate));
  if (p.offload != Offload::none)
    add("parallel.offload", std::string(name_of_choice(config, "parallel.offload")));
  add("train.micro_batch", std::to_string(config.train.micro_batch));
  if (config.train.recompute != Recompute::none)
    add("train.recompute", std::string(name_of_choice(config, "train.recompute")));
  if (!config.train.recompute_blocks.empty())
    add("train.recompute_blocks", fmt::format("{}", fmt::join(config.train.recompute_blocks, ",")));
  if (config.train.threads > 0) add("train.threads", std::to_string(config.train.threads));
  return fmt::format("{}", fmt::join(all, " "));
}

}  // namespace shoal
