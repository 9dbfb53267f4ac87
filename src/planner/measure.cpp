#include "planner/measure.h"

#include <algorithm>
#include <numeric>

#include "core/clock.h"
#include "core/error.h"
#include "ops/make_backend.h"
#include "train/runtime.h"
#include "train/training_step.h"

namespace shoal {
namespace {

constexpr int kLeastSteps = 2;
constexpr int kTrialSteps = 20;
constexpr double kLongCall = 0.2;  // seconds of a call behind which larger ones are not measured
constexpr double kCallSeconds = 0.25;
constexpr int kInARow = 4, kLeastCalls = 2, kMostCalls = 15;

// The mean without the largest tenth: the steps of a sample are shorter than those of training, which meet
// what delays only some of them.
double trimmed_mean(std::vector<double> values) {
  std::ranges::sort(values);
  values.resize(values.size() - values.size() / 10);
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

// The largest of the ranks' values, on every rank.
double largest(Communicator& ranks, double value) {
  ranks.all_reduce({&value, DType::f64, {1}}, ReduceOp::max).wait();
  return value;
}

// The times of one rank's sample steps.
class SampleLog {
 public:
  // The ranks of `group` wait for each other after each part; null: none does. A `queue` of work is drained
  // there, so the whole step, which drains it once, is timed apart from its parts.
  SampleLog(SampleStep& step, Communicator* group, bool queue) : step_(step), group_(group), queue_(queue) {}

  // Returns the seconds of the step.
  double add() {
    double* open = nullptr;
    double since = 0, update = 0;
    PerPart<double> took;
    const Stopwatch watch;
    step_.run([&](int pass, StepPart part) {
      if (group_) group_->barrier();
      if (queue_) step_.synchronize();
      const double now = watch.seconds();
      if (open) *open += now - since;
      since = now;
      open = pass == kSamplePasses ? &update : &took.at(pass, part);
    });
    double seconds = watch.seconds();
    update += seconds - since;
    if (queue_) {
      const Stopwatch whole;
      step_.run([](int, StepPart) {});
      seconds = whole.seconds();
    }
    for (std::size_t pass = 0; pass < kSamplePasses; ++pass) {
      for (std::size_t part = 0; part < kStepParts; ++part)
        parts_.values[pass][part].push_back(took.values[pass][part]);
    }
    update_.push_back(update);
    steps_.push_back(seconds);
    return seconds;
  }

  MeasuredSample summary() const {
    MeasuredSample sample;
    for (std::size_t pass = 0; pass < kSamplePasses; ++pass) {
      for (std::size_t part = 0; part < kStepParts; ++part)
        sample.parts.values[pass][part] = typical(parts_.values[pass][part]);
    }
    sample.update = typical(update_);
    sample.step = trimmed_mean(steps_);
    // Typical parts add up to less than a typical step, in which some part is always delayed.
    double sum = sample.update;
    for (const auto& pass : sample.parts.values) sum += std::accumulate(pass.begin(), pass.end(), 0.0);
    for (auto& pass : sample.parts.values) {
      for (std::size_t part = 0; part < kStepParts; ++part)
        pass[part] *= sample.step / sum / step_.count(static_cast<StepPart>(part));
    }
    sample.update *= sample.step / sum;
    return sample;
  }

 private:
  SampleStep& step_;
  Communicator* group_;
  bool queue_;
  PerPart<std::vector<double>> parts_;
  std::vector<double> update_, steps_;
};

// The mean over ranks.
void average(Communicator& ranks, MeasuredSample& sample) {
  std::vector<double> all = {sample.update, sample.step};
  for (const auto& pass : sample.parts.values) all.insert(all.end(), pass.begin(), pass.end());
  ranks.all_reduce({all.data(), DType::f64, {std::ssize(all)}}).wait();
  auto next = all.begin();
  const auto take = [&] { return *next++ / ranks.size(); };
  sample.update = take();
  sample.step = take();
  for (auto& pass : sample.parts.values) std::ranges::generate(pass, take);
}

// Makes a call, or sends a message there and back, and waits for it.
void make_call(Communicator& group, GroupCall::Kind kind, std::vector<float>& a, std::vector<float>& b,
               std::int64_t count) {
  const Tensor x{a.data(), DType::f32, {count}}, y{b.data(), DType::f32, {count}};
  const std::int64_t part = count / group.size();
  const Tensor mine{a.data() + group.rank() * part, DType::f32, {part}};
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
      if (group.rank() == 0) group.send(x, 1).wait();
      group.receive(y, 1 - group.rank()).wait();
      if (group.rank() == 1) group.send(x, 0).wait();
  }
}

}  // namespace

double typical(std::vector<double> values) {
  const auto at = values.begin() + std::ssize(values) / 3;
  std::nth_element(values.begin(), at, values.end());
  return *at;
}

double measure_step(const RunRanks& run, const RunPlan& plan) {
  double result = 0;
  run(plan.mesh.ranks(), [&](World& world) {
    Runtime runtime(plan, world.ranks, backend_options(plan, plan.threads, world));
    runtime.allocate(plan, Runtime::Use::training);
    runtime.engine().initialize(0);
    TrainingStep step(runtime.backend(), runtime.engine(), runtime.model(), runtime.mesh(), runtime.ranks(),
                      {.capture = plan.can_capture_steps()});
    std::int64_t number = 0;
    const auto once = [&] {
      const Stopwatch watch;
      step.ask(number, {1e-4, number + 1});
      ++number;
      runtime.backend().synchronize();
      return largest(world.ranks, watch.seconds());
    };
    once();  // which allocates and builds kernels
    std::vector<double> took;
    for (double spent = 0; spent < kSampleSeconds && std::ssize(took) < kTrialSteps; spent += took.back())
      took.push_back(once());
    if (world.ranks.rank() == 0) result = trimmed_mean(std::move(took));
  });
  return result;
}

MeasuredSample measure_sample(const RunRanks& run, const RunPlan& sample, int ranks, int threads,
                              bool together) {
  MeasuredSample result;
  run(ranks, [&](World& world) {
    const auto backend = make_backend(sample.backend, backend_options(sample, threads, world));
    SampleStep step(*backend, sample);
    step.run([](int, StepPart) {});  // which allocates and builds kernels
    const int tensor = sample.mesh.tensor;
    const auto group = world.ranks.split([&](int rank) {
      return Communicator::SplitKey{rank / tensor, rank};
    });
    SampleLog log(step, together && tensor > 1 ? group.get() : nullptr, sample.backend == BackendKind::cuda);
    const Stopwatch watch;
    std::vector<double> slowest;
    // All ranks begin each step together, and go on while one of them has to.
    for (int steps = 1;; ++steps) {
      const double seconds = largest(world.ranks, log.add());
      slowest.push_back(seconds);
      const double spent = largest(world.ranks, watch.seconds());
      if (steps >= kLeastSteps ? spent > kSampleSeconds : seconds > 5 * kSampleSeconds) break;
    }
    auto mean = log.summary();
    average(world.ranks, mean);
    mean.slowest = trimmed_mean(std::move(slowest));
    if (world.ranks.rank() == 0) result = mean;
  });
  return result;
}

std::vector<std::pair<double, double>> measure_call(const RunRanks& run, const GroupCall& group, int ranks,
                                                    double most) {
  std::vector<std::pair<double, double>> curve;
  run(ranks, [&](World& world) {
    const int block = group.ranks * group.stride;
    const auto members = world.ranks.split([&](int rank) {
      return Communicator::SplitKey{rank / block * block + rank % group.stride, rank};
    });
    const bool calls = members->size() == group.ranks;
    if (largest(world.ranks, calls ? 1 : 0) == 0)
      fail("no group of {} ranks that are {} apart among {}", group.ranks, group.stride, ranks);
    std::vector<float> a, b;
    for (double bytes = 1 << 10; bytes == 1 << 10 || bytes <= most; bytes *= 8) {
      const auto count = static_cast<std::int64_t>(bytes / 4) / group.ranks * group.ranks;
      a.resize(static_cast<std::size_t>(count), 1.0f);
      b.resize(static_cast<std::size_t>(count));
      // Several in a row, since ranks leave the barrier at different times.
      const auto once = [&] {
        const int in_a_row = group.kind == GroupCall::Kind::message ? kInARow / 2 : kInARow;
        world.ranks.barrier();
        const Stopwatch watch;
        for (int i = 0; i < in_a_row && calls; ++i) make_call(*members, group.kind, a, b, count);
        return watch.seconds() / kInARow;
      };
      once();
      const double first = largest(world.ranks, once());
      std::vector<double> took;
      for (int left = std::clamp(static_cast<int>(kCallSeconds / (kInARow * first)), kLeastCalls, kMostCalls);
           left > 0; --left) {
        took.push_back(once());
      }
      const double seconds = largest(world.ranks, typical(took));
      if (world.ranks.rank() == 0) curve.emplace_back(bytes, seconds);
      if (seconds > kLongCall) break;
    }
  });
  return curve;
}

}  // namespace shoal
