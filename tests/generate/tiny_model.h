// A model small enough to generate in no time, with weights large enough that its tokens depend on every
// position that it sees.
#pragma once

#include <cmath>
#include <memory>
#include <span>

#include "comm/communicator.h"
#include "model/tensor_group.h"
#include "parallel/data/data_engine.h"

namespace shoal::test {

// Sizes that divide nothing: 61 classes are padded to 64, a block of 13 is cut to 6.
inline GptConfig tiny_config() {
  GptConfig config;
  config.n_layer = 2;
  config.n_head = 3;
  config.n_embd = 24;
  config.block_size = 13;
  config.vocab_size = 61;
  return config;
}

// The loss of the token `target` after logits.
inline double loss_of(std::span<const float> logits, std::int32_t target) {
  double sum = 0;
  for (const float logit : logits) sum += std::exp(double{logit});
  return std::log(sum) - double{logits[static_cast<std::size_t>(target)]};
}

// One rank's part of the model, where there are `ranks`: a tensor-parallel group.
struct TinyModel {
  explicit TinyModel(std::unique_ptr<Backend> backend_, DType compute_ = DType::f32,
                     Communicator* ranks = nullptr, const GptConfig& config_ = tiny_config())
      : config(config_),
        backend(std::move(backend_)),
        compute(compute_),
        mesh(ranks ? *ranks : *self, {.tensor = ranks ? ranks->size() : 1}) {
    EngineOptions options{.part = {.tensor = tensor().tensor_rank(), .chunks = {}}, .compute = compute};
    options.training = false;
    engine = std::make_unique<DataEngine>(*backend, mesh, config, options);
    engine->initialize(7);
    for (const auto& tensor : engine->state(false, DataEngine::Share::held)) {
      if (tensor.shape.rank() < 2) continue;
      backend->scale(tensor.data, tensor.data, 15);
    }
    engine->state_loaded();
  }

  TensorGroup tensor() { return {mesh.tensor(), false}; }

  GptConfig config;
  std::unique_ptr<Backend> backend;
  DType compute;
  std::unique_ptr<Communicator> self = make_self_communicator();
  Mesh mesh;
  std::unique_ptr<DataEngine> engine;
};

}  // namespace shoal::test
