// Synchronous data parallelism: ZeRO 0 to 3, replicated groups, and sums whose order is that of the
// micro-batches. Weights, gradients and their reduction are in files of their own; this one is the optimizer
// step and the state.
#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>
#include <vector>

#include "core/error.h"
#include "parallel/gradient_reducer.h"
#include "parallel/mixer.h"
#include "parallel/weight_store.h"

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

DataEngine::Memory measure(const ShardPlan& plan, const ShardPlan& summed, const EngineOptions& options) {
  EngineArenas arenas;
  EngineBuffers::take(arenas, plan, summed, options);
  return arenas.used();
}

class SynchronousEngine final : public DataEngine {
 public:
  SynchronousEngine(Backend& backend, Mesh& mesh, const GptConfig& config, const EngineOptions& options)
      : backend_(backend),
        mesh_(mesh),
        options_(options),
        plan_(gpt_units(config, options.part), options.zero, options.replicate, mesh.data().rank(),
              mesh.data().size()),
        summed_(gradient_plan(plan_, config, options)),
        mode_(options, plan_),
        arenas_(backend, measure(plan_, summed_, options), options.offload),
        buffers_(EngineBuffers::take(arenas_, plan_, summed_, options)),
        groups_(split_groups(mesh.data(), plan_)),
        weights_(backend, *groups_.shards, plan_, buffers_, mode_),
        buckets_(buckets_of(plan_, options)) {
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
      mixer_.emplace(backend, mesh.peers(), options.gossip->topology, plan_, buckets_, weights_,
                     buffers_.copy);
    }
    const ReducerContext context{backend, groups_, summed_, buffers_, mode_, passes(), options.micro_batches};
    reducer_ = mode_.ordered ? make_ordered_reducer(context) : make_direct_reducer(context);
  }

  const std::vector<UnitSpec>& units() const override { return plan_.units(); }

  UnitView weights(int unit) override { return weights_.use(unit); }
  void release(int unit) override { weights_.release(unit); }
  UnitView gradients(int unit) override {
    const auto& spec = summed_.unit(unit);
    return {&spec, part_of(reducer_->gradient(unit), 0, spec.size)};
  }
  Tensor tied_gradient() override { return gradients(std::max(tied_unit_, 0))["wte.weight"]; }
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
    squares_in_backward_ = 0;
    weights_.begin_step(step);
    reducer_->begin_step(step);
    if (mixer_) mixer_->begin_step(step);
  }
  double gradient_norm() override;
  void update() override;
  void skip_update() override;
  std::string first_bad_tensor() override;
  std::vector<StateTensor> state(bool optimizer, Share share) override;
  void state_loaded() override {
    if (mixer_) mixer_->set_different();
    weights_replaced();
  }
  double show_average() override;
  void drop_average() override;
  void keep_average() override {
    if (mixer_) mixer_->set_equal();
  }

 private:
  // This rank's shard of one of the flat buffers of shards.
  Tensor shard_of(const Tensor& flat, int unit) const {
    return part_of(flat, plan_.first(unit) / plan_.shards(), plan_.shard_size(unit));
  }
  int head() const { return plan_.unit_count() - 1; }
  // Calls f(unit) for each that this rank has.
  template <typename F>
  void for_units(F&& f) const {
    for (int u = 0; u < plan_.unit_count(); ++u) {
      if (plan_.padded(u) > 0) f(u);
    }
  }
  // Calls f(parameter, box of it, first element of the box, elements of the unit) for each whose elements are
  // in `range` of the unit, padding not counted.
  template <typename F>
  void for_boxes(int unit, const ElementRange& range, F&& f) const {
    for (const auto& parameter : plan_.unit(unit).parameters) {
      std::int64_t begin = parameter.offset;
      for (const auto& box : parameter.boxes()) {
        const auto here = range & ElementRange{begin, begin + box.shape.count()};
        if (here.count() > 0) f(parameter, box, here.begin - begin, here);
        begin += box.shape.count();
      }
    }
  }
  // Calls f(first, count) for parts that the chunk can hold.
  template <typename F>
  static void for_chunks(std::int64_t elements, F&& f) {
    constexpr auto kMost = EngineBuffers::kChunk;
    for (std::int64_t first = 0; first < elements; first += kMost)
      f(first, std::min(kMost, elements - first));
  }
  // What an update touches and nothing else does until the next one.
  std::array<Tensor, 5> resting(int unit) {
    return {weights_.master(unit), shard_of(buffers_.m, unit), shard_of(buffers_.v, unit),
            shard_of(buffers_.mean, unit), reducer_->reduced(unit)};
  }
  void add_shared_gradients();
  void add_squares(const Tensor& totals, int unit);
  double whole_norm(const std::vector<double>& unit_squares);
  bool is_finite(const Tensor& x);
  bool by_bucket() const { return options_.gossip && options_.gossip->clip_by_bucket; }
  void update_in_backward(int unit);
  void apply(const Bucket& bucket, bool with_update);
  void update_unit(int unit);
  void weights_replaced() {
    weights_.settle();
    for_units([&](int u) { weights_.changed(u, false); });
  }
  double consensus_distance();

  Backend& backend_;
  Mesh& mesh_;
  EngineOptions options_;
  ShardPlan plan_, summed_;  // of the parameters, of the gradients
  EngineMode mode_;
  EngineArenas arenas_;
  EngineBuffers buffers_;
  DataGroups groups_;
  WeightStore weights_;
  std::vector<Bucket> buckets_;
  std::optional<Mixer> mixer_;  // where there are several workers
  std::unique_ptr<GradientReducer> reducer_;
  Update update_;                   // of this step
  double squares_in_backward_ = 0;  // of the buckets that have been updated there
  int tied_unit_ = -1;              // whose gradient is of the head's use of the embedding alone
  std::int64_t step_ = 0;
};

void SynchronousEngine::initialize(std::uint64_t seed) {
  weights_.settle();
  for_units([&](int u) {
    const auto range = plan_.my_shard(u);
    const Tensor master = weights_.master(u);
    backend_.zero(master);
    for_boxes(u, range,
              [&](const ParameterSpec& parameter, const Box& box, std::int64_t first, ElementRange here) {
                shoal::initialize(backend_, parameter, box,
                                  part_of(master, here.begin - range.begin, here.count()), first, seed);
              });
    if (options_.training) {
      backend_.zero(shard_of(buffers_.m, u));
      backend_.zero(shard_of(buffers_.v, u));
      if (buffers_.mean) backend_.zero(shard_of(buffers_.mean, u));
    }
    arenas_.done_with(master);
  });
  if (mixer_) mixer_->set_equal();
  weights_replaced();
}

// What several ranks have of one gradient: the two uses of the embedding's matrix, and the tokens of
// sequence-parallel ranks.
void SynchronousEngine::add_shared_gradients() {
  if (tied_unit_ > 0) {
    backend_.add(reducer_->reduced(0), reducer_->reduced(tied_unit_));
  } else if (mesh_.ends().size() > 1) {
    mesh_.ends().set_purpose(fmt::format("step {}, tied gradients of embedding", step_ + 1));
    mesh_.ends().all_reduce(reducer_->reduced(0)).wait();
  }
  if (!options_.part.tensor.sequence) return;
  std::vector<Request> sums;
  for_units([&](int u) {
    const auto shard = plan_.my_shard(u), here = shard & plan_.unit(u).per_token;
    if (here.count() == 0) return;
    mesh_.tensor().set_purpose(fmt::format("step {}, token gradients of {}", step_ + 1, plan_.unit(u).name));
    sums.push_back(
        mesh_.tensor().all_reduce(part_of(reducer_->reduced(u), here.begin - shard.begin, here.count())));
  });
  for (auto& sum : sums) sum.wait();
}

// Of this rank's piece of a unit, block by block; what tensor ranks have in common counts on the first.
void SynchronousEngine::add_squares(const Tensor& totals, int unit) {
  const auto piece = plan_.my_piece(unit);
  const Tensor x = part_of(reducer_->reduced(unit), plan_.replica() * piece.count(), piece.count());
  const auto add = [&](const ElementRange& range) {
    for (std::int64_t at = range.begin; at < range.end;) {
      const std::int64_t in_block = at % ShardPlan::kBlock;
      const std::int64_t blocks = in_block > 0 ? 0 : (range.end - at) / ShardPlan::kBlock;
      const std::int64_t n =
          blocks > 0 ? blocks * ShardPlan::kBlock : std::min(range.end - at, ShardPlan::kBlock - in_block);
      backend_.sum_squares(
          part_of(totals, (at - piece.begin) / ShardPlan::kBlock, std::max<std::int64_t>(blocks, 1)),
          part_of(x, at - piece.begin, n));
      at += n;
    }
  };
  if (options_.part.tensor.rank == 0) return add(piece);
  const auto& common = plan_.unit(unit).replicated;
  add(piece & ElementRange{0, common.begin});
  add(piece & ElementRange{common.end, plan_.padded(unit)});
}

// From the squares of this rank's units: the same bits on every rank, however many stages there are.
double SynchronousEngine::whole_norm(const std::vector<double>& unit_squares) {
  const auto& place = options_.part.tensor;
  std::vector<double> all(unit_squares.size() * static_cast<std::size_t>(place.size));
  for (std::size_t u = 0; u < unit_squares.size(); ++u) {
    all[u * static_cast<std::size_t>(place.size) + static_cast<std::size_t>(place.rank)] = unit_squares[u];
  }
  mesh_.model().set_purpose(fmt::format("step {}, norm of the gradient", step_ + 1));
  mesh_.model().all_reduce({all.data(), DType::f64, {static_cast<std::int64_t>(all.size())}}).wait();
  const double squares = std::accumulate(all.begin(), all.end(), 0.0);
  backend_.copy_from_host(buffers_.squares, &squares);
  return std::sqrt(squares);
}

double SynchronousEngine::gradient_norm() {
  reducer_->finish();
  if (by_bucket()) return std::sqrt(squares_in_backward_);
  add_shared_gradients();
  // Sums of blocks, added in the order of the unit: the same bits however many ranks made them.
  backend_.zero(buffers_.block_squares);
  std::int64_t first = 0;
  for (int u = 0; u < plan_.unit_count(); ++u) {
    const std::int64_t blocks = plan_.piece_size(u) / ShardPlan::kBlock;
    if (blocks > 0) add_squares(part_of(buffers_.block_squares, first, blocks), u);
    first += blocks;
  }
  groups_.pieces->set_purpose(fmt::format("step {}, norm of the gradient", step_ + 1));
  groups_.pieces->all_gather(buffers_.all_block_squares, buffers_.block_squares).wait();
  std::vector<double> parts(static_cast<std::size_t>(buffers_.all_block_squares.count()));
  backend_.copy_to_host(parts.data(), buffers_.all_block_squares);
  std::vector<double> squares(plan_.units().size());
  std::int64_t before = 0;  // blocks of the units before, in one rank's part
  for (int u = 0; u < plan_.unit_count(); ++u) {
    const std::int64_t blocks = plan_.piece_size(u) / ShardPlan::kBlock;
    for (int piece = 0; piece < plan_.ranks() && options_.part.computes(u); ++piece) {
      const auto* part = parts.data() + piece * first + before;
      for (std::int64_t i = 0; i < blocks; ++i) squares[static_cast<std::size_t>(u)] += part[i];
    }
    before += blocks;
  }
  return whole_norm(squares);
}

void SynchronousEngine::update() {
  if (by_bucket()) return;
  backend_.clip_scale(buffers_.clip, buffers_.squares, options_.grad_clip);
  weights_.settle();
  for (const auto& bucket : buckets_) apply(bucket, true);
}

void SynchronousEngine::skip_update() {
  if (by_bucket() || !mixer_) return;
  weights_.settle();
  for (const auto& bucket : buckets_) apply(bucket, false);
}

// Where a unit closes a bucket. A gradient that is not finite leaves the parameters alone, and shows in the
// norm.
void SynchronousEngine::update_in_backward(int unit) {
  const auto bucket = std::ranges::find(buckets_, unit, &Bucket::first);
  if (bucket == buckets_.end()) return;
  backend_.zero(buffers_.squares);
  for (int u = bucket->first; u <= bucket->last; ++u) {
    reducer_->finish(u);
    backend_.sum_squares(buffers_.squares, reducer_->reduced(u));
  }
  double squares = 0;
  backend_.copy_to_host(&squares, buffers_.squares);
  squares_in_backward_ += squares;
  backend_.clip_scale(buffers_.clip, buffers_.squares, options_.grad_clip);
  apply(*bucket, std::isfinite(squares));
}

void SynchronousEngine::apply(const Bucket& bucket, bool with_update) {
  if (mixer_) mixer_->mix(bucket);
  for (int u = bucket.first; u <= bucket.last; ++u) {
    if (plan_.padded(u) == 0) continue;
    if (with_update) update_unit(u);
    weights_.changed(u, with_update);
    for (const auto& x : resting(u)) arenas_.done_with(x);
  }
  if (mixer_) mixer_->start(bucket);
}

void SynchronousEngine::update_unit(int unit) {
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
    const auto part = [&](const Tensor& x) { return part_of(x, range.begin - shard.begin, range.count()); };
    backend_.adamw(part(master), part(copy), part(m), part(v), part(mean), part(gradient), step);
  };
  over(shard & ElementRange{0, spec.decayed}, true);
  over(shard & ElementRange{spec.decayed, spec.size}, false);
}

double SynchronousEngine::show_average() {
  if (!mixer_ || mixer_->equal()) return 0;
  weights_.settle();
  auto& peers = mesh_.peers();
  std::vector<Request> sums;
  for_units([&](int u) {
    backend_.convert(reducer_->reduced(u), weights_.master(u));
    peers.set_purpose(fmt::format("step {}, mean of {}", step_ + 1, plan_.unit(u).name));
    sums.push_back(peers.all_reduce(reducer_->reduced(u)));
  });
  for (auto& sum : sums) sum.wait();
  for_units([&](int u) {
    for_chunks(plan_.shard_size(u), [&](std::int64_t first, std::int64_t count) {
      const Tensor mean = part_of(buffers_.chunk, 0, count),
                   kept = part_of(reducer_->reduced(u), first, count),
                   here = part_of(weights_.master(u), first, count);
      backend_.scale(mean, kept, 1.0f / static_cast<float>(peers.size()));
      backend_.convert(kept, here);
      backend_.convert(here, mean);
    });
    weights_.changed(u, false);
  });
  return consensus_distance();
}

void SynchronousEngine::drop_average() {
  if (!mixer_ || mixer_->equal()) return;
  weights_.settle();
  for_units([&](int u) {
    backend_.convert(weights_.master(u), reducer_->reduced(u));
    weights_.changed(u, false);
  });
}

// With the average shown. Every element counts once in each worker.
double SynchronousEngine::consensus_distance() {
  std::array<double, 2> squares = {};  // of the distances, of the mean
  for (const bool of_mean : {false, true}) {
    backend_.zero(buffers_.squares);
    for_units([&](int u) {
      const auto shard = plan_.my_shard(u);
      for_boxes(u, plan_.my_piece(u),
                [&](const ParameterSpec& parameter, const Box&, std::int64_t, ElementRange here) {
                  if (!owns(options_.part, u, parameter)) return;
                  for_chunks(here.count(), [&](std::int64_t first, std::int64_t count) {
                    const std::int64_t at = here.begin - shard.begin + first;
                    const Tensor x = part_of(buffers_.chunk, 0, count);
                    backend_.scale(x, part_of(weights_.master(u), at, count), of_mean ? 1.0f : -1.0f);
                    if (!of_mean) backend_.add(x, part_of(reducer_->reduced(u), at, count));
                    backend_.sum_squares(buffers_.squares, x);
                  });
                });
    });
    backend_.copy_to_host(&squares[of_mean ? 1 : 0], buffers_.squares);
  }
  mesh_.world().set_purpose("consensus distance");
  mesh_.world().all_reduce({squares.data(), DType::f64, {2}}).wait();
  return std::sqrt(squares[0] / squares[1]);
}

bool SynchronousEngine::is_finite(const Tensor& x) {
  backend_.zero(buffers_.squares);
  backend_.sum_squares(buffers_.squares, x);
  double squares = 0;
  backend_.copy_to_host(&squares, buffers_.squares);
  return std::isfinite(squares);
}

std::string SynchronousEngine::first_bad_tensor() {
  std::string found;
  for (const bool gradient : {false, true}) {
    for_units([&](int u) {
      const auto range = plan_.my_shard(u);
      const Tensor shard = gradient ? reducer_->reduced(u) : weights_.master(u);
      for_boxes(u, range, [&](const ParameterSpec& parameter, const Box&, std::int64_t, ElementRange here) {
        if (!found.empty() || is_finite(part_of(shard, here.begin - range.begin, here.count()))) return;
        found = (gradient ? "the gradient of " : "") + parameter.name;
      });
    });
  }
  return found;
}

std::vector<StateTensor> SynchronousEngine::state(bool optimizer, Share share) {
  std::vector<StateTensor> tensors;
  const auto add = [&](const std::string& prefix, auto&& shard) {
    for_units([&](int u) {
      const auto held = plan_.my_shard(u);
      const auto range = share == Share::held ? held : plan_.my_piece(u);
      for_boxes(u, range,
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
  return std::make_unique<SynchronousEngine>(backend, mesh, config, options);
}

DataEngine::Memory engine_memory(const GptConfig& config, const EngineOptions& options, int ranks) {
  const ShardPlan plan(gpt_units(config, options.part), options.zero, options.replicate, 0, ranks);
  return measure(plan, gradient_plan(plan, config, options), options);
}

}  // namespace shoal
