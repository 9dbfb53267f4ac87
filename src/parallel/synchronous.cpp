// Synchronous data parallelism: ZeRO 0 to 3, replicated groups, and sums whose order is that of the
// micro-batches. Weights, gradients and their reduction are in files of their own; this one is the optimizer
// step and the state.
#include <array>
#include <cmath>
#include <vector>

#include "core/error.h"
#include "parallel/gradient_reducer.h"
#include "parallel/weight_store.h"

namespace shoal {
namespace {

DataGroups split_groups(Communicator& group, const ShardPlan& plan) {
  return {.pieces = group.split([&](int rank) { return plan.in_pieces(rank); }),
          .shards = group.split([&](int rank) { return plan.in_shards(rank); }),
          .replicas = group.split([&](int rank) { return plan.in_replicas(rank); })};
}

DataEngine::Memory measure(const ShardPlan& plan, const EngineOptions& options) {
  EngineArenas arenas;
  EngineBuffers::take(arenas, plan, options);
  return arenas.used();
}

class SynchronousEngine final : public DataEngine {
 public:
  SynchronousEngine(Backend& backend, Communicator& group, const GptConfig& config,
                    const EngineOptions& options)
      : backend_(backend),
        options_(options),
        plan_(gpt_units(config), options.zero, options.replicate, group.rank(), group.size()),
        mode_(options, plan_),
        arenas_(backend, measure(plan_, options), options.offload),
        buffers_(EngineBuffers::take(arenas_, plan_, options)),
        groups_(split_groups(group, plan_)),
        weights_(backend, *groups_.shards, plan_, buffers_, mode_) {
    if (!options.training) return;
    const ReducerContext context{backend, groups_, plan_, buffers_, mode_, passes(), options.micro_batches};
    reducer_ = mode_.ordered ? make_ordered_reducer(context) : make_direct_reducer(context);
  }

  const std::vector<UnitSpec>& units() const override { return plan_.units(); }

  UnitView weights(int unit) override { return weights_.use(unit); }
  void release(int unit) override { weights_.release(unit); }
  UnitView gradients(int unit) override {
    const auto& spec = plan_.unit(unit);
    return {&spec, part_of(reducer_->gradient(unit), 0, spec.size)};
  }
  Tensor tied_gradient() override { return gradients(0)["wte.weight"]; }
  void gradients_ready(int unit) override { reducer_->ready(unit); }

  int passes() const override { return (options_.micro_batches + plan_.ranks() - 1) / plan_.ranks(); }
  int first_micro_batch() const override { return plan_.piece(); }

  void initialize(std::uint64_t seed) override;
  void begin_step(std::int64_t step) override {
    step_ = step;
    weights_.begin_step(step);
    reducer_->begin_step(step);
  }
  double gradient_norm() override;
  void update(double lr, std::int64_t update) override;
  std::string first_bad_tensor() override;
  std::vector<StateTensor> state(bool optimizer, Share share) override;
  void state_loaded() override {
    weights_.settle();
    for (int u = 0; u < plan_.unit_count(); ++u) weights_.changed(u, false);
  }

 private:
  // This rank's shard of one of the flat buffers of shards.
  Tensor shard_of(const Tensor& flat, int unit) const {
    return part_of(flat, plan_.first(unit) / plan_.shards(), plan_.shard_size(unit));
  }
  // Calls f(parameter, its elements that are in `range` of the unit) for each that has any there, padding not
  // counted.
  template <typename F>
  void for_parameters(int unit, const ElementRange& range, F&& f) const {
    for (const auto& parameter : plan_.unit(unit).parameters) {
      const auto here = range & ElementRange{parameter.offset, parameter.offset + parameter.shape.count()};
      if (here.count() > 0) f(parameter, here);
    }
  }
  // What an update touches and nothing else does until the next one.
  std::array<Tensor, 4> resting(int unit) {
    return {weights_.master(unit), shard_of(buffers_.m, unit), shard_of(buffers_.v, unit),
            reducer_->reduced(unit)};
  }
  bool is_finite(const Tensor& x);
  void update_unit(int unit, double lr, std::int64_t update);

  Backend& backend_;
  EngineOptions options_;
  ShardPlan plan_;
  EngineMode mode_;
  EngineArenas arenas_;
  EngineBuffers buffers_;
  DataGroups groups_;
  WeightStore weights_;
  std::unique_ptr<GradientReducer> reducer_;
  std::int64_t step_ = 0;
};

void SynchronousEngine::initialize(std::uint64_t seed) {
  weights_.settle();
  for (int u = 0; u < plan_.unit_count(); ++u) {
    const auto range = plan_.my_shard(u);
    const Tensor master = weights_.master(u);
    backend_.zero(master);
    for_parameters(u, range, [&](const ParameterSpec& parameter, const ElementRange& here) {
      shoal::initialize(backend_, parameter, part_of(master, here.begin - range.begin, here.count()),
                        here.begin - parameter.offset, seed);
    });
    if (options_.training) {
      backend_.zero(shard_of(buffers_.m, u));
      backend_.zero(shard_of(buffers_.v, u));
    }
    arenas_.done_with(master);
  }
  state_loaded();
}

double SynchronousEngine::gradient_norm() {
  reducer_->finish();
  // Sums of blocks, added in the order of the model: the same bits however many ranks made them.
  backend_.zero(buffers_.block_squares);
  std::int64_t first = 0;
  for (int u = 0; u < plan_.unit_count(); ++u) {
    const std::int64_t size = plan_.piece_size(u), blocks = size / ShardPlan::kBlock;
    backend_.sum_squares(part_of(buffers_.block_squares, first, blocks),
                         part_of(reducer_->reduced(u), plan_.replica() * size, size));
    first += blocks;
  }
  groups_.pieces->set_purpose(fmt::format("step {}, norm of the gradient", step_ + 1));
  groups_.pieces->all_gather(buffers_.all_block_squares, buffers_.block_squares).wait();
  std::vector<double> parts(static_cast<std::size_t>(buffers_.all_block_squares.count()));
  backend_.copy_to_host(parts.data(), buffers_.all_block_squares);
  double squares = 0;
  std::int64_t before = 0;  // blocks of the units before, in one rank's part
  for (int u = 0; u < plan_.unit_count(); ++u) {
    const std::int64_t blocks = plan_.piece_size(u) / ShardPlan::kBlock;
    for (int piece = 0; piece < plan_.ranks(); ++piece) {
      const auto* part = parts.data() + piece * first + before;
      for (std::int64_t i = 0; i < blocks; ++i) squares += part[i];
    }
    before += blocks;
  }
  backend_.copy_from_host(buffers_.squares, &squares);
  return std::sqrt(squares);
}

void SynchronousEngine::update(double lr, std::int64_t update) {
  backend_.clip_scale(buffers_.clip, buffers_.squares, options_.grad_clip);
  weights_.settle();
  for (int u = 0; u < plan_.unit_count(); ++u) {
    update_unit(u, lr, update);
    weights_.changed(u, true);
    for (const auto& x : resting(u)) arenas_.done_with(x);
  }
}

void SynchronousEngine::update_unit(int unit, double lr, std::int64_t update) {
  const auto shard = plan_.my_shard(unit);
  const Tensor master = weights_.master(unit), copy = weights_.copy(unit);
  const Tensor m = shard_of(buffers_.m, unit), v = shard_of(buffers_.v, unit);
  const Tensor gradient = reducer_->reduced(unit);
  const auto& spec = plan_.unit(unit);
  const auto over = [&](const ElementRange& range, bool decay) {
    if (range.count() == 0) return;
    auto step = adamw_step(options_.adamw, lr, update, decay);
    step.grad_scale = buffers_.clip.as<float>();
    const auto part = [&](const Tensor& x) { return part_of(x, range.begin - shard.begin, range.count()); };
    backend_.adamw(part(master), part(copy), part(m), part(v), part(gradient), step);
  };
  over(shard & ElementRange{0, spec.decayed}, true);
  over(shard & ElementRange{spec.decayed, spec.size}, false);
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
    for (int u = 0; u < plan_.unit_count(); ++u) {
      const auto range = plan_.my_shard(u);
      const Tensor shard = gradient ? reducer_->reduced(u) : weights_.master(u);
      for_parameters(u, range, [&](const ParameterSpec& parameter, const ElementRange& here) {
        if (!found.empty() || is_finite(part_of(shard, here.begin - range.begin, here.count()))) return;
        found = (gradient ? "the gradient of " : "") + parameter.name;
      });
    }
  }
  return found;
}

std::vector<StateTensor> SynchronousEngine::state(bool optimizer, Share share) {
  std::vector<StateTensor> tensors;
  const auto add = [&](const std::string& prefix, auto&& shard) {
    for (int u = 0; u < plan_.unit_count(); ++u) {
      const auto held = plan_.my_shard(u);
      const auto range = share == Share::held ? held : plan_.my_piece(u);
      for_parameters(u, range, [&](const ParameterSpec& parameter, const ElementRange& here) {
        tensors.push_back({.name = prefix + parameter.name,
                           .shape = parameter.shape,
                           .first = here.begin - parameter.offset,
                           .data = part_of(shard(u), here.begin - held.begin, here.count())});
      });
    }
  };
  add("", [&](int u) { return weights_.master(u); });
  if (optimizer) {
    add("optimizer.m.", [&](int u) { return shard_of(buffers_.m, u); });
    add("optimizer.v.", [&](int u) { return shard_of(buffers_.v, u); });
  }
  return tensors;
}

}  // namespace

std::unique_ptr<DataEngine> make_data_engine(Backend& backend, Communicator& group, const GptConfig& config,
                                             const EngineOptions& options) {
  return std::make_unique<SynchronousEngine>(backend, group, config, options);
}

DataEngine::Memory engine_memory(const GptConfig& config, const EngineOptions& options, int ranks) {
  return measure(ShardPlan(gpt_units(config), options.zero, options.replicate, 0, ranks), options);
}

}  // namespace shoal
