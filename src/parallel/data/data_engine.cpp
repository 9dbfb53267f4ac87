// Data parallelism: ZeRO 0 to 3, replicated groups, sums whose order is that of the micro-batches, and
// workers that average their models. Weights, gradients, their reduction and the averaging are in files of
// their own; this one is the optimizer step and the state.
#include "parallel/data/data_engine.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>
#include <vector>

#include "core/error.h"
#include "parallel/data/gradient_norm.h"
#include "parallel/data/gradient_reducer.h"
#include "parallel/data/weight_store.h"
#include "parallel/gossip/mixer.h"
#include "parallel/gossip/workers_average.h"

namespace shoal {
namespace {

DataGroups split_groups(Communicator& group, const ShardPlan& plan) {
  return {.pieces = group.split([&](int rank) { return plan.in_pieces(rank); }),
          .shards = group.split([&](int rank) { return plan.in_shards(rank); }),
          .replicas = group.split([&](int rank) { return plan.in_replicas(rank); })};
}

// Whether the two uses of the embedding's matrix, here both, have sums of their own, as they do where they
// are on two stages.
bool sums_uses_apart(const GptConfig& config, const EngineOptions& options) {
  return options.layout_exact && options.part.computes(0) && options.part.computes(config.n_layer + 1);
}

ShardPlan gradient_plan(const ShardPlan& plan, const GptConfig& config, const EngineOptions& options) {
  return sums_uses_apart(config, options) ? plan.with_tied_use() : plan;
}

// What is updated together: everything, but with gossip.
std::vector<Bucket> buckets_of(const ShardPlan& plan, const EngineOptions& options) {
  if (options.gossip) return make_buckets(plan, options.gossip->bucket_bytes);
  return {{0, plan.unit_count() - 1}};
}

EngineMemory measure(const ShardPlan& plan, const ShardPlan& summed, const EngineOptions& options) {
  EngineArenas arenas;
  EngineBuffers::take(arenas, plan, summed, options);
  return arenas.used();
}

class Engine final : public DataEngine {
 public:
  Engine(Backend& backend, Mesh& mesh, const GptConfig& config, const EngineOptions& options)
      : backend_(backend),
        mesh_(mesh),
        options_(options),
        plan_(gpt_units(config, options.part, options.decay), options.zero, options.replicate,
              mesh.data().rank(), mesh.data().size()),
        summed_(gradient_plan(plan_, config, options)),
        mode_(options, plan_),
        arenas_(backend, measure(plan_, summed_, options), options.offload),
        buffers_(EngineBuffers::take(arenas_, plan_, summed_, options)),
        stream_(backend, buffers_.stream, arenas_.resting(mode_)),
        groups_(split_groups(mesh.data(), plan_)),
        weights_(backend, *groups_.shards, plan_, buffers_, mode_, stream_),
        buckets_(buckets_of(plan_, options)),
        norm_(backend, mesh, *groups_.pieces, plan_, options.part, buffers_, stream_) {
    if (summed_.unit_count() > plan_.unit_count()) {
      tied_unit_ = plan_.unit_count();
    } else if (!options.part.computes(0) && options.part.computes(head())) {
      tied_unit_ = 0;
    }
    if (!options.training) return;
    if (by_bucket() && (mesh.worker().size() > 1 || options.layout_exact)) {
      fail("updates in the backward pass need workers of one rank, and sums of no fixed order");
    }
    if (mesh.peers().size() > 1) {
      if (!options.gossip) fail("there are {} workers and no topology", mesh.peers().size());
      mixer_.emplace(stream_, mesh.peers(), options.gossip->topology, plan_, buckets_, weights_,
                     buffers_.copy);
      average_.emplace(backend, stream_, mesh, plan_, options.part, weights_, buffers_);
    }
    const ReducerContext context{backend,  stream_, groups_,  summed_,
                                 buffers_, mode_,   passes(), options.micro_batches};
    reducer_ = mode_.ordered ? make_ordered_reducer(context) : make_direct_reducer(context);
  }

  const std::vector<UnitSpec>& units() const override { return plan_.units(); }

  UnitView weights(int unit) override { return weights_.use(unit); }
  void release(int unit) override { weights_.release(unit); }
  UnitView gradients(int unit) override {
    const auto& spec = summed_.unit(unit);
    return {&spec, part_of(reducer_->gradient(unit), 0, spec.size)};
  }
  UnitView tied_gradients() override { return gradients(std::max(tied_unit_, 0)); }
  void gradients_ready(int unit) override {
    reducer_->ready(unit);
    if (unit == head() && tied_unit_ >= 0) reducer_->ready(tied_unit_);
    if (by_bucket() && reducer_->all_passes_begun(unit)) update_in_backward(unit);
  }

  int passes() const override { return (options_.micro_batches + plan_.ranks() - 1) / plan_.ranks(); }
  int first_micro_batch() const override { return plan_.piece(); }

  void initialize(std::uint64_t seed) override;
  void begin_step(std::int64_t step, const Update& update) override {
    step_ = step;
    update_ = update;
    if (by_bucket()) backend_.zero(buffers_.squares);
    if (backend_.can_capture()) {
      const AdamWNumbers numbers = adamw_step(options_.adamw, update.lr, update.number, true).numbers();
      backend_.copy_from_host(buffers_.numbers, &numbers);
    }
    weights_.begin_step(step);
    reducer_->begin_step(step);
    if (mixer_) mixer_->begin_step(step);
  }
  void measure_gradient() override;
  double gradient_norm() override;
  void update(const Tensor& losses) override;
  void skip_update() override;
  std::string first_bad_tensor() override;
  std::vector<StateTensor> state(bool optimizer, Share share) override;
  void state_loaded() override {
    if (mixer_) mixer_->set_different();
    weights_replaced();
  }
  double show_average() override { return shows_average() ? average_->show(*reducer_, step_) : 0; }
  void drop_average() override {
    if (shows_average()) average_->drop(*reducer_);
  }
  void keep_average() override {
    if (mixer_) mixer_->set_different();  // as a run that is resumed here
  }

 private:
  // This rank's shard of one of the flat buffers of shards.
  Tensor shard_of(const Tensor& flat, int unit) const {
    return part_of(flat, plan_.first(unit) / plan_.shards(), plan_.shard_size(unit));
  }
  int head() const { return plan_.unit_count() - 1; }
  // What an update touches and nothing else does until the next one.
  std::array<Tensor, 5> resting(int unit) {
    return {weights_.master(unit), shard_of(buffers_.m, unit), shard_of(buffers_.v, unit),
            shard_of(buffers_.mean, unit), reducer_->reduced(unit)};
  }
  void add_shared_gradients();
  bool is_finite(const Tensor& x);
  bool by_bucket() const { return options_.gossip && options_.gossip->clip_by_bucket; }
  bool shows_average() const { return mixer_ && !mixer_->equal(); }
  void update_in_backward(int unit);
  void apply(const Bucket& bucket, bool with_update);
  void update_unit(int unit);
  void weights_replaced() {
    weights_.settle();
    plan_.for_units([&](int u) { weights_.changed(u, false); });
  }

  Backend& backend_;
  Mesh& mesh_;
  EngineOptions options_;
  ShardPlan plan_, summed_;  // of the parameters, of the gradients
  EngineMode mode_;
  EngineArenas arenas_;
  EngineBuffers buffers_;
  StateStream stream_;
  DataGroups groups_;
  WeightStore weights_;
  std::vector<Bucket> buckets_;
  GradientNorm norm_;
  // Where there are several workers:
  std::optional<Mixer> mixer_;
  std::optional<WorkersAverage> average_;
  std::unique_ptr<GradientReducer> reducer_;
  Update update_;       // of this step
  int tied_unit_ = -1;  // whose gradient is of the head's use of the embedding alone
  std::int64_t step_ = 0;
};

void Engine::initialize(std::uint64_t seed) {
  weights_.settle();
  plan_.for_units([&](int u) {
    const auto range = plan_.my_shard(u);
    const Tensor master = weights_.master(u);
    stream_.zero(master);
    plan_.for_boxes(
        u, range, [&](const ParameterSpec& parameter, const Box& box, std::int64_t first, ElementRange here) {
          stream_.each({StateStream::out(part_of(master, here.begin - range.begin, here.count()))},
                       [&](auto parts, std::int64_t at) {
                         shoal::initialize(backend_, parameter, box, parts[0], first + at, seed);
                       });
        });
    if (options_.training) {
      stream_.zero(shard_of(buffers_.m, u));
      stream_.zero(shard_of(buffers_.v, u));
      if (buffers_.mean) stream_.zero(shard_of(buffers_.mean, u));
    }
    arenas_.done_with(master);
  });
  if (mixer_) mixer_->set_equal();
  weights_replaced();
}

// What several ranks have of one gradient: the two uses of the embedding's matrix, and the tokens of
// sequence-parallel ranks.
void Engine::add_shared_gradients() {
  if (tied_unit_ > 0) {
    stream_.add(reducer_->reduced(0), reducer_->reduced(tied_unit_));
  } else if (mesh_.ends().size() > 1) {
    mesh_.ends().set_purpose(fmt::format("step {}, tied gradients of embedding", step_ + 1));
    mesh_.ends().all_reduce(stream_.settled(reducer_->reduced(0))).wait();
  }
  if (!options_.part.tensor.sequence) return;
  std::vector<Request> sums;
  plan_.for_units([&](int u) {
    const auto shard = plan_.my_shard(u), here = shard & plan_.unit(u).per_token;
    if (here.count() == 0) return;
    mesh_.tensor().set_purpose(fmt::format("step {}, token gradients of {}", step_ + 1, plan_.unit(u).name));
    const Tensor reduced = stream_.settled(reducer_->reduced(u));
    sums.push_back(mesh_.tensor().all_reduce(part_of(reduced, here.begin - shard.begin, here.count())));
  });
  for (auto& sum : sums) sum.wait();
}

void Engine::measure_gradient() {
  reducer_->finish();
  if (by_bucket()) return;
  add_shared_gradients();
  norm_.measure(*reducer_, step_);
}

double Engine::gradient_norm() {
  double squares = 0;
  backend_.copy_to_host(&squares, buffers_.squares);
  return std::sqrt(squares);
}

void Engine::update(const Tensor& losses) {
  if (by_bucket()) return;
  backend_.clip_scale(buffers_.clip, buffers_.squares, options_.grad_clip, losses);
  weights_.settle();
  for (const auto& bucket : buckets_) apply(bucket, true);
}

void Engine::skip_update() {
  if (by_bucket() || !mixer_) return;
  weights_.settle();
  for (const auto& bucket : buckets_) apply(bucket, false);
}

// Where a unit closes a bucket. A gradient that is not finite leaves the parameters alone, and shows in the
// norm.
void Engine::update_in_backward(int unit) {
  const auto bucket = std::ranges::find(buckets_, unit, &Bucket::first);
  if (bucket == buckets_.end()) return;
  backend_.zero(buffers_.some_squares);
  for (int u = bucket->first; u <= bucket->last; ++u) {
    reducer_->finish(u);
    stream_.sum_squares(buffers_.some_squares, reducer_->reduced(u));
  }
  backend_.sum_rows(buffers_.squares, buffers_.some_squares, 1);
  backend_.clip_scale(buffers_.clip, buffers_.some_squares, options_.grad_clip, {});
  apply(*bucket, true);
}

void Engine::apply(const Bucket& bucket, bool with_update) {
  if (mixer_) mixer_->mix(bucket);
  for (int u = bucket.first; u <= bucket.last; ++u) {
    if (plan_.padded(u) == 0) continue;
    if (with_update) update_unit(u);
    weights_.changed(u, with_update);
    for (const auto& x : resting(u)) arenas_.done_with(x);
  }
  if (mixer_) mixer_->start(bucket);
}

void Engine::update_unit(int unit) {
  const auto shard = plan_.my_shard(unit);
  const Tensor master = weights_.master(unit), copy = weights_.copy(unit);
  const Tensor m = shard_of(buffers_.m, unit), v = shard_of(buffers_.v, unit),
               mean = shard_of(buffers_.mean, unit);
  const Tensor gradient = reducer_->reduced(unit);
  const auto& spec = plan_.unit(unit);
  const auto over = [&](const ElementRange& range, bool decay) {
    if (range.count() == 0) return;
    auto step = adamw_step(options_.adamw, update_.lr, update_.number, decay);
    step.grad_scale = buffers_.clip.as<float>();
    if (backend_.can_capture()) step.now = buffers_.numbers.as<AdamWNumbers>();
    const auto part = [&](const Tensor& x) { return part_of(x, range.begin - shard.begin, range.count()); };
    const bool narrow = copy.dtype != DType::f32;
    stream_.each(
        {StateStream::in_out(part(master)), StateStream::out(part(copy)), StateStream::in_out(part(m)),
         StateStream::in_out(part(v)), StateStream::in_out(part(mean)), StateStream::in(part(gradient))},
        [&](auto x, std::int64_t) {
          backend_.adamw(x[0], narrow ? x[1] : Tensor{}, x[2], x[3], x[4], x[5], step);
          if (x[1] && !narrow) backend_.convert(x[1], x[0]);
        });
  };
  over(shard & ElementRange{0, spec.decayed}, true);
  over(shard & ElementRange{spec.decayed, spec.size}, false);
}

bool Engine::is_finite(const Tensor& x) {
  backend_.zero(buffers_.some_squares);
  stream_.sum_squares(buffers_.some_squares, x);
  double squares = 0;
  backend_.copy_to_host(&squares, buffers_.some_squares);
  return std::isfinite(squares);
}

std::string Engine::first_bad_tensor() {
  std::string found;
  for (const bool gradient : {false, true}) {
    plan_.for_units([&](int u) {
      const auto range = plan_.my_shard(u);
      const Tensor shard = gradient ? reducer_->reduced(u) : weights_.master(u);
      plan_.for_boxes(
          u, range, [&](const ParameterSpec& parameter, const Box&, std::int64_t, ElementRange here) {
            if (!found.empty() || is_finite(part_of(shard, here.begin - range.begin, here.count()))) return;
            found = (gradient ? "the gradient of " : "") + parameter.name;
          });
    });
  }
  return found;
}

std::vector<StateTensor> Engine::state(bool optimizer, Share share) {
  stream_.settle();
  std::vector<StateTensor> tensors;
  const auto add = [&](const std::string& prefix, auto&& shard) {
    plan_.for_units([&](int u) {
      const auto held = plan_.my_shard(u);
      const auto range = share == Share::held ? held : plan_.my_piece(u);
      plan_.for_boxes(
          u, range,
          [&](const ParameterSpec& parameter, const Box& box, std::int64_t first, ElementRange here) {
            if (share == Share::to_save && !owns(options_.part, u, parameter)) return;
            tensors.push_back({.name = prefix + parameter.name,
                               .shape = parameter.shape,
                               .box = box,
                               .first = first,
                               .data = part_of(shard(u), here.begin - held.begin, here.count())});
          });
    });
  };
  add("", [&](int u) { return weights_.master(u); });
  if (optimizer) {
    add("optimizer.m.", [&](int u) { return shard_of(buffers_.m, u); });
    add("optimizer.v.", [&](int u) { return shard_of(buffers_.v, u); });
    if (buffers_.mean) add("optimizer.a.", [&](int u) { return shard_of(buffers_.mean, u); });
  }
  return tensors;
}

}  // namespace

std::unique_ptr<DataEngine> make_data_engine(Backend& backend, Mesh& mesh, const GptConfig& config,
                                             const EngineOptions& options) {
  return std::make_unique<Engine>(backend, mesh, config, options);
}

EngineMemory engine_memory(const GptConfig& config, const EngineOptions& options, int ranks) {
  const ShardPlan plan(gpt_units(config, options.part, options.decay), options.zero, options.replicate, 0,
                       ranks);
  return measure(plan, gradient_plan(plan, config, options), options);
}

}  // namespace shoal
