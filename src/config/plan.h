// All that follows from a config and its ranks, resolved once: the mesh, the topology of gossip, the
// micro-batches, the pipeline's stages, and for each rank its part of the model and its options. The trainer,
// evaluation, the dry run, `shoal size` and the memory estimate take it.
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
  bool sequence = false;          // tensor ranks share the tokens
  std::vector<UnitRange> ranges;  // range k is on stage k % mesh.pipeline; empty without a pipeline

  ModelPart part(const MeshPlace& place) const;
  EngineOptions engine_options(const MeshPlace& place = {}) const;
  PipelineOptions pipeline_options(const MeshPlace& place = {}) const;

  // With gossip, which every round of averaging follows; else null.
  const Topology* topology() const { return engine.gossip ? &engine.gossip->topology : nullptr; }
  // Of a worker in a step; workers take micro-batches in turn, and a worker's data ranks do.
  int micro_batches() const { return engine.micro_batches; }
  int ranks_of_model() const { return mesh.tensor * mesh.pipeline; }
  // Tensors that the optimizer keeps beside each parameter.
  int optimizer_tensors() const {
    return static_cast<int>(make_optimizer(engine.optimizer)->state_names().size());
  }
  bool on_disk() const { return !engine.offload.empty(); }  // whether state rests there

  EngineOptions engine = {};      // of every rank, without its part of the model
  PipelineOptions pipeline = {};  // likewise

  bool operator==(const RunPlan&) const = default;
};

// The config's layout must be resolved (config/layout.h). Throws UserError when the model cannot be spread
// over the mesh: too few heads, blocks, ...
RunPlan make_plan(const Config& config, const GptConfig& model);

// train.threads, or this rank's share of its host's cores.
BackendOptions backend_options(const Config& config, const World& world);

// "2 stages x 4 data x 2 tensor ranks with sequence parallelism"; "" for data ranks alone.
std::string mesh_text(const RunPlan& plan);
// A stage's units: "embedding, block.0-3".
std::string stage_text(const RunPlan& plan, int stage);

}  // namespace shoal
