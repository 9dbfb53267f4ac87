#include "planner/measured_machine.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <barrier>
#include <cmath>
#include <iterator>
#include <mutex>
#include <sstream>
#include <system_error>
#include <thread>

#include "comm/world.h"
#include "config/memory.h"
#include "core/clock.h"
#include "core/cores.h"
#include "core/error.h"
#include "ops/libraries.h"

namespace shoal {
namespace {

// Larger samples are measured with fewer sequences, about so many tokens: time is proportional to them there.
constexpr std::int64_t kSampleTokens = 2048;
constexpr double kLeastSeconds = 0.6;  // of a measurement, after its warm-up
constexpr int kLeastSteps = 3;
constexpr int kMostActive = 16;  // ranks that are measured side by side

// The value below which `share` of the values are. Disturbances of a machine only ever add time, so a share
// below a half tells more than the median.
double quantile(std::vector<double> values, double share) {
  const auto at = values.begin() + static_cast<std::ptrdiff_t>(share * static_cast<double>(values.size()));
  std::nth_element(values.begin(), at, values.end());
  return *at;
}
constexpr double kShare = 0.35;

// The times of one rank's sample steps: samples of each part, and of the update.
struct SampleLog {
  PerPart<std::vector<double>> parts;
  std::vector<double> update;
  std::vector<double> steps;  // of whole steps
};

void measure_step(SampleStep& step, SampleLog* log) {
  double* open = nullptr;
  double since = 0;
  std::array<std::array<double, kStepParts>, kSamplePasses> took{};
  double update = 0;
  const Stopwatch watch;
  step.run([&](int pass, StepPart part) {
    const double now = watch.seconds();
    if (open) *open += now - since;
    since = now;
    open = pass == kSamplePasses ? &update
                                 : &took[static_cast<std::size_t>(pass)][static_cast<std::size_t>(part)];
  });
  update += watch.seconds() - since;
  if (!log) return;
  for (std::size_t pass = 0; pass < kSamplePasses; ++pass) {
    for (std::size_t part = 0; part < kStepParts; ++part)
      log->parts.values[pass][part].push_back(took[pass][part]);
  }
  log->update.push_back(update);
  log->steps.push_back(watch.seconds());
}

// Runs the sample on `active` threads at once, each a rank with memory and OpenMP threads of its own.
SampleLog measure_sample(const RunPlan& sample, int active, int threads) {
  std::vector<SampleLog> logs(static_cast<std::size_t>(active));
  std::barrier together(active);
  std::atomic<bool> enough = false;
  std::exception_ptr failure;
  std::mutex mutex;
  const auto rank = [&](int index) {
    try {
      const auto backend = make_backend(sample.backend, {.threads = threads});
      SampleStep step(*backend, sample);
      measure_step(step, nullptr);
      Stopwatch watch;
      for (int steps = 0;; ++steps) {
        if (index == 0) enough = steps >= kLeastSteps && watch.seconds() > kLeastSeconds;
        together.arrive_and_wait();
        const bool end = enough;
        together.arrive_and_wait();  // all have read it before rank 0 changes it
        if (end) break;
        measure_step(step, &logs[static_cast<std::size_t>(index)]);
      }
    } catch (...) {
      const std::scoped_lock lock(mutex);
      failure = std::current_exception();
      enough = true;
      together.arrive_and_drop();
    }
  };
  std::vector<std::jthread> ranks;
  for (int i = 1; i < active; ++i) ranks.emplace_back(rank, i);
  rank(0);
  ranks.clear();
  if (failure) std::rethrow_exception(failure);
  SampleLog all = std::move(logs.front());
  for (std::size_t i = 1; i < logs.size(); ++i) {
    for (std::size_t pass = 0; pass < kSamplePasses; ++pass) {
      for (std::size_t part = 0; part < kStepParts; ++part) {
        auto& to = all.parts.values[pass][part];
        const auto& from = logs[i].parts.values[pass][part];
        to.insert(to.end(), from.begin(), from.end());
      }
    }
    all.update.insert(all.update.end(), logs[i].update.begin(), logs[i].update.end());
    all.steps.insert(all.steps.end(), logs[i].steps.begin(), logs[i].steps.end());
  }
  return all;
}

// Seconds of a collective of `bytes` over ranks that are threads.
double measure_call(GroupCall::Kind kind, int ranks, std::size_t bytes) {
  double seconds = 0;
  run_threads({.ranks = ranks}, [&](World& world) {
    auto& group = world.ranks;
    const auto count =
        static_cast<std::int64_t>((bytes / 4 + static_cast<std::size_t>(ranks) - 1) /
                                  static_cast<std::size_t>(ranks) * static_cast<std::size_t>(ranks));
    std::vector<float> a(static_cast<std::size_t>(count), 1.0f), b(static_cast<std::size_t>(count));
    const Tensor x{a.data(), DType::f32, {count}}, y{b.data(), DType::f32, {count}};
    const std::int64_t part = count / ranks;
    const Tensor mine{a.data() + group.rank() * part, DType::f32, {part}};
    const auto once = [&] {
      switch (kind) {
        case GroupCall::Kind::all_reduce:
          return group.all_reduce(x).wait();
        case GroupCall::Kind::reduce_scatter:
          return group.reduce_scatter(mine, x).wait();
        case GroupCall::Kind::all_gather:
          return group.all_gather(x, mine).wait();
        case GroupCall::Kind::all_to_all:
          return group.all_to_all(y, x).wait();
        case GroupCall::Kind::broadcast:
          return group.broadcast(x, 0).wait();
        case GroupCall::Kind::message:
          return group.rank() == 0   ? group.send(x, 1).wait()
                 : group.rank() == 1 ? group.receive(y, 0).wait()
                                     : void();
      }
    };
    for (int i = 0; i < 3; ++i) once();
    std::vector<double> took;
    const int times = bytes > (8u << 20) ? 7 : 31;
    for (int i = 0; i < times; ++i) {
      group.barrier();
      const Stopwatch watch;
      once();
      took.push_back(watch.seconds());
    }
    if (group.rank() == 0) seconds = quantile(took, kShare);
  });
  return seconds;
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

}  // namespace

std::filesystem::path MeasuredMachine::default_cache() {
  const auto folder = cache_folder();
  if (folder.empty()) return {};
  std::error_code ignored;
  std::filesystem::create_directories(folder, ignored);
  return folder / "calibration";
}

MeasuredMachine::MeasuredMachine(int ranks, Tell tell, std::filesystem::path cache, bool again)
    : ranks_(ranks), cores_(usable_cores()), tell_(std::move(tell)), cache_(std::move(cache)), again_(again) {
  std::string libraries;
  for (const auto& library : ops_libraries())
    libraries += fmt::format(" {} {}", library.name, library.version);
  machine_ = fmt::format("1 {}, {} cores,{}", processor_name(), cores_, libraries);
  std::ranges::replace(machine_, '=', ' ');
}

std::string MeasuredMachine::name() const {
  return fmt::format("this machine ({}, {} core{})", processor_name(), cores_, cores_ == 1 ? "" : "s");
}

int MeasuredMachine::threads_of(const RunPlan& plan) const {
  return plan.threads > 0 ? plan.threads : std::max(1, cores_ / ranks_);
}

double MeasuredMachine::memory_of_rank(int ranks) const { return 0.8 * available_memory() / ranks; }

const std::vector<double>& MeasuredMachine::kept(const std::string& key, std::size_t count,
                                                 const std::function<std::vector<double>()>& make) {
  auto& known = kept_[key];
  if (!known.empty()) return known;
  const auto numbers_of = [](std::string_view text) {
    std::istringstream in{std::string(text)};
    return std::vector<double>(std::istream_iterator<double>(in), {});
  };
  const auto valid = [&](std::string_view text) {
    const auto numbers = numbers_of(text);
    return !again_ && numbers.size() == count &&
           std::ranges::all_of(numbers, [](double x) { return x >= 0 && std::isfinite(x); });
  };
  known = numbers_of(cache_.find_or_make(machine_ + "; " + key, valid, [&] {
    ++measured_;
    if (tell_) tell_(key);
    return fmt::format("{:.6e}", fmt::join(make(), " "));
  }));
  return known;
}

void MeasuredMachine::measure_collectives() {
  using Kind = GroupCall::Kind;
  if (ranks_ < 2) return;
  curve(Kind::message, 2);
  for (int ranks = 2; ranks <= ranks_; ++ranks) {
    if (ranks_ % ranks != 0) continue;
    for (const auto kind : {Kind::all_reduce, Kind::reduce_scatter, Kind::all_gather}) curve(kind, ranks);
  }
}

SampleTimes MeasuredMachine::times(const RunPlan& given, const SampleKernels&) {
  RunPlan sample = given;
  const int threads = threads_of(sample);
  const int active = std::clamp(cores_ / threads, 1, ranks_);
  const int crowd = std::min(ranks_, kMostActive);  // where there are more ranks than cores
  if (!sample.engine.layout_exact) {
    sample.mesh.data = 1;
    sample.engine.zero = 0;
    sample.engine.replicate = 1;
    sample.engine.micro_batches = kSamplePasses;
  }
  const auto& model = sample.model;
  auto& batch = sample.pipeline.batch;
  const std::int64_t wanted = batch.batch;
  batch.batch = std::min<std::int64_t>(wanted, std::max<std::int64_t>(1, kSampleTokens / model.block_size));
  while (sample.sequence && batch.rows() % sample.mesh.tensor != 0) ++batch.batch;
  const double scale = static_cast<double>(wanted) / static_cast<double>(batch.batch);
  const auto key = fmt::format(
      "step of {} x {} tokens, width {}, {} heads, {} classes, {}{}{}, {}, tensor {}{}, data {}, zero {}, "
      "recompute {}, "
      "optimizer {}, {} of {} x {} threads{}",
      batch.batch, model.block_size, model.n_embd, model.n_head, model.vocab_size,
      model.dropout > 0 ? "dropout, " : "", model.bias ? "bias, " : "", static_cast<int>(model.gelu),
      name_of(sample.engine.compute), sample.mesh.tensor, sample.sequence ? " sequence" : "",
      sample.mesh.data, sample.engine.zero, static_cast<int>(sample.pipeline.recompute),
      sample.optimizer_tensors(), active, crowd, threads, sample.engine.layout_exact ? ", exact" : "");
  // The parts, the update of an element, and the factor by which ranks that share cores slow each other
  // beyond their share.
  constexpr std::size_t kParts = kSamplePasses * kStepParts, kNumbers = kParts + 2;
  const auto& numbers = kept(key, kNumbers, [&] {
    const auto log = measure_sample(sample, active, threads);
    std::vector<double> all;
    for (const auto& pass : log.parts.values) {
      for (const auto& part : pass) all.push_back(quantile(part, kShare));
    }
    TapeBackend tape;
    all.push_back(quantile(log.update, kShare) /
                  static_cast<double>(SampleStep(tape, sample).updated_elements()));
    double factor = 1;
    if (crowd > active) {
      const double fair = quantile(log.steps, kShare) * crowd / active;
      factor = std::max(1.0, quantile(measure_sample(sample, crowd, threads).steps, kShare) / fair);
    }
    all.push_back(factor);
    return all;
  });
  SampleTimes times;
  for (std::size_t i = 0; i < kParts; ++i) {
    times.parts.values[i / kStepParts][i % kStepParts] = numbers[i] * scale * numbers.back();
  }
  times.update = numbers[kParts] * numbers.back();
  return times;
}

double MeasuredMachine::seconds(const GroupCall& call) {
  if (call.ranks < 2) return 0;
  return interpolate(curve(call.kind, call.ranks), call.bytes);
}

const MeasuredMachine::Curve& MeasuredMachine::curve(GroupCall::Kind kind, int ranks) {
  auto& points = curves_[{kind, ranks}];
  if (!points.empty()) return points;
  constexpr std::array<std::size_t, 6> kBytes = {1 << 10, 16 << 10, 256 << 10, 2 << 20, 16 << 20, 64 << 20};
  const auto& seconds = kept(fmt::format("{} of {} threads", name_of(kind), ranks), kBytes.size(), [&] {
    std::vector<double> all;
    for (const auto bytes : kBytes) all.push_back(measure_call(kind, ranks, bytes));
    return all;
  });
  for (std::size_t i = 0; i < kBytes.size(); ++i)
    points.emplace_back(static_cast<double>(kBytes[i]), seconds[i]);
  return points;
}

}  // namespace shoal
