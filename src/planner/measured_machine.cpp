#include "planner/measured_machine.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <iterator>
#include <sstream>
#include <system_error>

#include "config/memory.h"
#include "core/clock.h"
#include "core/cores.h"
#include "core/error.h"
#include "core/hash.h"
#include "core/host.h"
#include "planner/prediction.h"

namespace shoal {
namespace {

constexpr int kMostActive = 16;            // ranks that are measured side by side, as threads
constexpr double kLargestCall = 64 << 20;  // bytes
constexpr double kStepsOfTrials = 100, kMostTrialSeconds = 300;

constexpr double kFlopsOfParameter = kSamplePasses * 6;  // for a token

double block_parameters(const GptConfig& model) { return 12.0 * model.n_embd * model.n_embd; }

// Samples with more tokens are measured with fewer, since their time is proportional to them there: the
// fewer, the wider the model is.
std::int64_t sample_tokens(const GptConfig& model) {
  constexpr double kFlops = 3e11;
  const double parameters =
      2 * block_parameters(model) + static_cast<double>(model.vocab_size) * model.n_embd;
  return std::clamp<std::int64_t>(std::llround(kFlops / (kFlopsOfParameter * parameters)), 512, 2048);
}

// Caches hold more of the activations of two blocks than of many. A small model's sample has all of its
// blocks; a stage has fewer, but holds the activations of more micro-batches. A large model's two are more
// than caches hold.
int sample_blocks(const GptConfig& model, std::int64_t tokens) {
  constexpr double kFlops = 1.5e11;
  const double fit = kFlops / (kFlopsOfParameter * block_parameters(model) * static_cast<double>(tokens));
  return std::max(2, static_cast<int>(std::min<double>(model.n_layer, fit)));
}

// Seconds on a log-log line through points of ascending bytes; behind the last, proportional to the bytes.
double interpolate(const std::vector<std::pair<double, double>>& points, double at) {
  if (at <= points.front().first) return points.front().second;
  if (at >= points.back().first) return points.back().second * at / points.back().first;
  const auto above = std::ranges::find_if(points, [&](const auto& point) { return point.first >= at; });
  const auto below = std::prev(above);
  const double share = std::log(at / below->first) / std::log(above->first / below->first);
  return below->second * std::pow(above->second / below->second, share);
}

const char* name_of(GroupCall::Kind kind) {
  constexpr const char* kNames[] = {"all_reduce", "reduce_scatter", "all_gather",
                                    "all_to_all", "broadcast",      "message"};
  return kNames[static_cast<std::size_t>(kind)];
}

// The hosts and cores of a job's ranks, in their order, as a number: another order or another host has other
// links. Collective.
std::uint64_t placement_of(Communicator& ranks) {
  std::vector<std::uint64_t> all(static_cast<std::size_t>(ranks.size()));
  auto mine = fnv1a(fmt::format("{} {}", host_name(), fmt::join(allowed_core_numbers(), " ")));
  ranks.all_gather({all.data(), DType::i32, {2 * std::int64_t{ranks.size()}}}, {&mine, DType::i32, {2}})
      .wait();
  return fnv1a({reinterpret_cast<const char*>(all.data()), all.size() * sizeof(all[0])});
}

std::string machine_key(int cores, const std::string& hosts) {
  auto key = fmt::format("6 {}, {}, {} cores,{}", processor_name(), name_of(cpu_level()), cores, hosts);
  std::ranges::replace(key, '=', ' ');
  return key;
}

// Frozen units and adapters; empty for a model that is trained whole.
std::string trained_text(const GptConfig& model) {
  std::string text;
  if (!model.frozen.empty()) text += fmt::format(", frozen {}", fmt::join(model.frozen, " "));
  if (model.lora.rank == 0) return text;
  text += fmt::format(", adapters {} {}", model.lora.rank, fmt::join(model.lora.targets, " "));
  return text + (model.lora.dropout > 0 ? " dropout" : "");
}

// The optimizer's tensors, and the steps of Newton and Schulz where they are not the default.
std::string optimizer_key(const RunPlan& plan) {
  std::string text = std::to_string(plan.optimizer_tensors());
  if (make_optimizer(plan.engine.optimizer)->takes_whole_matrices()) text += " of matrices";
  const auto* muon = std::get_if<MuonConfig>(&plan.engine.optimizer);
  if (muon && muon->steps != MuonConfig().steps) text += fmt::format(" in {} steps", muon->steps);
  return text;
}

// Whether tensor ranks have different shares. Padded classes are computed like others.
bool has_uneven_shares(const RunPlan& plan) {
  const int ranks = plan.mesh.tensor;
  const TensorRank first{.rank = 0, .size = ranks}, last{.rank = ranks - 1, .size = ranks};
  const auto differ = [&](const auto& share) { return share(plan.model, first) != share(plan.model, last); };
  return differ([](auto& model, auto& rank) { return local_heads(model, rank).count(); }) ||
         differ([](auto& model, auto& rank) { return local_hidden(model, rank).count(); }) ||
         differ([](auto& model, auto& rank) { return padded_vocabulary(model, rank); });
}

constexpr double kShareOfGpu = 0.97;  // the rest is for fragments

// The backend, where it is another than the cpu's.
const char* backend_text(BackendKind backend) {
  return backend == BackendKind::cuda        ? ", on cuda"
         : backend == BackendKind::reference ? ", on reference"
                                             : "";
}

// Types that are not float32.
std::string narrow_text(const RunPlan& plan) {
  const auto text = [](DType type, std::string_view what) {
    return type == DType::f32 ? "" : fmt::format(", {} {}", what, name_of(type));
  };
  return text(plan.engine.reduced, "reduced in") + text(plan.pipeline.stream, "stream in") +
         text(plan.engine.gradients, "gradients in");
}

std::string cores_text(int cores) { return fmt::format("{} core{}", cores, cores == 1 ? "" : "s"); }

}  // namespace

std::filesystem::path MeasuredMachine::default_cache() {
  const auto folder = cache_folder();
  if (folder.empty()) return {};
  std::error_code ignored;
  std::filesystem::create_directories(folder, ignored);
  return folder / "calibration";
}

MeasuredMachine::MeasuredMachine(int ranks, MeasuringOptions options)
    : run_([](int count, const RankBody& body) { run_threads({.ranks = count}, body); }),
      ranks_(ranks),
      cores_(usable_cores()),
      ranks_per_host_(ranks),
      options_(std::move(options)),
      cache_(options_.cache),
      name_(fmt::format("this machine ({}, {})", processor_name(), cores_text(cores_))),
      key_(machine_key(cores_, "")),
      memory_(0.8 * available_memory() / ranks) {
  if (!options_.gpu) return;
  if (ranks > 1) fail("the planner measures one GPU, not {}", ranks);
  name_ = fmt::format("this machine's {}", options_.gpu->name);
  key_ = machine_key(cores_, fmt::format(", {} with CUDA {}", options_.gpu->name, cuda_version()));
  memory_ = kShareOfGpu * static_cast<double>(options_.gpu->bytes);
}

MeasuredMachine::MeasuredMachine(World& world, MeasuringOptions options)
    : world_(&world),
      run_([&world](int, const RankBody& body) { body(world); }),
      ranks_(world.ranks.size()),
      options_(std::move(options)),
      cache_(options_.cache) {
  // Every rank takes the least of all: with values of their own, ranks would search different layouts.
  std::array<double, 3> least = {0.8 * available_memory() / world.local_size, 1.0 * world.local_size,
                                 1.0 * world.cores};
  world.ranks.all_reduce({least.data(), DType::f64, {std::ssize(least)}}, ReduceOp::min).wait();
  memory_ = least[0];
  ranks_per_host_ = static_cast<int>(least[1]);
  cores_ = static_cast<int>(least[2]);
  name_ = fmt::format("this job ({}; {}, {} each)", world.where, processor_name(), cores_text(cores_));
  key_ = machine_key(cores_, fmt::format(", {} placed {:x}", world.where, placement_of(world.ranks)));
}

int MeasuredMachine::threads_of(const RunPlan& plan) const {
  if (plan.threads > 0) return plan.threads;
  return world_ ? cores_ : std::max(1, cores_ / ranks_);
}

std::vector<double> MeasuredMachine::agreed(std::vector<double> values) const {
  if (!world_) return values;
  auto count = static_cast<std::int32_t>(values.size());
  world_->ranks.broadcast({&count, DType::i32, {1}}, 0).wait();
  values.resize(static_cast<std::size_t>(count));
  world_->ranks.broadcast({values.data(), DType::f64, {count}}, 0).wait();
  return values;
}

std::vector<double> MeasuredMachine::find(const std::string& key) const {
  std::istringstream in((options_.again ? std::nullopt : cache_.find(key)).value_or(""));
  std::vector<double> numbers(std::istream_iterator<double>(in), {});
  const bool valid = std::ranges::all_of(numbers, [](double x) { return x >= 0 && std::isfinite(x); });
  return valid ? numbers : std::vector<double>();
}

const std::vector<double>& MeasuredMachine::kept(const std::string& key,
                                                 const std::function<std::vector<double>()>& make) {
  auto& known = kept_[key];
  if (!known.empty()) return known;
  const auto full_key = key_ + "; " + key;
  known = agreed(find(full_key));
  if (!known.empty()) return known;
  known = agreed(make());
  ++measured_;
  if (!world_ || world_->ranks.rank() == 0) keep(key, known);
  return known;
}

void MeasuredMachine::keep(const std::string& key, const std::vector<double>& numbers) {
  const auto keep_none = [](std::string_view) { return false; };
  const auto full_key = key_ + "; " + key, text = fmt::format("{}", fmt::join(numbers, " "));
  cache_.find_or_make(full_key, keep_none, [&] { return text; });
  saved_ = saved_ && cache_.find(full_key) == text;
}

void MeasuredMachine::measure_collectives() {
  using Kind = GroupCall::Kind;
  if (ranks_ < 2) return;
  curve({.kind = Kind::message, .ranks = 2});
  for (int ranks = 2; ranks <= ranks_; ++ranks) {
    if (ranks_ % ranks != 0) continue;
    for (const auto kind : {Kind::all_reduce, Kind::reduce_scatter, Kind::all_gather})
      curve({.kind = kind, .ranks = ranks});
  }
}

MeasuredMachine::Scaled MeasuredMachine::scaled(const RunPlan& wanted) const {
  Scaled result{.sample = wanted, .key = {}};
  auto& sample = result.sample;
  if (!sample.engine.layout_exact && !sample.engine.on_host) {
    sample.mesh.data = 1;
    sample.engine.zero = 0;
    sample.engine.replicate = 1;
    sample.engine.micro_batches = kSamplePasses;
  }
  const auto& model = sample.model;
  auto& batch = sample.pipeline.batch;
  // The speed of a GPU depends on how much there is to do at once.
  if (sample.backend != BackendKind::cuda) {
    batch.batch = std::min(batch.batch, std::max<std::int64_t>(1, sample_tokens(model) / model.block_size));
  }
  while (sample.sequence && batch.rows() % sample.mesh.tensor != 0) ++batch.batch;
  result.scale = static_cast<double>(wanted.pipeline.batch.batch) / static_cast<double>(batch.batch);
  sample.model = with_blocks(model, sample_blocks(model, batch.rows()));
  result.key = fmt::format(
      "step of {} x {} tokens, {} blocks, width {}, {} heads, {} classes, {}{}{}{}, {}, tensor {}{}{}, data "
      "{}, zero {}, "
      "recompute {}, optimizer {}, {} ranks x {} threads{}{}{}{}{}{}{}{}",
      batch.batch, model.block_size, model.n_layer, model.n_embd, model.n_head, model.vocab_size,
      model.dropout > 0 ? "dropout, " : "", model.bias ? "bias, " : "", model.tied ? "" : "untied, ",
      static_cast<int>(model.gelu), name_of(sample.engine.compute), sample.mesh.tensor,
      sample.sequence ? " sequence" : "", has_uneven_shares(sample) ? " uneven" : "", sample.mesh.data,
      sample.engine.zero, name_of(sample.pipeline.recompute), optimizer_key(sample), ranks_,
      threads_of(sample), sample.engine.layout_exact ? ", exact" : "", trained_text(model),
      backend_text(sample.backend), sample.backend == BackendKind::cuda && sample.ordered ? " in order" : "",
      sample.tf32 ? " tf32" : "", sample.backend == BackendKind::cuda && !sample.tune ? " untuned" : "",
      narrow_text(sample), sample.engine.on_host ? ", state on the host" : "");
  return result;
}

bool MeasuredMachine::has_times(const RunPlan& sample) {
  const auto key = scaled(sample).key;
  if (kept_.contains(key)) return true;
  const bool here = spent_ < options_.seconds || !find(key_ + "; " + key).empty();
  return agreed({here ? 1.0 : 0.0}).front() > 0;
}

SampleTimes MeasuredMachine::times(const RunPlan& wanted, const SampleKernels&) {
  const auto [sample, scale, key] = scaled(wanted);
  // The parts, the update of an element, and the factor by which a step of ranks that wait for each other is
  // longer than theirs: they take turns to be late, and share cores less than perfectly.
  constexpr std::size_t kParts = kSamplePasses * kStepParts;
  const auto& numbers = kept(key, [&] {
    tell(key);
    const Stopwatch watch;
    const int threads = threads_of(sample);
    const MeshCoordinate rank{.tensor = sampled_tensor_rank(sample)};
    const double bytes = estimate_memory(sample, {.world_size = 1, .local_size = 1}, rank).total();
    const int fit = std::max(1, static_cast<int>(memory_ * ranks_per_host_ / bytes));
    const int most = std::min({ranks_, fit, kMostActive}), active = std::clamp(cores_ / threads, 1, most);
    const auto measured = measure_sample(run_, sample, active, threads, !world_);
    std::vector<double> all;
    for (const auto& pass : measured.parts.values) all.insert(all.end(), pass.begin(), pass.end());
    all.push_back(measured.update / static_cast<double>(updated_elements(sample)));
    const bool crowded = !world_ && most > active;
    const double fair = measured.step * most / active;
    // In a crowd other groups use the time in which tensor ranks wait, if there are any: the factor may be
    // less than 1.
    const bool alone = sample.mesh.tensor >= most;
    all.push_back(crowded ? measure_sample(run_, sample, most, threads, alone).slowest / fair
                          : std::max(1.0, measured.slowest / measured.step));
    spent_ += watch.seconds();
    return all;
  });
  if (numbers.size() != kParts + 2) fail("the calibration's line \"{}\" has {} numbers", key, numbers.size());
  SampleTimes times;
  for (std::size_t i = 0; i < kParts; ++i)
    times.parts.values[i / kStepParts][i % kStepParts] = numbers[i] * scale * numbers.back();
  times.update = numbers[kParts] * numbers.back();
  return times;
}

// In the cache.
std::string MeasuredMachine::name_of_step(const RunPlan& plan) const {
  std::vector<std::string> ranges;
  for (const auto& [begin, end] : plan.ranges) ranges.push_back(fmt::format("{}-{}", begin, end));
  return fmt::format(
      "whole {}, {} layers, {} sequences x {}, {} stages {} {}, recomputed {}, data {}, zero {} x {}{}",
      scaled(plan).key, plan.model.n_layer, plan.pipeline.batch.batch, plan.micro_batches(),
      plan.mesh.pipeline, name_of(plan.pipeline.schedule), fmt::join(ranges, " "),
      fmt::join(plan.pipeline.recompute_blocks, " "), plan.mesh.data, plan.engine.zero, plan.engine.replicate,
      trained_text(plan.model));
}

Trials MeasuredMachine::try_step(const RunPlan& wanted, int most) {
  auto plan = wanted;
  plan.threads = threads_of(plan);
  if (world_ || plan.mesh.workers > 1) return {};
  const bool fits = shoal::memory_of_rank(plan, *this) <= memory_;  // plan.memory_gib may be more than that
  const auto key = name_of_step(plan);
  auto& times = kept_[key];
  if (times.empty()) times = find(key_ + "; " + key);
  const auto have_time = [&] {
    return tried_ <
           std::max(options_.trial_seconds, std::min(kStepsOfTrials * first_trial_, kMostTrialSeconds));
  };
  while (fits && std::ssize(times) < most && have_time()) {
    if (tried_ == 0) tell("steps of layouts with nearly the same prediction");
    const Stopwatch watch;
    times.push_back(measure_step(run_, plan));
    if (tried_ == 0) first_trial_ = times.back();
    tried_ += watch.seconds();
    ++measured_;
    keep(key, times);
  }
  if (times.empty()) return {};
  // Only the first trials count, so that another search which asks the same questions gets the same answers.
  const auto asked = std::min<std::ptrdiff_t>(most, std::ssize(times));
  return {typical({times.begin(), times.begin() + asked}), static_cast<int>(asked)};
}

double MeasuredMachine::seconds(const GroupCall& call) {
  return call.ranks < 2 ? 0 : interpolate(curve(call), call.bytes);
}

// The network's, of a job: the least call's time. Threads hand bytes over themselves.
double MeasuredMachine::delay(const GroupCall& call) {
  return world_ && call.ranks > 1 ? std::min(curve(call).front().second, seconds(call)) : 0;
}

const MeasuredMachine::Curve& MeasuredMachine::curve(GroupCall group) {
  // All threads are equally far apart. Where no group has room at this distance, as of a topology's uneven
  // group, it is the largest at which one has.
  if (!world_) group.stride = 1;
  if ((group.ranks - 1) * group.stride >= ranks_) group.stride = ranks_ / group.ranks;
  auto& points = curves_[{group.kind, group.ranks, group.stride}];
  if (!points.empty()) return points;
  const auto key =
      fmt::format("{} of {} ranks, {} apart, of {}", name_of(group.kind), group.ranks, group.stride, ranks_);
  const auto& numbers = kept(key, [&] {
    tell(key);
    // Crowds of threads are measured in part: groups, as many as fit.
    const int most = std::max(group.ranks, kMostActive / group.ranks * group.ranks);
    const int active = world_ ? ranks_ : std::min(ranks_, most);
    const double bytes = std::min(kLargestCall, 0.1 * memory_ * ranks_ / active);
    std::vector<double> all;
    for (const auto& [size, seconds] : measure_call(run_, group, active, bytes)) {
      all.push_back(size);
      all.push_back(seconds);
    }
    return all;
  });
  if (numbers.size() % 2 != 0) fail("the calibration's line \"{}\" has {} numbers", key, numbers.size());
  for (std::size_t i = 0; i + 1 < numbers.size(); i += 2) points.emplace_back(numbers[i], numbers[i + 1]);
  return points;
}

}  // namespace shoal
