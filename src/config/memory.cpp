#include "config/memory.h"

#include <sys/resource.h>

#include <algorithm>
#include <fstream>
#include <limits>
#include <optional>
#include <utility>

#include "checkpoint/memory_folder.h"
#include "checkpoint/output_file.h"
#include "core/control_groups.h"
#include "core/cores.h"
#include "core/error.h"
#include "core/process_limits.h"
#include "core/text.h"
#include "data/batch_loader.h"
#include "generate/decoder.h"
#include "model/arena.h"
#include "model/unit.h"
#include "ops/make_backend.h"
#include "parallel/data/data_engine.h"

namespace shoal {
namespace {

// CUDA's libraries, with what they keep on the host: a run on an H200 took so much more than is counted.
constexpr double kCudaLibraries = 512 << 20;

// The peak resident size of a run of the smallest model, whose own buffers are negligible, on x86-64.
double program_bytes(const RunPlan& plan) {
  constexpr double kProgram = 21 << 20;
  return kProgram + (plan.backend == BackendKind::cuda ? kCudaLibraries : 0);
}
// The same of each rank: 0.6 to 1.3 MiB.
constexpr double kThreadBytes = 1 << 20;
// Memory that MPI adds to a rank, measured with Open MPI 4.1 and MPICH 4.0, 2 to 8 ranks on a host.
constexpr double kMpiBytes = 18 << 20;

// The driver's count of a GPU's memory in use beyond what the program takes: 0.53 GiB on an H200 with CUDA
// 13, for runs of 8 to 25 GiB. GPUs with fewer multiprocessors take less.
constexpr double kCudaBytes = 0.53 * (1 << 30);

int threads_of(const RunPlan& plan, const RankCounts& ranks) {
  if (plan.threads > 0) return plan.threads;
  return ranks.cores > 0 ? ranks.cores : std::max(1, usable_cores() / ranks.local_size);
}

double kernel_scratch(const RunPlan& plan, const RankCounts& ranks, const TensorRank& tensor, bool head) {
  const auto& model = plan.model;
  const std::int64_t heads = local_heads(model, tensor).count();
  const auto& batch = plan.pipeline.batch;
  const auto classes = padded_vocabulary(model, tensor), widest = widest_vocabulary(model, tensor.size);
  const KernelSizes sizes{
      .batch = batch.batch,
      .positions = model.block_size,
      .heads = heads,
      .head_size = model.head_size(),
      .columns = std::max(
          {local_hidden(model, tensor).count(), 3 * heads * model.head_size(), std::int64_t{model.n_embd}}),
      .channels = model.n_embd,
      .classes = head ? classes : 0,
      .logit_rows =
          head ? std::min(batch.rows(), std::max<std::int64_t>(64, plan.pipeline.logits.elements / widest))
               : 0,
      .compute = plan.engine.compute,
      .gradients = plan.engine.gradients,
      .dropout = model.dropout > 0,
      .ordered = plan.ordered};
  return static_cast<double>(scratch_bytes(plan.backend, sizes, threads_of(plan, ranks)));
}

// The part of a checkpoint that a rank writes: parameters and optimizer state, each element on one rank.
double share_of_checkpoint(const RunPlan& plan, const ModelPart& part, const std::vector<UnitSpec>& units) {
  double elements = 0;
  for (const auto& unit : units) {
    for (const auto& parameter : unit.parameters) {
      if (!owns(part, unit, parameter)) continue;
      const int tensors = plan.saved_tensors(unit, parameter);
      for (const auto& box : parameter.boxes()) elements += tensors * static_cast<double>(box.shape.count());
    }
  }
  return 4 * elements / plan.mesh.data;
}

double read_number(const std::string& path) {
  std::ifstream file(path);
  double value = 0;
  return file >> value ? value : 0;
}

// The number of entry `name` in a file with lines of names and numbers.
double read_entry(const std::string& path, std::string_view name) {
  std::ifstream file(path);
  double value = 0;
  for (std::string key; file >> key >> value;) {
    if (key == name) return value;
  }
  return 0;
}

// The memory that this process's control groups still allow; infinity without a limit.
double left_in_control_groups() {
  double left = std::numeric_limits<double>::infinity();
  for (const auto& group : control_groups("memory")) {
    const auto file = group.folder + "/memory.";
    const double limit = read_number(file + (group.second ? "max" : "limit_in_bytes"));
    const double used = read_number(file + (group.second ? "current" : "usage_in_bytes"));
    const double cached = read_entry(file + "stat", group.second ? "inactive_file" : "total_inactive_file");
    if (limit > 0) left = std::min(left, limit - used + cached);  // the system reclaims cached files
  }
  return left;
}

// The bytes that `ulimit -v` leaves to the ranks of this host, beside the stacks of their threads. Every
// process has the limit to itself.
double left_for_ranks(const RunPlan& plan, const RankCounts& ranks) {
  const int processes = ranks.threads ? 1 : ranks.local_size, ranks_of_one = ranks.local_size / processes;
  // Of each rank: a team, one that reads data, and one that saves.
  const double stacks = ranks_of_one * (threads_of(plan, ranks) + 1) * thread_stack_bytes();
  return processes * std::max(address_space_left() - stacks, 0.0);
}

}  // namespace

RankCounts RankCounts::of(const World& world) {
  return {.world_size = world.ranks.size(),
          .local_size = world.local_size,
          .threads = world.ranks.name() != "mpi",
          .cores = world.cores};
}

MemoryEstimate estimate_memory(const RunPlan& plan, const RankCounts& ranks,
                               const MeshCoordinate& coordinate) {
  const auto& shape = plan.mesh;
  const auto options = plan.pipeline_options(coordinate);
  auto units = gpt_units(plan.model, options.part, plan.engine.decay);
  // Every run saves at least its last step.
  const double share = share_of_checkpoint(plan, options.part, units);
  const auto engine =
      engine_memory(plan.model, std::move(units), plan.engine_options(coordinate), shape.data);
  const auto activations = Pipeline::memory(plan.model, options, coordinate.pipeline);
  const auto rows = static_cast<double>(options.batch.rows());
  MemoryEstimate memory;
  memory.weights = static_cast<double>(engine.weights);
  memory.compute_copy = static_cast<double>(engine.compute_copy);
  memory.gradients = static_cast<double>(engine.gradients);
  memory.optimizer = static_cast<double>(engine.optimizer);
  memory.exchange = static_cast<double>(engine.exchange);
  memory.streaming = static_cast<double>(engine.streaming);
  memory.on_host = static_cast<double>(engine.on_host);
  memory.on_disk = static_cast<double>(engine.on_disk);
  memory.blocks = static_cast<double>(activations.blocks);
  memory.streams = static_cast<double>(activations.streams);
  memory.workspace = static_cast<double>(activations.workspace);
  memory.head = static_cast<double>(activations.head);
  if (plan.sampled_texts > 0) {
    auto tensor = options.part.tensor;
    tensor.sequence = false;
    memory.texts = static_cast<double>(
        Decoder::memory_bytes(plan.model, plan.engine.compute, plan.sampled_texts, tensor));
  }
  // int32 tokens and targets: the loader's ring, one step's on the backend, one more set there for
  // evaluation, and a host copy with predictions for evaluation.
  memory.batches =
      rows * 4 * (2 * (static_cast<double>(BatchLoader::kDepth) + options.micro_batches) + 2 + 3);
  const bool head = coordinate.pipeline + 1 == shape.pipeline;
  memory.scratch = kernel_scratch(plan, ranks, options.part.tensor, head);
  memory.checkpoint = (plan.on_disk() ? 0 : share) + std::min<double>(kChecksumBlock, share);
  if (plan.memory_checkpoints) {
    const bool copied = ranks.world_size > ranks.local_size;  // to a second host
    const bool buffered = plan.backend == BackendKind::cuda && memory.on_host == 0;
    memory.in_memory = (kMemoryStates * (copied ? 2 : 1) + (buffered ? 1 : 0)) * share;
  }
  memory.program = program_bytes(plan) + (ranks.threads ? 0 : kMpiBytes);
  memory.threads = kThreadBytes;
  if (plan.backend == BackendKind::cuda) {
    memory.cuda = kCudaBytes;
    memory.on_gpu = memory.state() + memory.activations() + memory.scratch + memory.cuda;
  }
  return memory;
}

namespace {

// The estimates of all tensor ranks, per stage. Data ranks are equal.
std::vector<MemoryEstimate> all_estimates(const RunPlan& plan, const RankCounts& ranks) {
  const auto& shape = plan.mesh;
  std::vector<MemoryEstimate> all;
  for (int stage = 0; stage < shape.pipeline; ++stage) {
    for (int tensor = 0; tensor < shape.tensor; ++tensor) {
      all.push_back(estimate_memory(plan, ranks, {.pipeline = stage, .data = 0, .tensor = tensor}));
    }
  }
  return all;
}

bool smaller(const MemoryEstimate& a, const MemoryEstimate& b) { return a.of_device() < b.of_device(); }

}  // namespace

MemoryEstimate estimate_memory(const RunPlan& plan, const RankCounts& ranks) {
  return std::ranges::max(all_estimates(plan, ranks), smaller);
}

std::vector<MemoryEstimate> estimate_stages(const RunPlan& plan, const RankCounts& ranks) {
  const auto all = all_estimates(plan, ranks);
  const std::ptrdiff_t tensor = plan.mesh.tensor;
  std::vector<MemoryEstimate> stages;
  for (auto first = all.begin(); first != all.end(); first += tensor) {
    stages.push_back(*std::max_element(first, first + tensor, smaller));
  }
  return stages;
}

double host_memory(const RunPlan& plan, const RankCounts& ranks) {
  const auto& shape = plan.mesh;
  const auto all = all_estimates(plan, ranks);
  double most = 0;
  for (int first = 0; first < shape.ranks(); first += ranks.local_size) {
    double here = 0;
    for (int rank = first; rank < std::min(first + ranks.local_size, shape.ranks()); ++rank) {
      const auto coordinate = coordinate_of(shape, rank);
      const auto& one = all[static_cast<std::size_t>(coordinate.pipeline * shape.tensor + coordinate.tensor)];
      here += one.total() - one.on_gpu - (ranks.threads && rank > first ? one.program : 0);
    }
    most = std::max(most, here);
  }
  return most;
}

double available_memory() {
  double available = 0;
  std::ifstream file("/proc/meminfo");
  for (std::string key; file >> key;) {
    if (key == "MemAvailable:") {
      file >> available;
      available *= 1024;
      break;
    }
    file.ignore(256, '\n');
  }
  return std::max(std::min(available, left_in_control_groups()), 0.0);
}

double peak_memory() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  return 1024.0 * static_cast<double>(usage.ru_maxrss);
}

namespace {

struct HostRoom {
  double need, have;
  bool limited;  // by `ulimit -v`
  bool fits() const { return need <= have; }
};

HostRoom host_room(const RunPlan& plan, const RankCounts& ranks, double freed) {
  // CUDA's libraries are open, and no longer available.
  const int processes = ranks.threads ? 1 : ranks.local_size;
  const double opened = plan.backend == BackendKind::cuda ? processes * kCudaLibraries : 0;
  const double known = available_memory(), left = left_for_ranks(plan, ranks);
  const double have = known == 0 ? std::numeric_limits<double>::infinity() : std::min(known + freed, left);
  return {host_memory(plan, ranks) - opened, have, have == left};
}

}  // namespace

bool fits_host(const RunPlan& plan, const RankCounts& ranks, double freed) {
  return host_room(plan, ranks, freed).fits();
}

void check_memory(const RunPlan& plan, const RankCounts& ranks, double freed) {
  const auto room = host_room(plan, ranks, freed);
  if (room.fits()) return;
  const auto need = estimate_memory(plan, ranks);
  const auto available = format_bytes(room.have) + (room.limited ? " (ulimit -v)" : "");
  if (need.on_host > 0) {
    fail_user(
        "this run needs {} of the host's memory{} and {} are available: {} pinned for parallel.offload = "
        "\"{}\", {} for checkpoints on each rank; set {}, or choose a smaller model (see shoal size)",
        format_bytes(room.need),
        ranks.local_size > 1 ? fmt::format(" for {} ranks on this host", ranks.local_size) : "", available,
        format_bytes(need.on_host), plan.on_disk() ? "disk" : "host",
        format_bytes(need.checkpoint + need.in_memory),
        need.on_disk == 0                            ? "parallel.offload=disk"
        : plan.mesh.data > 1 && plan.engine.zero < 3 ? "parallel.zero=3"
                                                     : "more ranks on more hosts");
  }
  fail_user(
      "this run needs {} of memory{} and {} are available: {} parameters, gradients and moments, {} "
      "activations of a micro-batch of {} x {} tokens, {} for checkpoints{}; lower train.micro_batch, set "
      "train.recompute=block{}{}, or choose a smaller model (see shoal size)",
      format_bytes(room.need),
      ranks.local_size > 1 ? fmt::format(" for {} ranks on this host", ranks.local_size) : "", available,
      format_bytes(need.state()), format_bytes(need.activations()), plan.pipeline.batch.batch,
      plan.model.block_size, format_bytes(need.checkpoint + need.in_memory),
      ranks.local_size == 1       ? ""
      : plan.ranks_of_model() > 1 ? " on the rank that needs most"
                                  : " on each",
      plan.mesh.data > 1 && plan.engine.zero < 3 ? ", set parallel.zero=3" : "",
      plan.memory_checkpoints ? ", leave checkpoint.memory out" : "");
}

}  // namespace shoal
