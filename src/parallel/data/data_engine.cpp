#include "parallel/data/data_engine.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "core/error.h"
#include "ops/int8.h"

namespace shoal {
namespace {

DataGroups split_groups(Communicator& group, const ShardPlan& plan) {
  return {.pieces = group.split([&](int rank) { return plan.in_pieces(rank); }),
          .shards = group.split([&](int rank) { return plan.in_shards(rank); }),
          .replicas = group.split([&](int rank) { return plan.in_replicas(rank); })};
}

// The plan of the gradients. With sums of a fixed order, the two uses of a tied embedding's matrix have sums
// of their own where one rank has both, as they do where they are on two stages.
ShardPlan plan_gradients(const ShardPlan& trained, const GptConfig& config, const EngineOptions& options) {
  const bool apart = config.tied && options.layout_exact && options.part.computes(0) &&
                     options.part.computes(config.n_layer + 1) && trained.unit(0).trained;
  return apart ? trained.with_tied_use() : trained;
}

// Without gossip, one bucket of all units.
std::vector<Bucket> buckets_of(const ShardPlan& plan, const EngineOptions& options) {
  if (options.gossip) return make_buckets(plan, options.gossip->bucket_bytes);
  return {{0, plan.unit_count() - 1}};
}

// An update streams most tensors: master weights, and the parameters made of them where those rest too; in
// training the optimizer's state and the gradient.
StreamBuffers take_stream(EngineArenas& arenas, const ShardPlan& plan, const EngineOptions& options,
                          int state_tensors) {
  int tensors = options.zero == 3 && options.compute != DType::f32 ? 2 : 1;
  if (options.training) tensors += state_tensors + (options.zero >= 2 ? 1 : 0);
  if (options.training && options.outer) tensors = std::max(tensors, 4);
  std::int64_t largest = 0;
  plan.for_units([&](int u) { largest = std::max(largest, plan.shard_size(u)); });
  return StreamBuffers::take(arenas.streaming, options.offload.empty() ? nullptr : &arenas.host, tensors,
                             std::min(largest, options.streamed));
}

EngineMemory measure(const ShardPlan& parameters, const ShardPlan& trained, const ShardPlan& gradients,
                     const EngineOptions& options) {
  EngineArenas arenas;
  EngineBuffers::take(arenas, parameters, trained, gradients, options);
  return arenas.used();
}

}  // namespace

EngineBuffers EngineBuffers::take(EngineArenas& arenas, const ShardPlan& parameters, const ShardPlan& trained,
                                  const ShardPlan& gradients, const EngineOptions& options) {
  const EngineMode mode(options, parameters);
  const auto optimizer = make_optimizer(options.optimizer);
  const auto state_tensors = optimizer->state_names().size();
  EngineBuffers b;
  b.weights = WeightBuffers::take(arenas, parameters, mode, options.compute);
  if (mode.on_host) b.stream = take_stream(arenas, parameters, options, static_cast<int>(state_tensors));
  if (!options.training) return b;
  for (std::size_t i = 0; i < state_tensors; ++i) {
    b.optimizer.state.emplace_back(arenas.for_state(arenas.optimizer, mode), trained,
                                   i < optimizer->matrix_states());
  }
  b.gradients = GradientBuffers::take(arenas, gradients, mode, options);
  if (options.gossip && options.gossip->topology.workers > 1) {
    if (!options.outer) b.mixed = arenas.exchange.take(DType::f32, {trained.total() / trained.shards()});
    b.average = AverageBuffers::take(arenas.exchange);
  }
  if (options.ema > 0) b.optimizer.average.emplace(arenas.for_state(arenas.optimizer, mode), trained);
  if (options.outer) {
    b.outer = OuterBuffers::take(arenas.for_state(arenas.optimizer, mode), arenas.exchange, trained,
                                 *options.outer, options.gossip ? options.gossip->topology.workers : 1);
  }
  b.optimizer.clip = arenas.exchange.take(DType::f32, {1});
  b.optimizer.scalars = arenas.exchange.take(DType::f32, {optimizer->scalar_count()});
  b.norm = NormBuffers::take(arenas.exchange, trained, options.part.tensor.size);
  b.squares = arenas.exchange.take(DType::f64, {1});
  if (optimizer->takes_whole_matrices()) {
    b.matrices =
        MatrixBuffers::take(arenas.exchange, trained, buckets_of(trained, options), options, !mode.on_host);
  }
  return b;
}

DataEngine::DataEngine(Backend& backend, Mesh& mesh, const GptConfig& config, const EngineOptions& options)
    : backend_(backend),
      mesh_(mesh),
      options_(options),
      tied_(config.tied),
      optimizer_(make_optimizer(options.optimizer)),
      plan_(gpt_units(config, options.part, options.decay), options.zero, options.replicate,
            mesh.data().rank(), mesh.data().size()),
      trained_(plan_.trained()),
      gradient_plan_(plan_gradients(trained_, config, options)),
      mode_(options, plan_),
      arenas_(backend, measure(plan_, trained_, gradient_plan_, options), options.offload),
      buffers_(EngineBuffers::take(arenas_, plan_, trained_, gradient_plan_, options)),
      stream_(backend, buffers_.stream, arenas_.resting(mode_)),
      groups_(split_groups(mesh.data(), plan_)),
      weights_(backend, *groups_.shards, plan_, buffers_.weights, mode_, stream_),
      buckets_(buckets_of(trained_, options)),
      norm_(backend, mesh, *groups_.pieces, trained_, options.part, buffers_.norm, stream_) {
  if (gradient_plan_.unit_count() > plan_.unit_count()) {
    tied_unit_ = plan_.unit_count();
  } else if (config.tied && !options.part.computes(0) && options.part.computes(head())) {
    tied_unit_ = 0;
  }
  if (!options.training) return;
  if (options.gradients != DType::f32) {
    if (options.gradients != options.compute)
      fail("gradients in {} need products in it", name_of(options.gradients));
    if (optimizer_->takes_whole_matrices() || options.ema > 0 || options.gossip || options.outer)
      fail("directions, averages and outer optimizers keep float32 numbers in the memory of gradients");
  }
  if (optimizer_->takes_whole_matrices())
    dealer_.emplace(backend, *optimizer_, groups_, mesh.tensor(), trained_, buffers_.matrices, stream_);
  if (by_bucket() && (mesh.worker().size() > 1 || options.layout_exact || options.outer)) {
    fail(
        "updates in the backward pass need workers of one rank, sums of no fixed order, and no outer "
        "optimizer");
  }
  if (mesh.peers().size() > 1) {
    if (!options.gossip) fail("there are {} workers and no topology", mesh.peers().size());
    if (!options.outer) {
      mixer_.emplace(stream_, mesh.peers(), options.gossip->topology, trained_, buckets_, weights_,
                     buffers_.mixed);
    }
    average_.emplace(backend, stream_, mesh, trained_, norm_, weights_, buffers_.average);
  }
  if (options.outer) {
    const auto* topology = options.gossip ? &options_.gossip->topology : nullptr;
    outer_.emplace(stream_, backend, mesh.peers(), topology, trained_, weights_, *buffers_.outer,
                   *options.outer);
  }
  const ReducerContext context{
      backend, stream_, groups_, gradient_plan_, buffers_.gradients, mode_, passes(), options.micro_batches};
  reducer_ = mode_.ordered ? make_ordered_reducer(context) : make_direct_reducer(context);
  if (mode_.updates_later) {
    updated_.resize(static_cast<std::size_t>(plan_.unit_count()));
    for (auto& updated : updated_) updated = backend.make_event();
  }
}

UnitView DataEngine::gradients(int unit, std::span<const ElementRange> products) {
  const auto& spec = gradient_plan_.unit(unit);
  if (!spec.trained) return {&spec, {}};
  const auto [whole, unset] = reducer_->gradient(unit, products);
  return {&spec, part_of(whole, 0, spec.size), unset};
}

void DataEngine::gradients_ready(int unit) {
  const auto ready = [&](int u) {
    if (!gradient_plan_.unit(u).trained) return;
    if (reader_ && (apart_ || reducer_->in_first_pass(u))) reader_(gradients(u, {}));
    if (apart_) return reducer_->discard(u);
    reducer_->ready(u);
    const bool shared = tied_ && u == 0;  // add_shared_gradients() may change it
    if (mode_.norm_in_backward && !shared && reducer_->all_passes_begun(u)) {
      reducer_->finish(u);
      norm_.add(*reducer_, u);
    }
  };
  ready(unit);
  if (unit == head() && tied_unit_ >= 0) ready(tied_unit_);
  if (by_bucket() && reducer_->all_passes_begun(unit)) update_in_backward(unit);
}

void DataEngine::read_apart(GradientReader reader, const std::function<void()>& pass) {
  reducer_->begin_step(step_);  // empties its buffers
  reader_ = std::move(reader);
  apart_ = true;
  pass();
  apart_ = false;
  reader_ = {};
}

void DataEngine::begin_step(std::int64_t step, const Update& update) {
  step_ = step;
  if (by_bucket()) backend_.zero(norm_.squares());
  optimizer_->begin_step(backend_, buffers_.optimizer.scalars, update.lr, update.number);
  weights_.begin_step(step);
  reducer_->begin_step(step);
  norm_.begin_step();
  if (mixer_) mixer_->begin_step(step);
}

// Adds gradients of which several ranks have parts: of the embedding's matrix, which has two uses, and of
// parameters that sequence-parallel ranks apply to their own tokens.
void DataEngine::add_shared_gradients() {
  if (tied_unit_ > 0) {
    stream_.add(reducer_->reduced(0), reducer_->reduced(tied_unit_));
  } else if (tied_ && trained_.unit(0).trained && mesh_.ends().size() > 1) {
    mesh_.ends().set_purpose(fmt::format("step {}, tied gradients of embedding", step_ + 1));
    mesh_.ends().all_reduce(stream_.settled(reducer_->reduced(0))).wait();
  }
  if (mesh_.tensor().size() == 1) return;
  std::vector<Request> sums;
  trained_.for_units([&](int u) {
    const auto& unit = trained_.unit(u);
    const auto shard = trained_.my_shard(u), here = shard & unit.partial;
    if (here.count() == 0 || !(options_.part.tensor.sequence || unit.adapter)) return;
    mesh_.tensor().set_purpose(fmt::format("step {}, partial gradients of {}", step_ + 1, unit.name));
    const Tensor reduced = stream_.settled(reducer_->reduced(u));
    sums.push_back(mesh_.tensor().all_reduce(part_of(reduced, here.begin - shard.begin, here.count())));
  });
  for (auto& sum : sums) sum.wait();
}

void DataEngine::to_int8() {
  if (!backend_.has_int8())
    fail_user("the {} backend has no weights in 8 bits; add train.backend=cpu", backend_.name());
  if (options_.zero == 3) fail_user("weights in 8 bits need whole ones on each rank; add parallel.zero=0");
  plan_.for_units([&](int u) {
    for (const auto& parameter : plan_.unit(u).parameters) {
      if (parameter.product() && parameter.local_shape[1] < Int8Rows::kLeastColumns) {
        fail_user("{} has {} columns on this rank; weights in 8 bits need {} or more", parameter.name,
                  parameter.local_shape[1], Int8Rows::kLeastColumns);
      }
    }
  });
  weights_.to_int8();
}

void DataEngine::measure_gradient() {
  reducer_->finish();
  if (by_bucket()) return;
  add_shared_gradients();
  norm_.measure(*reducer_, step_);
}

double DataEngine::gradient_norm() {
  double squares = 0;
  backend_.copy_to_host(&squares, norm_.squares());
  return std::sqrt(squares);
}

void DataEngine::update(const Tensor& losses) {
  if (by_bucket()) return add_to_average();
  backend_.clip_scale(buffers_.optimizer.clip, norm_.squares(), options_.grad_clip, losses);
  weights_.settle();
  for (const auto& bucket : buckets_) apply(bucket, true);
  if (outer_) outer_->step(*reducer_, step_);
  add_to_average();
}

void DataEngine::skip_update() {
  if (outer_) outer_->step(*reducer_, step_);
  if (mixer_ && !by_bucket()) {
    weights_.settle();
    for (const auto& bucket : buckets_) apply(bucket, false);
  }
  add_to_average();
}

// Updates the bucket that ends with this unit. A gradient that is not finite changes no parameter, and shows
// in the norm.
void DataEngine::update_in_backward(int unit) {
  const auto bucket = std::ranges::find(buckets_, unit, &Bucket::first);
  if (bucket == buckets_.end()) return;
  backend_.zero(buffers_.squares);
  for (int u = bucket->first; u <= bucket->last; ++u) {
    reducer_->finish(u);
    stream_.sum_squares(buffers_.squares, reducer_->reduced(u));
  }
  backend_.sum_rows(norm_.squares(), buffers_.squares, 1);
  backend_.clip_scale(buffers_.optimizer.clip, buffers_.squares, options_.grad_clip, {});
  apply(*bucket, true);
}

void DataEngine::apply(const Bucket& bucket, bool with_update) {
  if (mixer_) mixer_->mix(bucket);
  if (dealer_ && with_update) direct_matrices(bucket);
  for (int u = bucket.first; u <= bucket.last; ++u) {
    if (trained_.padded(u) == 0) continue;
    if (with_update) update_unit(u);
    weights_.changed(u, with_update);
    done_with(u);
  }
  if (mixer_) mixer_->start(bucket);
}

Backend::Event* DataEngine::updated(int unit) const {
  return updated_.empty() ? nullptr : updated_[static_cast<std::size_t>(unit)].get();
}

void DataEngine::await_update(int unit) {
  if (const auto* event = updated(unit)) backend_.wait(Backend::Stream::kernels, *event);
}

void DataEngine::await_updates() {
  plan_.for_units([&](int u) { await_update(u); });
}

// A unit's hidden matrices come first, then its other decayed parameters.
void DataEngine::update_unit(int unit) {
  const auto shard = plan_.my_shard(unit);
  const Tensor master = weights_.master(unit), copy = weights_.copy(unit), gradient = reducer_->reduced(unit);
  const bool narrow = copy.dtype != DType::f32;
  const auto& spec = plan_.unit(unit);
  const auto over = [&](const ElementRange& of_unit, bool decayed, bool matrix) {
    const auto range = shard & of_unit;
    if (range.count() == 0) return;
    const auto part = [&](const Tensor& x) { return part_of(x, range.begin - shard.begin, range.count()); };
    std::vector<StateStream::Operand> operands = {
        StateStream::in_out(part(master)), StateStream::out(part(copy)), StateStream::in(part(gradient))};
    for (const auto& state : buffers_.optimizer.state) {
      if (matrix && !state.of_matrices()) continue;
      operands.push_back(StateStream::in_out(state.part(trained_, unit, range)));
    }
    stream_.each(operands, [&](std::span<const Tensor> x, std::int64_t) {
      optimizer_->update(backend_, {.weights = x[0],
                                    .compute = narrow ? x[1] : Tensor{},
                                    .state = x.subspan(3),
                                    .gradient = x[2],
                                    .gradient_scale = buffers_.optimizer.clip.as<float>(),
                                    .done = updated(unit),
                                    .decayed = decayed,
                                    .matrix = matrix});
      if (x[1] && !narrow) backend_.convert(x[1], x[0]);
    });
  };
  const std::int64_t matrices = dealer_ ? spec.matrices : 0;
  over({0, matrices}, true, true);
  over({matrices, spec.decayed}, true, false);
  over({spec.decayed, spec.size}, false, false);
}

// Directions take the place of the gradients of hidden matrices.
void DataEngine::direct_matrices(const Bucket& bucket) {
  for (int u = bucket.first; u <= bucket.last; ++u) {
    if (trained_.padded(u) == 0) continue;
    const auto shard = trained_.my_shard(u), range = shard & ElementRange{0, trained_.unit(u).matrices};
    if (range.count() == 0) continue;
    std::vector<StateStream::Operand> operands = {
        StateStream::in_out(part_of(reducer_->reduced(u), range.begin - shard.begin, range.count()))};
    for (const auto& state : buffers_.optimizer.state) {
      if (state.of_matrices()) operands.push_back(StateStream::in_out(state.part(trained_, u, range)));
    }
    stream_.each(operands, [&](std::span<const Tensor> x, std::int64_t) {
      optimizer_->direct(backend_, {.state = x.subspan(1),
                                    .gradient = x[0],
                                    .gradient_scale = buffers_.optimizer.clip.as<float>(),
                                    .matrix = true});
    });
  }
  dealer_->transform(bucket, step_, [&](int u) { return reducer_->reduced(u); });
}

// Nothing touches these until the next update.
void DataEngine::done_with(int unit) {
  arenas_.done_with(weights_.master(unit));
  for (const auto& state : buffers_.optimizer.state) arenas_.done_with(state.shard(trained_, unit));
  arenas_.done_with(reducer_->reduced(unit));
}

void DataEngine::begin_average() {
  if (!buffers_.optimizer.average) return;
  trained_.for_units(
      [&](int u) { stream_.convert(buffers_.optimizer.average->shard(trained_, u), weights_.master(u)); });
}

void DataEngine::add_to_average() {
  if (!buffers_.optimizer.average) return;
  const auto decay = static_cast<float>(options_.ema);
  trained_.for_units([&](int u) {
    stream_.each({StateStream::in_out(buffers_.optimizer.average->shard(trained_, u)),
                  StateStream::in(weights_.master(u))},
                 [&](std::span<const Tensor> x, std::int64_t) {
                   backend_.scale_and_add(x[0], decay, x[1], 1 - decay);
                 });
  });
}

double DataEngine::show_average() {
  if (!shows_average()) return 0;
  const auto& moving = buffers_.optimizer.average;
  if (average_) return average_->show(*reducer_, step_, moving ? &*moving : nullptr);
  weights_.settle();
  trained_.for_units([&](int u) {
    stream_.convert(reducer_->reduced(u), weights_.master(u));
    stream_.convert(weights_.master(u), moving->shard(trained_, u));
    weights_.changed(u, false);
  });
  return 0;
}

void DataEngine::drop_average() {
  if (!shows_average()) return;
  weights_.settle();
  trained_.for_units([&](int u) {
    stream_.convert(weights_.master(u), reducer_->reduced(u));
    weights_.changed(u, false);
  });
}

void DataEngine::weights_replaced() {
  plan_.for_units([&](int u) { weights_.changed(u, false); });
}

void DataEngine::state_loaded(bool optimizer, bool equal) {
  if (mixer_) equal ? mixer_->set_equal() : mixer_->set_different();
  if (outer_) optimizer ? outer_->loaded(equal) : outer_->begin();
  if (!optimizer) begin_average();
  weights_replaced();
}

EngineMemory engine_memory(const GptConfig& config, const EngineOptions& options, int ranks) {
  return engine_memory(config, gpt_units(config, options.part, options.decay), options, ranks);
}

EngineMemory engine_memory(const GptConfig& config, std::vector<UnitSpec> units, const EngineOptions& options,
                           int ranks) {
  const ShardPlan plan(std::move(units), options.zero, options.replicate, 0, ranks);
  const ShardPlan trained = plan.trained();
  return measure(plan, trained, plan_gradients(trained, config, options), options);
}

}  // namespace shoal
