#include "parallel/pipeline/pipeline.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <tuple>
#include <utility>

#include "core/error.h"
#include "core/trace.h"

namespace shoal {
namespace {

// Equal buffers, and which micro-batch has which. A buffer that is given back may still be on its way.
class Slots {
 public:
  explicit Slots(std::size_t count) : holders_(count, -1), requests_(count) {}

  int take(int micro_batch) {
    const auto free = std::find(holders_.begin(), holders_.end(), -1);
    if (free == holders_.end()) fail("the pipeline's schedule needs more buffers than it said");
    *free = micro_batch;
    const int slot = static_cast<int>(free - holders_.begin());
    request(slot).wait();
    return slot;
  }
  int of(int micro_batch) const {
    const auto found = std::find(holders_.begin(), holders_.end(), micro_batch);
    if (found == holders_.end()) fail("the pipeline's schedule uses a buffer that it did not take");
    return static_cast<int>(found - holders_.begin());
  }
  void give_back(int micro_batch) { holders_[static_cast<std::size_t>(of(micro_batch))] = -1; }
  Request& request(int slot) { return requests_[static_cast<std::size_t>(slot)]; }

 private:
  std::vector<int> holders_;
  std::vector<Request> requests_;
};

PipelineShape shape_of(const PipelineOptions& options, int micro_batches) {
  return {.stages = options.stages,
          .chunks = std::max(1, static_cast<int>(options.part.chunks.size())),
          .micro_batches = micro_batches};
}

Schedule schedule_of(const PipelineOptions& options) {
  return make_schedule(options.schedule, shape_of(options, options.micro_batches));
}

// The buffers of each chunk. Those of all schedules are kept: the planner asks for the memory of their stages
// thousands of times.
const std::vector<PipelineBuffers>& buffers_of(const PipelineOptions& options, int stage) {
  using Key = std::tuple<ScheduleKind, int, int, int>;
  thread_local std::map<Key, std::vector<std::vector<PipelineBuffers>>> all;
  const auto [stages, chunks, micro_batches] = shape_of(options, options.micro_batches);
  auto& known = all[{options.schedule, stages, chunks, micro_batches}];
  if (known.empty()) {
    const auto schedule = schedule_of(options);
    for (int rank = 0; rank < stages; ++rank) known.push_back(buffers_needed(schedule, rank));
  }
  return known[static_cast<std::size_t>(stage)];
}

// An output is sent right behind its pass, so one is made while the one before may be on its way.
int outgoing_streams(const GptConfig& config, const PipelineOptions& options) {
  const auto ranges = options.part.ranges(config);
  const bool sends = std::any_of(ranges.begin(), ranges.end(),
                                 [&](const UnitRange& range) { return range.end != config.n_layer + 2; });
  return sends ? 2 : 0;
}

}  // namespace

struct Pipeline::Outgoing {
  Arena arena;
  std::vector<Tensor> streams;
  Slots slots;

  Outgoing(Backend& backend, const GptConfig& config, const PipelineOptions& options)
      : arena(backend, bytes(config, options)),
        streams(carve(arena, config, options)),
        slots(streams.size()) {}
  static std::vector<Tensor> carve(Arena& arena, const GptConfig& config, const PipelineOptions& options) {
    std::vector<Tensor> streams(static_cast<std::size_t>(outgoing_streams(config, options)));
    for (auto& stream : streams) {
      stream = arena.take(options.stream, stream_shape(config, options.batch, options.part.tensor));
    }
    return streams;
  }
  static std::size_t bytes(const GptConfig& config, const PipelineOptions& options) {
    Arena measure;
    carve(measure, config, options);
    return measure.used();
  }
  Tensor take(int key) { return streams[static_cast<std::size_t>(slots.take(key))]; }
  // Sends what was taken under this key.
  void send(Communicator& stages, int key, int to) {
    const int slot = slots.of(key);
    slots.request(slot) = stages.send(streams[static_cast<std::size_t>(slot)], to);
    slots.give_back(key);
  }
};

// One range of units, and the buffers of its micro-batches.
struct Pipeline::Chunk {
  int number;  // of this rank's
  Gpt gpt;
  Slots inputs, activations, gradients;

  Chunk(int its_number, Backend& backend, UnitStore& store, const GptConfig& config,
        const GptOptions& options, const TensorGroup& tensor, const Workspace* shared)
      : number(its_number),
        gpt(backend, store, config, options, tensor, shared),
        inputs(static_cast<std::size_t>(options.inputs)),
        activations(static_cast<std::size_t>(options.activations)),
        gradients(static_cast<std::size_t>(options.gradients)) {}
};

struct Pipeline::Step {
  std::span<const TokenBatch> batches;
  Tensor losses;
  float scale;

  Tensor loss(int micro_batch) const {
    const std::int64_t stride = losses.shape.rank() > 1 ? losses.columns() : 1;
    return {losses.as<double>() + micro_batch * stride, DType::f64, {1}};
  }
};

int PipelineOptions::recomputed_blocks(int range) const {
  if (recompute_blocks.empty()) return -1;
  return recompute_blocks.size() > 1 ? recompute_blocks[static_cast<std::size_t>(range)]
                                     : recompute_blocks.front();
}

std::vector<GptOptions> Pipeline::chunk_options(const GptConfig& config, const PipelineOptions& options,
                                                int stage) {
  std::vector<GptOptions> chunks;
  for (const auto& units : options.part.ranges(config)) {
    const int range = static_cast<int>(chunks.size()) * options.stages + stage;
    chunks.push_back({.batch = options.batch,
                      .compute = options.compute,
                      .stream = options.stream,
                      .logits = options.logits,
                      .recompute = options.recompute,
                      .recompute_blocks = options.recomputed_blocks(range),
                      .backward = options.backward,
                      .units = units});
    if (!options.backward) continue;
    const auto& needed = buffers_of(options, stage)[chunks.size() - 1];
    chunks.back().inputs = needed.inputs;
    chunks.back().activations = needed.activations;
    chunks.back().gradients = needed.gradients;
  }
  chunks.front().workspace_recomputes =
      std::ranges::any_of(chunks, [](const GptOptions& chunk) { return chunk.recompute_blocks != 0; });
  return chunks;
}

Gpt::Memory Pipeline::memory(const GptConfig& config, const PipelineOptions& options, int stage) {
  Gpt::Memory memory{.streams = Outgoing::bytes(config, options)};
  bool shared = false;
  for (const auto& chunk : chunk_options(config, options, stage)) {
    const auto part = Gpt::memory(config, chunk, options.part.tensor, std::exchange(shared, true));
    memory.blocks += part.blocks;
    memory.streams += part.streams;
    memory.workspace += part.workspace;
    memory.head += part.head;
  }
  return memory;
}

Pipeline::Pipeline(Backend& backend, UnitStore& store, Mesh& mesh, const GptConfig& config,
                   const PipelineOptions& options)
    : mesh_(mesh), options_(options) {
  const int stage = mesh.coordinate().pipeline;
  if (options.backward) actions_ = schedule_of(options).ranks[static_cast<std::size_t>(stage)];
  outgoing_ = std::make_unique<Outgoing>(backend, config, options);
  const TensorGroup tensor(mesh.tensor(), options.part.tensor.sequence);
  for (const auto& chunk : chunk_options(config, options, stage)) {
    chunks_.push_back(std::make_unique<Chunk>(static_cast<int>(chunks_.size()), backend, store, config, chunk,
                                              tensor,
                                              chunks_.empty() ? nullptr : &chunks_.front()->gpt.workspace()));
  }
}

Pipeline::~Pipeline() = default;

Tensor Pipeline::predictions() const { return chunks_.back()->gpt.predictions(); }
Tensor Pipeline::losses() const { return chunks_.back()->gpt.losses(); }
bool Pipeline::has_loss() const { return chunks_.back()->gpt.last(); }

void Pipeline::train(std::span<const TokenBatch> batches, const Tensor& losses, float scale) {
  const Step step{batches, losses, scale};
  for (const auto& action : actions_) follow(action, step);
}

void Pipeline::train_one(const TokenBatch& batch, const Tensor& loss, float scale) {
  const auto schedule = make_schedule(options_.schedule, shape_of(options_, 1));
  const Step step{{&batch, 1}, loss, scale};
  for (const auto& action : schedule.ranks[static_cast<std::size_t>(mesh_.coordinate().pipeline)]) {
    follow(action, step);
  }
}

void Pipeline::follow(const Action& action, const Step& step) {
  const int m = action.micro_batch;
  auto& chunk = *chunks_[static_cast<std::size_t>(action.chunk)];
  switch (action.kind) {
    case Action::Kind::receive_input: {
      const int slot = chunk.inputs.take(m);
      mesh_.activations().set_purpose(fmt::format("input of micro-batch {}", m));
      chunk.inputs.request(slot) = mesh_.activations().receive(chunk.gpt.input(slot), previous_stage());
      return;
    }
    case Action::Kind::forward:
      return forward(chunk, m, step);
    case Action::Kind::send_output:
      mesh_.activations().set_purpose(fmt::format("output of micro-batch {}", m));
      return outgoing_->send(mesh_.activations(), output_key(action.chunk, m), next_stage());
    case Action::Kind::receive_gradient: {
      const int slot = chunk.gradients.take(m);
      mesh_.gradients().set_purpose(fmt::format("gradient of the output of micro-batch {}", m));
      chunk.gradients.request(slot) = mesh_.gradients().receive(chunk.gpt.gradient(slot), next_stage());
      return;
    }
    case Action::Kind::backward:
      return backward(chunk, m, step);
    case Action::Kind::send_gradient: {
      const int slot = chunk.gradients.of(m);
      mesh_.gradients().set_purpose(fmt::format("gradient of the input of micro-batch {}", m));
      chunk.gradients.request(slot) = mesh_.gradients().send(chunk.gpt.gradient(slot), previous_stage());
      chunk.gradients.give_back(m);
      return;
    }
  }
}

void Pipeline::forward(Chunk& chunk, int micro_batch, const Step& step) {
  auto& gpt = chunk.gpt;
  const int input = gpt.first() ? chunk.inputs.take(micro_batch) : chunk.inputs.of(micro_batch);
  chunk.inputs.request(input).wait();
  const Gpt::Slots slots{.input = input, .activations = chunk.activations.take(micro_batch)};
  const Tensor out = gpt.last() ? Tensor{} : outgoing_->take(output_key(chunk.number, micro_batch));
  const trace::Span span("micro-batch", "forward", micro_batch);
  gpt.forward(step.batches[static_cast<std::size_t>(micro_batch)], slots, out);
}

void Pipeline::backward(Chunk& chunk, int micro_batch, const Step& step) {
  auto& gpt = chunk.gpt;
  const int gradient = gpt.last() ? chunk.gradients.take(micro_batch) : chunk.gradients.of(micro_batch);
  chunk.gradients.request(gradient).wait();
  const Gpt::Slots slots{.input = chunk.inputs.of(micro_batch),
                         .activations = chunk.activations.of(micro_batch),
                         .gradient = gradient};
  {
    const trace::Span span("micro-batch", "backward", micro_batch);
    gpt.backward(step.batches[static_cast<std::size_t>(micro_batch)], slots, step.loss(micro_batch),
                 step.scale);
  }
  chunk.inputs.give_back(micro_batch);
  chunk.activations.give_back(micro_batch);
  if (gpt.first()) chunk.gradients.give_back(micro_batch);  // else when it has been sent
}

void Pipeline::evaluate(const TokenBatch& batch, const Tensor& loss) {
  TokenBatch quiet = batch;
  quiet.address.training = false;
  for (auto& chunk : chunks_) {
    auto& gpt = chunk->gpt;
    mesh_.activations().set_purpose("activations of an evaluation");
    if (!gpt.first()) mesh_.activations().receive(gpt.input(0), previous_stage()).wait();
    gpt.forward(quiet, {}, gpt.last() ? Tensor{} : outgoing_->take(0));
    if (gpt.last()) {
      gpt.evaluate_head(quiet, {}, loss);
    } else {
      outgoing_->send(mesh_.activations(), 0, next_stage());
    }
  }
}

}  // namespace shoal
