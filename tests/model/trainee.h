// Shared by tests of whole models: a small model on one rank, and batches for it.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>

#include "model/gpt.h"
#include "ops/buffer.h"
#include "parallel/data/data_engine.h"

namespace shoal::test {

inline double norm(const Values& values) { return std::sqrt((values * values).sum()); }

// Tokens and targets of a global batch, [B, T] flattened.
struct Tokens {
  std::vector<std::int32_t> tokens, targets;

  std::int64_t targets_that_count() const {
    return std::count_if(targets.begin(), targets.end(), [](std::int32_t target) { return target >= 0; });
  }
};

inline Tokens random_tokens(const GptConfig& config, std::int64_t batch, std::uint32_t which = 1) {
  const auto draw = [&](std::uint32_t part) {
    const Values values = random_integers(batch * config.block_size, 2 * which + part, config.vocab_size);
    return std::vector<std::int32_t>(std::begin(values), std::end(values));
  };
  return {.tokens = draw(0), .targets = draw(1)};
}

struct NamedValues {
  std::string name;
  Values values;
};

struct TraineeOptions {
  DType compute = DType::f32, stream = DType::f32, gradients = DType::f32;
  std::int64_t micro_batch = 1;
  int micro_batches = 1;  // per step
  Recompute recompute = Recompute::none;
  int recompute_blocks = -1;
  double grad_clip = 1.0;
  OptimizerOptions optimizer = {};
  bool backward = true;
  LogitsPlan logits = {};
};

// A model for sequences of block_size tokens, and the engine that owns its parameters.
class Trainee {
 public:
  static constexpr std::uint64_t kSeed = 1337;

  Trainee(std::unique_ptr<Backend> backend, const GptConfig& config, const TraineeOptions& options = {})
      : backend_(std::move(backend)),
        engine_(std::make_unique<DataEngine>(*backend_, mesh_, config,
                                             EngineOptions{.compute = options.compute,
                                                           .optimizer = options.optimizer,
                                                           .grad_clip = options.grad_clip,
                                                           .training = options.backward,
                                                           .micro_batches = options.micro_batches,
                                                           .gradients = options.gradients})),
        model_(*backend_, *engine_, config,
               {.batch = {options.micro_batch, config.block_size},
                .compute = options.compute,
                .stream = options.stream,
                .logits = options.logits,
                .recompute = options.recompute,
                .recompute_blocks = options.recompute_blocks,
                .backward = options.backward}),
        loss_(*backend_, DType::f64, {1}) {
    engine_->initialize(kSeed);
  }

  Backend& backend() { return *backend_; }
  DataEngine& engine() { return *engine_; }
  Gpt& model() { return model_; }

  // Computes all gradients of the mean loss over the batch; returns the loss.
  double backward(const Tokens& batch, std::int64_t step = 0, const Update& update = {}) {
    const auto counted = batch.targets_that_count();
    EXPECT_EQ(micro_batches(batch), engine_->passes());
    engine_->begin_step(step, update);
    const double sum = over_micro_batches(batch, step, [&](const TokenBatch& part) {
      model_.train(part, loss_, 1.0f / static_cast<float>(counted));
    });
    return sum / static_cast<double>(counted);
  }
  // Trains one step, counted from 0; returns the mean loss before the update.
  double train(const Tokens& batch, std::int64_t step, double lr) {
    const double loss = backward(batch, step, {lr, step + 1});
    engine_->measure_gradient();
    norm_ = engine_->gradient_norm();
    engine_->update();
    return loss;
  }
  // The norm of the whole gradient in the last step of training.
  double gradient_norm() const { return norm_; }

  double evaluate(const Tokens& batch) {
    const double sum =
        over_micro_batches(batch, 0, [&](const TokenBatch& part) { model_.evaluate(part, loss_); });
    return sum / static_cast<double>(batch.targets_that_count());
  }

  std::vector<NamedValues> parameters() {
    std::vector<NamedValues> result;
    for (const auto& tensor : engine_->state(false, DataEngine::Share::held))
      result.push_back({tensor.name, floats(tensor.data)});
    return result;
  }
  std::vector<NamedValues> gradients() {
    std::vector<NamedValues> result;
    for (int unit = 0; unit < static_cast<int>(engine_->units().size()); ++unit) {
      const UnitView view = engine_->gradients(unit, {});
      if (!view) continue;
      for (const auto& parameter : view.spec->parameters) {
        Tensor gradient = view[parameter.slice()];
        gradient.shape = parameter.shape;  // padding is rows after the last
        result.push_back({parameter.name, floats(gradient)});
      }
    }
    return result;
  }
  Values floats(const Tensor& x) {
    const Buffer wide(*backend_, DType::f32, x.shape);
    backend_->convert(wide, x);
    return wide.values();
  }

  // The bits of all parameters, gradients and moments, including padding.
  std::vector<std::byte> state_bits() {
    std::vector<std::byte> bits;
    const auto append = [&](const Tensor& flat) {
      const auto old = bits.size();
      bits.resize(old + flat.bytes());
      backend_->copy_to_host(bits.data() + old, flat);
    };
    for (int unit = 0; unit < static_cast<int>(engine_->units().size()); ++unit) {
      append(engine_->weights(unit).flat);
      if (const UnitView view = engine_->gradients(unit, {})) append(view.flat);
    }
    for (const auto& tensor : engine_->state(true, DataEngine::Share::held)) append(tensor.data);
    return bits;
  }

 private:
  std::int64_t micro_batches(const Tokens& batch) const {
    const auto per_micro_batch = model_.options().batch.rows();
    return static_cast<std::int64_t>(batch.tokens.size()) / per_micro_batch;
  }

  template <typename F>
  double over_micro_batches(const Tokens& batch, std::int64_t step, F&& f) {
    const auto& shape = model_.options().batch;
    backend_->zero(loss_);
    const Scalar<std::uint32_t> number(*backend_, static_cast<std::uint32_t>(step));
    const Buffer tokens(*backend_, DType::i32, {shape.batch, shape.positions});
    const Buffer targets(*backend_, DType::i32, {shape.batch, shape.positions});
    for (std::int64_t i = 0; i < micro_batches(batch); ++i) {
      backend_->copy_from_host(tokens, batch.tokens.data() + i * shape.rows());
      backend_->copy_from_host(targets, batch.targets.data() + i * shape.rows());
      f(TokenBatch{.tokens = tokens,
                   .targets = targets,
                   .address = {.seed = kSeed, .step = number.get(), .first_sample = i * shape.batch}});
    }
    return loss_.values()[0];
  }

  std::unique_ptr<Backend> backend_;
  std::unique_ptr<Communicator> self_ = make_self_communicator();
  Mesh mesh_{*self_};
  std::unique_ptr<DataEngine> engine_;
  Gpt model_;
  Buffer loss_;
  double norm_ = 0;
};

}  // namespace shoal::test
