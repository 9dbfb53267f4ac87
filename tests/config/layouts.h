// Configs with a layout of ranks, for the tests of layouts and plans.
#pragma once

#include <string>

#include "config/config.h"

namespace shoal::test {

// A micro-batch given by an argument, which is not adapted to the ranks.
inline Config config_of(int global_batch, int micro_batch = 0, Determinism deterministic = Determinism::off) {
  Config config;
  config.fixed.insert("train.micro_batch");
  config.train.global_batch = global_batch;
  config.train.micro_batch = micro_batch;
  config.run.deterministic = deterministic;
  return config;
}

// A config with a mesh.
inline Config mesh_of(int pipeline, int data, int tensor) {
  auto config = config_of(24);
  config.parallel.pipeline = pipeline;
  config.parallel.data = data;
  config.parallel.tensor = tensor;
  return config;
}

// A config with gossip workers.
inline Config workers_of(const std::string& topology, int global_batch = 16, int micro_batch = 0) {
  auto config = config_of(global_batch, micro_batch);
  config.parallel.engine = EngineKind::gossip;
  config.gossip.topology = topology;
  return config;
}

inline constexpr GptConfig kModel = {
    .n_layer = 6, .n_head = 4, .n_embd = 32, .block_size = 10, .vocab_size = 50};

}  // namespace shoal::test
