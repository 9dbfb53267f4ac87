#include "planner/measured_steps.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <fstream>
#include <map>
#include <optional>
#include <tuple>

#include "core/error.h"
#include "core/text.h"
#include "parallel/pipeline/schedule.h"
#include "planner/described_machine.h"
#include "planner/step_simulation.h"

namespace shoal {
namespace {

constexpr double kBytes = 2;                     // of an activation and of a gradient: fp16
constexpr double kClasses = 50304, kPasses = 4;  // forward, recomputed forward, and backward, which is two

struct Column {
  const char* name;
  int MeasuredStep::*to;
};
constexpr std::array<Column, 10> kColumns = {{{"gpus", &MeasuredStep::gpus},
                                              {"global_batch", &MeasuredStep::global_batch},
                                              {"micro_batch", &MeasuredStep::micro_batch},
                                              {"n_embd", &MeasuredStep::n_embd},
                                              {"n_head", &MeasuredStep::n_head},
                                              {"n_layer", &MeasuredStep::n_layer},
                                              {"block_size", &MeasuredStep::block_size},
                                              {"tensor", &MeasuredStep::tensor},
                                              {"data", &MeasuredStep::data},
                                              {"pipeline", &MeasuredStep::pipeline}}};
constexpr const char* kTime = "step_ms";

std::vector<std::string> cells_of(std::string line) {
  if (line.ends_with('\r')) line.pop_back();
  std::vector<std::string> cells(1);
  for (const char c : line) {
    if (c == ',') {
      cells.emplace_back();
    } else if (c != ' ' && c != '"') {
      cells.back() += c;
    }
  }
  return cells;
}

template <typename T>
std::optional<T> number_of(const std::string& text) {
  T value{};
  const auto end = text.data() + text.size();
  const auto [stopped, error] = std::from_chars(text.data(), end, value);
  if (error != std::errc() || stopped != end) return std::nullopt;
  return value;
}

void check(const MeasuredStep& s, const std::string& where) {
  const std::int64_t of_stage = std::int64_t{s.tensor} * s.data;
  if (of_stage > s.gpus || of_stage * s.pipeline != s.gpus) {
    fail_user("{}: tensor {} x data {} x pipeline {} are not {} GPUs", where, s.tensor, s.data, s.pipeline,
              s.gpus);
  }
  if (std::int64_t{s.micro_batch} * s.data > s.global_batch ||
      s.global_batch % (s.micro_batch * s.data) != 0) {
    fail_user("{}: {} sequences do not divide into micro-batches of {} on {} data ranks", where,
              s.global_batch, s.micro_batch, s.data);
  }
  if (s.n_layer % s.pipeline != 0) {
    fail_user("{}: {} blocks do not divide over {} stages", where, s.n_layer, s.pipeline);
  }
  if (s.n_embd % s.n_head != 0 || s.n_head % s.tensor != 0) {
    fail_user("{}: a width of {} in {} heads does not divide over {} tensor ranks", where, s.n_embd, s.n_head,
              s.tensor);
  }
}

double tokens_of(const MeasuredStep& s) { return static_cast<double>(s.micro_batch) * s.block_size; }

// A block by the roofline: its products, the traffic of attention scores and activations, and at least the
// launches of its kernels.
double block_roofline(const MeasuredStep& s, const Cluster::Measured& m, double memory) {
  const double h = s.n_embd, t = s.block_size, tokens = tokens_of(s);
  const double flops = kPasses * tokens * (24 * h * h + 4 * t * h) / s.tensor;
  const double scores = tokens * t * s.n_head / s.tensor;
  const double bytes = scores * m.score_bytes + tokens * h * m.activation_bytes * (1 + 1.0 / s.tensor) / 2;
  const double work = flops / m.block_flops + bytes / memory;
  return std::pow(std::pow(work, 4) + std::pow(m.block_floor, 4), 0.25);
}

double ends_roofline(const MeasuredStep& s, const Cluster::Measured& m, double memory) {
  const double tokens = tokens_of(s), h = s.n_embd;
  return 6 * kClasses * h * tokens / s.tensor / m.block_flops +
         (tokens * kClasses / s.tensor * 24 + tokens * h * 30) / memory;
}

// The distance of a measured block's sizes from the step's, in powers of two.
double distance(const MeasuredStep& s, const MeasuredBlock& b) {
  const auto log_ratio = [](double x, double y) { return std::abs(std::log2(x / y)); };
  return log_ratio(s.n_embd, b.n_embd) + log_ratio(s.micro_batch, b.micro_batch) +
         log_ratio(s.tensor, b.tensor) + log_ratio(s.block_size, b.block_size) +
         0.5 * log_ratio(s.n_head, b.n_head);
}

struct BlockTime {
  double block = 0, ends = 0;
};

// The roofline, corrected by how it misses the blocks that were measured nearby.
BlockTime block_time(const MeasuredStep& s, const Cluster& cluster) {
  const auto& m = cluster.measured;
  const double memory = cluster.bandwidth * cluster.streaming;
  const BlockTime roofline{block_roofline(s, m, memory), ends_roofline(s, m, memory)};
  constexpr double kFar = 3;
  double weights = 0, block = 0, ends = 0;
  for (const auto& b : m.blocks) {
    const double far = distance(s, b);
    if (far == 0) return {b.block, b.ends};
    if (far >= kFar) continue;
    MeasuredStep like = s;
    like.n_embd = b.n_embd;
    like.n_head = b.n_head;
    like.block_size = b.block_size;
    like.micro_batch = b.micro_batch;
    like.tensor = b.tensor;
    const double weight = 1 / (far * far) - 1 / (kFar * kFar);
    weights += weight;
    block += weight * std::log(b.block / block_roofline(like, m, memory));
    ends += weight * std::log(std::max(b.ends, 1e-4) / ends_roofline(like, m, memory));
  }
  if (weights == 0) return roofline;
  const double trust = std::min(1.0, weights);
  return {roofline.block * std::exp(trust * block / weights),
          roofline.ends * std::exp(trust * ends / weights)};
}

}  // namespace

std::vector<MeasuredStep> read_measured_steps(const std::filesystem::path& file) {
  std::ifstream in(file);
  if (!in || std::filesystem::is_directory(file)) fail_user("cannot read the table {}", file.string());
  std::string line;
  std::getline(in, line);
  const auto header = cells_of(line);
  const auto column = [&](const char* name) {
    const auto found = std::ranges::find(header, name);
    if (found == header.end()) fail_user("{}:1: the column {} is missing", file.string(), name);
    return static_cast<std::size_t>(found - header.begin());
  };
  std::array<std::size_t, kColumns.size()> places{};
  for (std::size_t i = 0; i < kColumns.size(); ++i) places[i] = column(kColumns[i].name);
  const auto time = column(kTime);
  std::vector<MeasuredStep> steps;
  for (int number = 2; std::getline(in, line); ++number) {
    if (line.empty() || line == "\r") continue;
    const auto where = fmt::format("{}:{}", file.string(), number);
    const auto cells = cells_of(line);
    if (cells.size() != header.size())
      fail_user("{}: {} cells, but {} columns", where, cells.size(), header.size());
    MeasuredStep step{.line = number};
    for (std::size_t i = 0; i < kColumns.size(); ++i) {
      const auto value = number_of<int>(cells[places[i]]);
      if (!value || *value < 1 || *value > (1 << 24)) {
        fail_user("{}: {} is \"{}\", not an integer from 1 on", where, kColumns[i].name, cells[places[i]]);
      }
      step.*kColumns[i].to = *value;
    }
    const auto milliseconds = number_of<double>(cells[time]);
    if (!milliseconds || !(*milliseconds > 0) || !std::isfinite(*milliseconds)) {
      fail_user("{}: {} is \"{}\", not a time", where, kTime, cells[time]);
    }
    step.seconds = *milliseconds * 1e-3;
    check(step, where);
    steps.push_back(step);
  }
  if (steps.empty()) fail_user("{} has no rows", file.string());
  return steps;
}

double predict_measured(const MeasuredStep& s, const Cluster& cluster) {
  DescribedMachine machine(cluster);
  const auto& m = cluster.measured;
  const auto need = [&](const char* key, double value) {
    if (!(value > 0)) {
      fail_user("{}: {} is missing, which the steps of a table need; configs/clusters/a100.toml has it",
                cluster.file, key);
    }
  };
  need("measured.block_tflops", m.block_flops);
  if (s.pipeline > 1) need("measured.message.gb_s", m.message.bandwidth);
  const double h = s.n_embd, tokens = tokens_of(s);
  const auto [block, ends] = block_time(s, cluster);
  // A block makes two all-reduces in each of its forward, recomputed and backward pass.
  const double reduce = machine.seconds({.bytes = kBytes * tokens * h, .ranks = s.tensor});
  const int blocks = s.n_layer / s.pipeline, micro_batches = s.global_batch / s.micro_batch / s.data;
  // Tensor ranks send a part each and gather it.
  const int stride = s.tensor * s.data;
  const bool within = (s.pipeline - 1) * stride < cluster.devices_per_host;
  double message_bandwidth = m.message.bandwidth;
  if (!within)
    message_bandwidth =
        std::min(message_bandwidth, cluster.between.bandwidth / cluster.devices_per_host * s.tensor);
  const double message = m.message.latency + kBytes * tokens * h / std::sqrt(s.tensor) / message_bandwidth;
  const auto schedule = make_schedule(ScheduleKind::one_f_one_b, {s.pipeline, 1, micro_batches});
  std::vector<std::vector<StepAction>> stages;
  for (int stage = 0; stage < s.pipeline; ++stage) {
    const bool first = stage == 0, last = stage + 1 == s.pipeline;
    const double own = (first ? 0.1 * ends : 0) + (last ? 0.9 * ends : 0);
    const double forward = block * blocks / kPasses + own / 3,
                 backward = block * blocks * (1 - 1 / kPasses) + own * 2 / 3;
    auto& actions = stages.emplace_back();
    for (const auto& action : schedule.ranks[static_cast<std::size_t>(stage)]) {
      using Kind = Action::Kind;
      const bool is_forward = action.kind == Kind::forward;
      if (is_forward || action.kind == Kind::backward) {
        const bool receives = is_forward ? !first : !last;
        if (receives) {
          actions.push_back({.kind = StepAction::Kind::receive,
                             .term = CostTerm::stages,
                             .peer = is_forward ? stage - 1 : stage + 1,
                             .channel = is_forward ? 0 : 1});
        }
        actions.push_back({.term = is_forward ? CostTerm::forward : CostTerm::backward,
                           .seconds = is_forward ? forward : backward});
        actions.push_back({.term = CostTerm::tensor, .seconds = blocks * reduce * (is_forward ? 2 : 4)});
      } else if (action.kind == Kind::send_output || action.kind == Kind::send_gradient) {
        const bool output = action.kind == Kind::send_output;
        actions.push_back({.term = CostTerm::stages, .seconds = message});  // a blocking call
        actions.push_back({.kind = StepAction::Kind::send,
                           .peer = output ? stage + 1 : stage - 1,
                           .channel = output ? 0 : 1});
      }
    }
    double parameters = 12 * h * h * blocks;
    if (first) parameters += (kClasses + s.block_size) * h;
    if (last && !first) parameters += kClasses * h;
    parameters /= s.tensor;
    actions.push_back(
        {.term = CostTerm::gradients,
         .seconds = machine.seconds({.bytes = kBytes * parameters, .ranks = s.data, .stride = s.tensor})});
    if (s.pipeline > 1 && (first || last)) {
      actions.push_back({.term = CostTerm::gradients,
                         .seconds = machine.seconds({.bytes = kBytes * kClasses * h / s.tensor,
                                                     .ranks = 2,
                                                     .stride = (s.pipeline - 1) * stride})});
    }
    actions.push_back({.term = CostTerm::update, .seconds = m.update * parameters});
  }
  return simulate_step(stages, {}).seconds;
}

StepComparison compare_steps(std::vector<MeasuredStep> steps, const Cluster& cluster) {
  StepComparison result;
  result.steps = std::move(steps);
  std::map<std::tuple<int, int, int, int, int, int>, std::vector<std::size_t>> groups;
  std::vector<double> absolute;
  for (std::size_t i = 0; i < result.steps.size(); ++i) {
    const auto& s = result.steps[i];
    result.predicted.push_back(predict_measured(s, cluster));
    result.errors.push_back(result.predicted.back() / s.seconds - 1);
    absolute.push_back(std::abs(result.errors.back()));
    groups[{s.gpus, s.global_batch, s.n_embd, s.n_head, s.n_layer, s.block_size}].push_back(i);
  }
  for (const auto& [key, members] : groups) {
    const auto chosen =
        *std::ranges::min_element(members, {}, [&](std::size_t i) { return result.predicted[i]; });
    const auto best =
        *std::ranges::min_element(members, {}, [&](std::size_t i) { return result.steps[i].seconds; });
    const double regret = result.steps[chosen].seconds / result.steps[best].seconds - 1;
    result.workloads.push_back(
        {result.steps[chosen], result.steps[best], static_cast<int>(members.size()), regret});
    result.mean_regret += regret;
    result.worst_regret = std::max(result.worst_regret, regret);
  }
  result.mean_regret /= static_cast<double>(groups.size());
  std::ranges::sort(absolute);
  const auto quantile = [&](double share) {
    const double at = share * static_cast<double>(absolute.size() - 1);
    const auto below = static_cast<std::size_t>(at);
    const auto above = std::min(below + 1, absolute.size() - 1);
    return absolute[below] + (at - static_cast<double>(below)) * (absolute[above] - absolute[below]);
  };
  result.median_error = quantile(0.5);
  result.p90_error = quantile(0.9);
  return result;
}

}  // namespace shoal
