#include <cmath>

#include "core/error.h"
#include "model/arena.h"
#include "parallel/data_engine.h"

namespace shoal {
namespace {

// The flat buffers of all units, end to end, so that what concerns every parameter is one call.
struct FlatBuffers {
  Tensor weights, compute, grads, m, v;  // compute is empty when the products use float32

  static FlatBuffers take(Arena& arena, std::int64_t size, const EngineOptions& options) {
    const auto optional = [&](bool wanted, DType dtype) {
      return wanted ? arena.take(dtype, {size}) : Tensor{};
    };
    return {.weights = arena.take(DType::f32, {size}),
            .compute = optional(options.compute != DType::f32, options.compute),
            .grads = optional(options.training, DType::f32),
            .m = optional(options.training, DType::f32),
            .v = optional(options.training, DType::f32)};
  }
};

Tensor slice(const Tensor& flat, std::int64_t first, std::int64_t count) {
  if (!flat) return {};
  return {flat.as<std::byte>() + static_cast<std::size_t>(first) * size_of(flat.dtype), flat.dtype, {count}};
}

std::int64_t total_size(const std::vector<UnitSpec>& units) {
  std::int64_t size = 0;
  for (const auto& unit : units) size += unit.size;
  return size;
}

class ReplicatedEngine final : public DataEngine {
 public:
  ReplicatedEngine(Backend& backend, Communicator& group, const GptConfig& config,
                   const EngineOptions& options)
      : backend_(backend),
        group_(group),
        options_(options),
        units_(gpt_units(config)),
        arena_(backend, measure()) {
    flat_ = FlatBuffers::take(arena_, total_size(units_), options);
    squares_ = arena_.take(DType::f64, {1});
    clip_ = arena_.take(DType::f32, {1});
    std::int64_t first = 0;
    for (const auto& unit : units_) {
      firsts_.push_back(first);
      first += unit.size;
    }
    reductions_.resize(units_.size());
  }

  const std::vector<UnitSpec>& units() const override { return units_; }

  UnitView weights(int unit) override { return view(unit, flat_.compute ? flat_.compute : flat_.weights); }
  void release(int) override {}
  UnitView gradients(int unit) override { return view(unit, flat_.grads); }
  Tensor tied_gradient() override { return gradients(0)["wte.weight"]; }
  void gradients_ready(int unit) override {
    if (unit == 0) --micro_batches_left_;  // the embedding's backward pass is a micro-batch's last
    const bool last = unit == 0 ? micro_batches_left_ == 0 : micro_batches_left_ == 1;
    if (last) reductions_[static_cast<std::size_t>(unit)] = group_.all_reduce(gradients(unit).flat);
  }

  void initialize(std::uint64_t seed) override {
    for (int u = 0; u < static_cast<int>(units_.size()); ++u) {
      const auto unit = view(u, flat_.weights);
      for (std::size_t i = 0; i < units_[static_cast<std::size_t>(u)].parameters.size(); ++i) {
        shoal::initialize(backend_, unit.spec->parameters[i], unit[i], seed);
      }
    }
    if (options_.training) {
      backend_.zero(flat_.m);
      backend_.zero(flat_.v);
    }
    state_loaded();
  }

  int passes() const override { return (options_.micro_batches + group_.size() - 1) / group_.size(); }
  int first_micro_batch() const override { return group_.rank(); }

  void begin_step(std::int64_t) override {
    micro_batches_left_ = passes();
    backend_.zero(flat_.grads);
  }

  double gradient_norm() override {
    for (auto& reduction : reductions_) reduction.wait();
    backend_.zero(squares_);
    backend_.sum_squares(squares_, flat_.grads);
    double squares = 0;
    backend_.copy_to_host(&squares, squares_);
    return std::sqrt(squares);
  }

  void update(double lr, std::int64_t update) override {
    backend_.clip_scale(clip_, squares_, options_.grad_clip);
    for (std::size_t u = 0; u < units_.size(); ++u) {
      const auto range = [&](std::int64_t begin, std::int64_t end, bool decay) {
        if (begin == end) return;
        auto step = adamw_step(options_.adamw, lr, update, decay);
        step.grad_scale = clip_.as<float>();
        const auto part = [&](const Tensor& flat) { return slice(flat, firsts_[u] + begin, end - begin); };
        backend_.adamw(part(flat_.weights), part(flat_.compute), part(flat_.m), part(flat_.v),
                       part(flat_.grads), step);
      };
      range(0, units_[u].decayed, true);
      range(units_[u].decayed, units_[u].size, false);
    }
  }

  std::string first_bad_tensor() override {
    for (const bool gradient : {false, true}) {
      for (int u = 0; u < static_cast<int>(units_.size()); ++u) {
        const auto unit = view(u, gradient ? flat_.grads : flat_.weights);
        for (std::size_t i = 0; i < unit.spec->parameters.size(); ++i) {
          if (is_finite(unit[i])) continue;
          return (gradient ? "the gradient of " : "") + unit.spec->parameters[i].name;
        }
      }
    }
    return {};
  }

  std::vector<StateTensor> state(bool optimizer, Share) override {
    std::vector<StateTensor> tensors;
    const auto add = [&](const std::string& prefix, const Tensor& flat) {
      for (int u = 0; u < static_cast<int>(units_.size()); ++u) {
        const auto unit = view(u, flat);
        for (std::size_t i = 0; i < unit.spec->parameters.size(); ++i) {
          Tensor data = unit[i];
          data.shape = unit.spec->parameters[i].shape;  // padding is rows after the last
          const auto shape = data.shape;
          tensors.push_back({prefix + unit.spec->parameters[i].name, shape, 0, data.reshaped({shape.count()})});
        }
      }
    };
    add("", flat_.weights);
    if (optimizer) {
      add("optimizer.m.", flat_.m);
      add("optimizer.v.", flat_.v);
    }
    return tensors;
  }

  void state_loaded() override {
    if (flat_.compute) backend_.convert(flat_.compute, flat_.weights);
  }

 private:
  std::size_t measure() const {
    Arena arena;
    FlatBuffers::take(arena, total_size(units_), options_);
    arena.take(DType::f64, {1});
    arena.take(DType::f32, {1});
    return arena.used();
  }

  bool is_finite(const Tensor& x) {
    backend_.zero(squares_);
    backend_.sum_squares(squares_, x);
    double squares = 0;
    backend_.copy_to_host(&squares, squares_);
    return std::isfinite(squares);
  }

  UnitView view(int unit, const Tensor& flat) const {
    const auto& spec = units_[static_cast<std::size_t>(unit)];
    return {&spec, slice(flat, firsts_[static_cast<std::size_t>(unit)], spec.size)};
  }

  Backend& backend_;
  Communicator& group_;
  EngineOptions options_;
  std::vector<UnitSpec> units_;
  std::vector<std::int64_t> firsts_;  // of each unit in the flat buffers
  Arena arena_;
  FlatBuffers flat_;
  Tensor squares_, clip_;
  std::vector<Request> reductions_;
  int micro_batches_left_ = 0;
};

}  // namespace

std::unique_ptr<DataEngine> make_data_engine(Backend& backend, Communicator& group,
                                                   const GptConfig& config, const EngineOptions& options) {
  return std::make_unique<ReplicatedEngine>(backend, group, config, options);
}

DataEngine::Memory engine_memory(const GptConfig& config, const EngineOptions& options, int) {
  const auto elements = static_cast<std::size_t>(total_size(gpt_units(config)));
  return {.weights = 4 * elements,
          .compute_copy = options.compute == DType::f32 ? 0 : size_of(options.compute) * elements,
          .gradients = options.training ? 4 * elements : 0,
          .optimizer = options.training ? 8 * elements : 0};
}

}  // namespace shoal
