// The plan of a run: everything that follows from a config and its ranks, resolved once. It has the mesh,
// gossip's topology, the micro-batches, the pipeline's stages, and for each rank its part of the model and
// its options. The trainer, evaluation, the dry run, `shoal size` and the memory estimate use it.
#pragma once

#include <string>
#include <vector>

#include "comm/world.h"
#include "config/config.h"
#include "parallel/data/engine_options.h"
#include "parallel/mesh.h"
#include "parallel/pipeline/pipeline.h"

namespace shoal {

struct RunPlan {
  GptConfig model;
  BackendKind backend = BackendKind::cpu;
  int threads = 0;  // per rank; 0: the host's cores / its ranks
  GpuExchange exchange = GpuExchange::automatic;
  MeshShape mesh;
  bool sequence = false;  // tensor ranks share the tokens
  int sampled_texts = 0;  // that an evaluation writes together
  bool memory_checkpoints = false;
  bool graph = true;                                // train.graph
  bool tune = true, ordered = false, tf32 = false;  // of BackendOptions
  std::vector<UnitRange> ranges;  // range k is on stage k % mesh.pipeline; empty without a pipeline

  ModelPart part(const MeshCoordinate& coordinate) const;
  EngineOptions engine_options(const MeshCoordinate& coordinate = {}) const;
  PipelineOptions pipeline_options(const MeshCoordinate& coordinate = {}) const;

  // Gossip's topology; null without gossip.
  const Topology* topology() const { return engine.gossip ? &engine.gossip->topology : nullptr; }
  // Steps from one of its rounds to the next.
  std::int64_t steps_of_round() const { return engine.outer ? engine.outer->interval : 1; }
  // Micro-batches of a worker in a step. Micro-batches are assigned round-robin to workers, and then to the
  // data ranks of a worker.
  int micro_batches() const { return engine.micro_batches; }
  int ranks_of_model() const { return mesh.tensor * mesh.pipeline; }
  // Whether each step, also of generation, queues the same work and waits for nobody, so that a GPU can
  // capture it as a graph: messages to other ranks, the account of gathered weights, copies from the host and
  // steps that end an interval cannot be captured.
  bool can_capture_steps() const {
    return graph && mesh.ranks() == 1 && engine.zero < 3 && !engine.on_host && !engine.outer;
  }
  // Tensors that the optimizers keep beside a hidden matrix, or beside each other parameter.
  int optimizer_tensors(bool matrix = false) const {
    const auto optimizer = make_optimizer(engine.optimizer);
    const auto states = matrix ? optimizer->matrix_states() : optimizer->state_names().size();
    return static_cast<int>(states + (engine.ema > 0 ? 1 : 0) +
                            (engine.outer ? outer_states(*engine.outer) : 0));
  }
  // Float32 tensors of a parameter in a checkpoint.
  int saved_tensors(const UnitSpec& unit, const ParameterSpec& parameter) const {
    return 1 + (unit.trained ? optimizer_tensors(parameter.matrix) : 0);
  }
  bool on_disk() const { return !engine.offload.empty(); }  // whether state is offloaded to disk

  EngineOptions engine = {};      // common to all ranks; engine_options() adds the part of the model
  PipelineOptions pipeline = {};  // common to all ranks

  bool operator==(const RunPlan&) const = default;
};

// Makes the plan of a config with a resolved layout (config/layout.h). Throws UserError when the model cannot
// be partitioned over the mesh: too few heads, blocks, ...
RunPlan make_plan(const Config& config, const GptConfig& model);
// The same for the model of the config, whose vocabulary must be known.
RunPlan make_plan(const Config& config);

// The options of a rank's backend; ranks with the cpu backend agree on the level of their kernels.
// Collective.
BackendOptions backend_options(const RunPlan& plan, int threads, const World& world);
// The same with train.threads threads, or with this rank's share of the host's cores.
BackendOptions backend_options(const Config& config, const World& world);

// "bfloat16", "bfloat16 with residual stream and gradients": the types of a run that are not float32, if any.
std::string types_text(const RunPlan& plan);
// "2 stages x 4 data x 2 tensor ranks with sequence parallelism"; "" for data ranks only.
std::string mesh_text(const RunPlan& plan);
// The same of a shape.
std::string mesh_text(const MeshShape& mesh, bool sequence);
// The units of a stage: "embedding, block.0-3".
std::string stage_text(const RunPlan& plan, int stage);

}  // namespace shoal
