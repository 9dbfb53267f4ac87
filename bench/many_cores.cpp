// A training step's limits on a processor with many cores, by counting.
//   bench_many_cores CONFIG.toml [section.key=value ...]
// A step's loops are timed on one thread. Teams of 2, 4, ... 128 threads then run the step to count the tasks
// of each loop, on however many cores there are. A loop of n tasks takes at least ceil(n / p) / n of its time
// on p cores, and what is outside loops all of it; waking threads and waiting for memory come on top. The
// traffic is that of every tensor which a kernel reads or writes, once.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <vector>

#include "comm/recording.h"
#include "config/config.h"
#include "config/layout.h"
#include "config/plan.h"
#include "core/clock.h"
#include "core/error.h"
#include "core/thread_team.h"
#include "ops/cpu/cpu.h"
#include "ops/dry/tape_backend.h"
#include "parallel/data/data_engine.h"
#include "train/training_step.h"

using namespace shoal;

namespace {

struct Loop {
  std::int64_t tasks;
  double seconds;
};
std::vector<Loop> loops;  // of the step that runs

struct Step {
  std::vector<Loop> loops;
  double outside;  // seconds in no loop

  double seconds() const {
    double sum = outside;
    for (const auto& loop : loops) sum += loop.seconds;
    return sum;
  }
};

// The steps of one rank.
class Steps {
 public:
  Steps(Backend& backend, const RunPlan& plan)
      : mesh_(recording_.ranks(), plan.mesh),
        engine_(std::make_unique<DataEngine>(backend, mesh_, plan.model, plan.engine_options())),
        model_(backend, *engine_, mesh_, plan.model, plan.pipeline_options()),
        step_(backend, *engine_, model_, mesh_, recording_.ranks(), {}) {
    engine_->initialize(0);
    next();  // which builds kernels
  }

  Step next() {
    loops.clear();
    const Stopwatch watch;
    step_.ask(number_, {1e-4, number_ + 1});
    ++number_;
    Step step{loops, 0};
    step.outside = watch.seconds() - step.seconds();
    return step;
  }

 private:
  Recording recording_{1, 0};
  Mesh mesh_;
  std::unique_ptr<DataEngine> engine_;
  Pipeline model_;
  TrainingStep step_;
  std::int64_t number_ = 0;
};

// The least time of each loop, and of the rest, of some steps on one thread.
Step least(Steps& steps) {
  constexpr int kSteps = 5;
  Step least = steps.next();
  for (int i = 0; i < kSteps; ++i) {
    const Step step = steps.next();
    least.outside = std::min(least.outside, step.outside);
    for (std::size_t l = 0; l < step.loops.size(); ++l)
      least.loops[l].seconds = std::min(least.loops[l].seconds, step.loops[l].seconds);
  }
  return least;
}

double traffic(const RunPlan& plan) {
  TapeBackend tape;
  Steps steps(tape, plan);
  const std::size_t first = tape.kernels().size();
  steps.next();
  double bytes = 0;
  for (std::size_t i = first; i < tape.kernels().size(); ++i) bytes += tape.kernels()[i].bytes;
  return bytes;
}

void run(int argc, char** argv) {
  if (argc < 2) fail_user("usage: {} CONFIG.toml [section.key=value ...]", argv[0]);
  const std::vector<std::string> settings(argv + 2, argv + argc);
  auto config = load_config(argv[1], settings);
  resolve_layout(config, 1);
  const auto plan = make_plan(config);
  ThreadTeam::watch = [](std::int64_t tasks, double seconds) { loops.push_back({tasks, seconds}); };

  const auto one_thread = make_cpu_backend(1);
  Steps steps(*one_thread, plan);
  const Step alone = least(steps);
  const double bytes = traffic(plan);
  fmt::print(
      "{} loops; one thread {:.1f} ms, of which outside loops {:.2f} ms; {:.2f} GB are read and written\n\n",
      alone.loops.size(), alone.seconds() * 1e3, alone.outside * 1e3, bytes / 1e9);
  fmt::print(
      "| cores | times as fast, at most | of them | lost: outside loops | too few tasks | uneven tasks | "
      "memory, GB/s |\n");
  fmt::print("|---|---|---|---|---|---|---|\n");
  for (int cores = 2; cores <= 128; cores *= 2) {
    const auto team = make_cpu_backend(cores);
    const auto counted = Steps(*team, plan).next().loops;
    if (counted.size() != alone.loops.size()) fail("a team of {} has other loops", cores);
    double time = alone.outside, few = 0, uneven = 0;
    for (std::size_t l = 0; l < counted.size(); ++l) {
      const double tasks = static_cast<double>(std::max<std::int64_t>(counted[l].tasks, 1)),
                   rounds = std::ceil(tasks / cores), share = rounds / tasks;
      time += alone.loops[l].seconds * share;
      (tasks < cores ? few : uneven) += alone.loops[l].seconds * (share - 1.0 / cores);
    }
    const double speed = alone.seconds() / time;
    fmt::print("| {} | {:.1f} | {:.0f} % | {:.1f} % | {:.1f} % | {:.1f} % | {:.0f} |\n", cores, speed,
               100 * speed / cores, 100 * alone.outside * (1 - 1.0 / cores) / time, 100 * few / time,
               100 * uneven / time, bytes / time / 1e9);
  }
}

}  // namespace

int main(int argc, char** argv) {
  try {
    run(argc, argv);
  } catch (const std::exception& error) {
    fmt::print(stderr, "{}\n", error.what());
    return dynamic_cast<const UserError*>(&error) ? 2 : 1;
  }
}
