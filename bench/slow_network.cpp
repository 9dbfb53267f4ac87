// Training steps of several schemes among the ranks of an MPI job, for bench/slow_networks.sh. Engine, model
// structure, exchanges and communicator are the real ones, and so is all work on parameters; but for products
// and other kernels of layers a rank sleeps, in proportion to their FLOPs, so that many hosts can be played
// by few cores.
//
//   mpirun ... bench_slow_network STEP_MS STEPS WARM_UP RANKS_PER_HOST SCHEME...
//
// STEP_MS is what a rank's step takes to compute, a distribution (planner/distribution.h) with the draws that
// `shoal gossip simulate` makes of it. A scheme is "all-reduce", "zero-1" or a topology's name; after commas
// "steps=N" for another number of steps, and the keys of an outer optimizer, e.g.
// complete,interval=30,fragments=4,overlap=5,compress=bfloat16. Rank 0 prints a line of JSON for the model,
// and one for each scheme: averages over the ranks, without the steps of the warm-up.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/prctl.h>

#include <chrono>
#include <cstdlib>
#include <optional>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "comm/world.h"
#include "core/clock.h"
#include "core/error.h"
#include "model/arena.h"
#include "ops/cpu/cpu.h"
#include "ops/dry/dry_backend.h"
#include "parallel/data/data_engine.h"
#include "parallel/gossip/mixer.h"
#include "parallel/gossip/topology_schemes.h"
#include "parallel/pipeline/pipeline.h"
#include "planner/distribution.h"
#include "train/worker_sums.h"

namespace shoal {
namespace {

// The cpu backend for what is done to parameters; time passes for products and attention, nothing for the
// rest.
class TimedBackend final : public DryBackend {
 public:
  // From here on a FLOP takes that long. 0: products are only counted.
  void set_seconds_per_flop(double seconds) { seconds_per_flop_ = seconds; }
  double slept() const { return slept_; }  // seconds

  std::string_view name() const override { return "timed"; }
  void* allocate(std::size_t bytes) override { return cpu_->allocate(bytes); }
  void release(void* data, std::size_t bytes) override { cpu_->release(data, bytes); }
  void copy_to_host(void* host, const Tensor& from) override { cpu_->copy_to_host(host, from); }
  void copy_from_host(const Tensor& to, const void* host) override { cpu_->copy_from_host(to, host); }

  void zero(const Tensor& x) override { cpu_->zero(x); }
  void convert(const Tensor& out, const Tensor& x) override { cpu_->convert(out, x); }
  void add(const Tensor& out, const Tensor& x) override { cpu_->add(out, x); }
  void scale(const Tensor& out, const Tensor& x, float factor) override { cpu_->scale(out, x, factor); }
  void sum(const Tensor& total, const Tensor& x) override { cpu_->sum(total, x); }
  void sum_squares(const Tensor& totals, const Tensor& x) override { cpu_->sum_squares(totals, x); }
  void sum_rows(const Tensor& total, const Tensor& x, std::int64_t n) override {
    cpu_->sum_rows(total, x, n);
  }
  void clip_scale(const Tensor& scale, const Tensor& squares, double max_norm,
                  const Tensor& losses) override {
    cpu_->clip_scale(scale, squares, max_norm, losses);
  }
  void fill_normal(const Tensor& out, std::uint64_t seed, std::uint64_t name, std::int64_t first,
                   double stddev) override {
    cpu_->fill_normal(out, seed, name, first, stddev);
  }
  void fill(const Tensor& out, float value) override { cpu_->fill(out, value); }
  void scale_and_add(const Tensor& x, float factor, const Tensor& y, float y_factor) override {
    cpu_->scale_and_add(x, factor, y, y_factor);
  }
  void take_largest(const Tensor& taken, const Tensor& x) override { cpu_->take_largest(taken, x); }
  void add_taken(const Tensor& x, const Tensor& taken, float factor) override {
    cpu_->add_taken(x, taken, factor);
  }
  void adamw(const AdamWTensors& args, const AdamWSettings& settings) override {
    cpu_->adamw(args, settings);
  }

  void linear_forward(const Tensor& y, const Tensor& x, const Tensor& w, const Tensor& bias) override {
    DryBackend::linear_forward(y, x, w, bias);
    pass_time();
  }
  void linear_backward_input(const Tensor& dx, const Tensor& dy, const Tensor& w) override {
    DryBackend::linear_backward_input(dx, dy, w);
    pass_time();
  }
  void linear_backward_weight(const Tensor& dw, const Tensor& dbias, const Tensor& dy, const Tensor& x,
                              bool overwrite) override {
    DryBackend::linear_backward_weight(dw, dbias, dy, x, overwrite);
    pass_time();
  }
  void attention_forward(const Tensor& out, const Tensor& lse, const Tensor& qkv, std::int64_t first_head,
                         const Dropout& dropout) override {
    DryBackend::attention_forward(out, lse, qkv, first_head, dropout);
    pass_time();
  }
  void attention_backward(const AttentionBackward& args) override {
    DryBackend::attention_backward(args);
    pass_time();
  }

 private:
  // A sleep is never shorter than it should be; what it is longer comes off the next one.
  void pass_time() {
    constexpr double kLeast = 1e-3;  // seconds
    owed_ += (flops() - counted_) * seconds_per_flop_;
    counted_ = flops();
    if (owed_ < kLeast) return;
    const Stopwatch watch;
    std::this_thread::sleep_for(std::chrono::duration<double>(owed_));
    const double slept = watch.seconds();
    owed_ -= slept;
    slept_ += slept;
  }

  std::unique_ptr<Backend> cpu_ = make_cpu_backend(1);
  double seconds_per_flop_ = 0, counted_ = 0, owed_ = 0, slept_ = 0;
};

// Small enough for a slow network, and even: 6 blocks of 0.26 MB, which the cut into blocks of 1024 elements
// for each of 16 ranks makes hardly larger.
constexpr GptConfig kModel{.n_layer = 6, .n_head = 1, .n_embd = 73, .block_size = 64, .vocab_size = 64};
constexpr BatchShape kBatch{1, 64};
// Each block is a bucket, as in GPT-2 (28 MB a block) with buckets of 25 MiB.
constexpr double kBucketBytes = 320e3;

struct Options {
  Distribution compute = 0.0;
  int steps = 0, warm_up = 0, per_host = 1;
};

struct Scheme {
  std::string name;
  std::optional<OuterOptions> outer;
};

// Sets options.steps, too.
Scheme parse_scheme(const std::string& text, Options& options) {
  Scheme scheme;
  OuterOptions outer;
  int fragments = 1;
  std::istringstream in(text);
  std::getline(in, scheme.name, ',');
  for (std::string key, value; std::getline(in, key, '=') && std::getline(in, value, ',');) {
    if (key == "steps") options.steps = std::stoi(value);
    if (key == "interval") outer.interval = std::stoi(value);
    if (key == "fragments") fragments = std::stoi(value);
    if (key == "overlap") outer.overlap = std::stoi(value);
    if (key == "compress") outer.sent = outer_sent(value).value();
  }
  if (fragments > 1) outer.fragment_of = deal_fragments(gpt_units(kModel), fragments);
  if (outer.interval > 0) scheme.outer = outer;
  return scheme;
}

// A rank's steps, as the trainer makes them.
class Run {
 public:
  Run(World& world, const Options& options, const Scheme& scheme)
      : options_(options),
        world_(world.ranks),
        gossip_(scheme.name != "all-reduce" && scheme.name != "zero-1"),
        mesh_(world_, gossip_ ? MeshShape{.workers = world_.size()} : MeshShape{.data = world_.size()}),
        engine_(std::make_unique<DataEngine>(backend_, mesh_, kModel, engine_options(scheme))),
        model_(backend_, *engine_, mesh_, kModel, {.batch = kBatch}),
        memory_(backend_, 2 * kBatch.batch * kBatch.positions * 4 + 1024) {
    batch_ = {.tokens = memory_.take(DType::i32, {kBatch.batch, kBatch.positions}),
              .targets = memory_.take(DType::i32, {kBatch.batch, kBatch.positions}),
              .address = {}};
    loss_ = memory_.take(DType::f64, {1});
    if (gossip_) worker_sums_.emplace(world_, topology(scheme.name));
    engine_->initialize(1);
  }

  // Milliseconds at which each step ended, since the ranks began together.
  std::vector<double> run() {
    step(0, 0);
    const double flops = backend_.flops();  // of a step
    read_sums(true);
    world_.barrier();
    const Stopwatch watch;
    std::vector<double> ends;
    for (int i = 0; i < options_.steps; ++i) {
      const double compute = options_.compute.draw(key_, world_.rank(), i) * 1e-3;
      if (i == options_.warm_up) slept_before_ = backend_.slept();
      step(i + 1, compute / flops);
      ends.push_back(watch.seconds() * 1e3);
    }
    read_sums(true);
    return ends;
  }
  double computing_ms() const { return (backend_.slept() - slept_before_) * 1e3; }

 private:
  Topology topology(const std::string& name) const {
    return make_topology(name, world_.size(), options_.per_host);
  }
  EngineOptions engine_options(const Scheme& scheme) const {
    EngineOptions options{
        .grad_clip = 1, .zero = scheme.name == "zero-1" ? 1 : 0, .micro_batches = world_.size()};
    if (gossip_) {
      options.micro_batches = 1;
      options.gossip = {.topology = topology(scheme.name), .bucket_bytes = kBucketBytes};
      options.outer = scheme.outer;
    }
    return options;
  }

  void step(std::int64_t step, double seconds_per_flop) {
    backend_.set_seconds_per_flop(seconds_per_flop);
    engine_->begin_step(step, {.lr = 1e-4, .number = step + 1});
    backend_.zero(loss_);
    model_.train({&batch_, 1}, loss_, 1.0f);
    engine_->measure_gradient();
    const double norm = engine_->gradient_norm();
    if (!gossip_) share_losses(step);
    engine_->update();
    if (!gossip_) return;
    worker_sums_->post({.grad_norm = norm});
    read_sums(false);
  }

  // Exchanges the losses of all micro-batches and the flags for signals, as training does.
  void share_losses(std::int64_t step) {
    std::vector<double> losses(static_cast<std::size_t>(world_.size()) + InterruptGuard::kSignals);
    world_.set_purpose(fmt::format("step {}, losses", step + 1));
    world_.all_reduce({losses.data(), DType::f64, {std::ssize(losses)}}).wait();
  }
  void read_sums(bool all) {
    while (worker_sums_ && worker_sums_->next(all)) {
    }
  }

  const Options& options_;
  Communicator& world_;
  bool gossip_;
  TimedBackend backend_;
  Mesh mesh_;
  std::unique_ptr<DataEngine> engine_;
  Pipeline model_;
  Arena memory_;
  TokenBatch batch_;
  Tensor loss_;
  std::optional<WorkerSums> worker_sums_;
  PhiloxKey key_ = philox_key(1, PhiloxStream::simulation);
  double slept_before_ = 0;
};

// The mean over the ranks of each number.
std::vector<double> mean(Communicator& ranks, std::vector<double> x) {
  ranks.all_reduce({x.data(), DType::f64, {std::ssize(x)}}).wait();
  for (double& value : x) value /= ranks.size();
  return x;
}

// Prints the bytes of the padded gradients that are exchanged: with all-reduce and ZeRO 1, and with gossip.
void print_model(int ranks) {
  const auto bytes = [&](int shares) {
    const ShardPlan plan(gpt_units(kModel), 0, 1, 0, shares);
    std::int64_t elements = 0;
    for (int unit = 0; unit < plan.unit_count(); ++unit) elements += plan.padded(unit);
    return 4 * elements;
  };
  fmt::print("{{\"bytes_together\": {}, \"bytes_gossip\": {}, \"buckets\": {}}}\n", bytes(ranks), bytes(1),
             kModel.n_layer);
}

void measure(World& world, Options options, const std::string& text) {
  const auto scheme = parse_scheme(text, options);
  if (options.warm_up < 0 || options.steps <= options.warm_up) fail_user("no step is left to measure");
  Run run(world, options, scheme);
  const auto mine = run.run();
  const auto ends = mean(world.ranks, mine);
  const double computing = mean(world.ranks, {run.computing_ms()})[0];
  double last = mine.back();
  world.ranks.all_reduce({&last, DType::f64, {1}}, ReduceOp::max).wait();
  double first = mine.back();
  world.ranks.all_reduce({&first, DType::f64, {1}}, ReduceOp::min).wait();
  if (world.ranks.rank() != 0) return;
  const int measured = options.steps - options.warm_up;
  const double begin = options.warm_up > 0 ? ends[static_cast<std::size_t>(options.warm_up) - 1] : 0;
  const double step_ms = (ends.back() - begin) / measured;
  std::vector<double> steps_ms;
  for (std::size_t i = 0; i < ends.size(); ++i) steps_ms.push_back(ends[i] - (i > 0 ? ends[i - 1] : 0));
  fmt::print(
      "{{\"scheme\": \"{}\", \"workers\": {}, \"step_ms\": {:.3f}, \"steps_per_s\": {:.4f}, \"idle\": "
      "{:.4f}, "
      "\"apart_ms\": {:.1f}, \"steps_ms\": [{:.1f}]}}\n",
      text.substr(0, text.find(",steps=")), world.ranks.size(), step_ms, 1e3 / step_ms,
      1 - computing / measured / step_ms, last - first, fmt::join(steps_ms, ", "));
  std::fflush(stdout);
}

}  // namespace
}  // namespace shoal

int main(int argc, char** argv) {
  using namespace shoal;
  if (argc < 6) {
    fmt::print(stderr,
               "usage: mpirun ... bench_slow_network STEP_MS STEPS WARM_UP RANKS_PER_HOST SCHEME...\n");
    return 2;
  }
  try {
    const Options options{.compute = {argv[1], time_units(), 0},
                          .steps = std::atoi(argv[2]),
                          .warm_up = std::atoi(argv[3]),
                          .per_host = std::atoi(argv[4])};
    prctl(PR_SET_TIMERSLACK, 1000UL);  // ns
    run_mpi({.deadline_seconds = 120}, [&](World& world) {
      prctl(PR_SET_TIMERSLACK, 1000UL);
      if (world.ranks.rank() == 0) print_model(world.ranks.size());
      for (int i = 5; i < argc; ++i) measure(world, options, argv[i]);
    });
  } catch (const StoppedByPeer&) {
    return 1;
  } catch (const std::exception& error) {
    fmt::print(stderr, "bench_slow_network: {}\n", error.what());
    return 1;
  }
}
