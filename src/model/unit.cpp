#include "model/unit.h"

#include <fnmatch.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <utility>

#include "core/error.h"
#include "core/hash.h"
#include "ops/int8.h"
#include "ops/kernels.h"

namespace shoal {
namespace {

constexpr std::int64_t kAlignment = 16;  // floats: a cache line, and a vector
constexpr std::string_view kEmbedding = "embedding";

std::int64_t round_up(std::int64_t n, std::int64_t to) { return (n + to - 1) / to * to; }

Shape no_offset(const Shape& shape) { return shape.rank() == 1 ? Shape{0} : Shape{0, 0}; }

class UnitBuilder {
 public:
  UnitBuilder(std::string name, std::string prefix, Decay decay, bool block = false)
      : decay_(decay), block_(block) {
    unit_.name = std::move(name);
    unit_.prefix = std::move(prefix);
  }

  UnitBuilder& add(std::string_view name, Shape shape, Initializer init, const Placement& placement = {}) {
    Shape local = shape;
    if (!placement.replicated()) local[placement.dim] = placement.parts * placement.range.count();
    unit_.parameters.push_back({.name = unit_.prefix + std::string(name),
                                .shape = shape,
                                .local_shape = local,
                                .init = init,
                                .decay = decays(shape),
                                .matrix = block_ && shape.rank() == 2,
                                .placement = placement});
    return *this;
  }
  // The last parameter is the matrix of the classes, with so many rows.
  UnitBuilder& pad_classes(std::int64_t rows) {
    auto& parameter = unit_.parameters.back();
    parameter.local_shape[0] = rows;
    parameter.classes = true;
    parameter.placement.most = round_up(parameter.placement.most, kAlignment);
    return *this;
  }

  UnitSpec build() {
    std::stable_sort(unit_.parameters.begin(), unit_.parameters.end(),
                     [](const auto& a, const auto& b) { return order(a) < order(b); });
    bool seen = false, seen_partial = false;
    const auto extend = [](ElementRange& range, bool& begun, std::int64_t begin, std::int64_t end) {
      if (!std::exchange(begun, true)) range.begin = begin;
      range.end = end;
    };
    const ParameterSpec* before = nullptr;
    for (auto& parameter : unit_.parameters) {
      // Shared and divided parameters do not lie in one block: a block's scale, or its choice of the largest,
      // is then the same on all tensor ranks where its numbers are.
      if (before && is_divided(*before) != is_divided(parameter))
        unit_.size = round_up(unit_.size, kSparseBlock);
      before = &parameter;
      parameter.offset = unit_.size;
      unit_.size += round_up(room_of(parameter), kAlignment);
      if (parameter.decay) unit_.decayed = unit_.size;
      if (parameter.matrix) unit_.matrices = unit_.size;
      const auto& placement = parameter.placement;
      if (placement.replicated()) extend(unit_.replicated, seen, parameter.offset, unit_.size);
      if (placement.partial) extend(unit_.partial, seen_partial, parameter.offset, unit_.size);
    }
    return std::move(unit_);
  }

 private:
  bool decays(const Shape& shape) const {
    if (decay_ == Decay::all) return true;
    return shape.rank() >= 2 && !(decay_ == Decay::no_embeddings && unit_.name == kEmbedding);
  }
  static bool is_divided(const ParameterSpec& parameter) {
    const auto& placement = parameter.placement;
    return !placement.replicated() &&
           placement.parts * placement.range.count() < parameter.shape[placement.dim];
  }
  static std::int64_t room_of(const ParameterSpec& parameter) {
    const auto& placement = parameter.placement;
    if (placement.replicated()) return parameter.shape.count();
    const std::int64_t others = parameter.shape.count() / parameter.shape[placement.dim];
    return others * placement.parts * placement.most;
  }
  static int order(const ParameterSpec& parameter) {
    const bool replicated = parameter.placement.replicated(), partial = parameter.placement.partial;
    if (parameter.matrix) return -1;
    if (parameter.decay) return !replicated ? 0 : partial ? 2 : 1;
    return partial ? 3 : replicated ? 4 : 5;
  }

  Decay decay_;
  bool block_;
  UnitSpec unit_;
};

constexpr Initializer kZeros{Initializer::Kind::zeros};
constexpr Initializer kOnes{Initializer::Kind::ones};
constexpr Initializer normal(double stddev) { return {Initializer::Kind::normal, stddev}; }

// The block that an adapter is of; other units themselves.
int home_of(const GptConfig& config, int unit) {
  return unit > config.n_layer + 1 ? unit - config.n_layer - 1 : unit;
}

// `range_of` gives the range of each rank in the group.
template <typename F>
Placement sharded(int dim, int parts, const TensorRank& tensor, F&& range_of) {
  Placement placement{.dim = dim, .parts = parts, .range = range_of(tensor)};
  for (int rank = 0; rank < tensor.size; ++rank) {
    placement.most =
        std::max(placement.most, range_of(TensorRank{.rank = rank, .size = tensor.size}).count());
  }
  return placement;
}

std::string unit_name(const GptConfig& config, int unit) {
  if (unit > config.n_layer + 1) return unit_name(config, home_of(config, unit)) + ".lora";
  if (unit == 0) return std::string(kEmbedding);
  return unit > config.n_layer ? "head" : "block." + std::to_string(unit - 1);
}

// A matrix with a row for each class.
void add_classes(UnitBuilder& unit, std::string_view name, const GptConfig& config,
                 const TensorRank& tensor) {
  unit.add(name, {config.vocab_size, config.n_embd}, normal(0.02),
           sharded(0, 1, tensor, [&](const TensorRank& t) { return local_classes(config, t); }))
      .pad_classes(padded_vocabulary(config, tensor));
}

UnitSpec embedding_unit(const GptConfig& config, const TensorRank& tensor, Decay decay) {
  UnitBuilder unit(unit_name(config, 0), "transformer.", decay);
  add_classes(unit, "wte.weight", config, tensor);
  unit.add("wpe.weight", {config.block_size, config.n_embd}, normal(0.02));
  return unit.build();
}

std::string block_prefix(int layer) { return "transformer.h." + std::to_string(layer) + "."; }

UnitSpec block_unit(const GptConfig& config, const TensorRank& tensor, Decay decay, int layer) {
  const std::int64_t c = config.n_embd;
  const auto residual = normal(0.02 / std::sqrt(2.0 * config.n_layer));
  UnitBuilder unit(unit_name(config, layer + 1), block_prefix(layer), decay, true);
  const auto linear = [&](const std::string& name, std::int64_t out, std::int64_t in, Initializer init,
                          const Placement& placement) {
    unit.add(name + ".weight", {out, in}, init, placement);
    // The bias of a row-parallel product is added once, to the sum of the ranks' products.
    if (config.bias) unit.add(name + ".bias", {out}, kZeros, placement.dim == 0 ? placement : Placement{});
  };
  const auto norm = [&](const std::string& name) {
    unit.add(name + ".weight", {c}, kOnes, {.partial = true});
    if (config.bias) unit.add(name + ".bias", {c}, kZeros, {.partial = true});
  };
  const auto channels = [&](const TensorRank& t) {
    const auto heads = local_heads(config, t);
    return ElementRange{heads.begin * config.head_size(), heads.end * config.head_size()};
  };
  const auto hidden = [&](const TensorRank& t) { return local_hidden(config, t); };
  norm("ln_1");
  linear("attn.c_attn", 3 * c, c, normal(0.02), sharded(0, 3, tensor, channels));
  linear("attn.c_proj", c, c, residual, sharded(1, 1, tensor, channels));
  norm("ln_2");
  linear("mlp.c_fc", 4 * c, c, normal(0.02), sharded(0, 1, tensor, hidden));
  linear("mlp.c_proj", c, 4 * c, residual, sharded(1, 1, tensor, hidden));
  return unit.build();
}

UnitSpec head_unit(const GptConfig& config, const TensorRank& tensor, Decay decay) {
  UnitBuilder unit(unit_name(config, config.n_layer + 1), "", decay);
  unit.add("transformer.ln_f.weight", {config.n_embd}, kOnes, {.partial = true});
  if (config.bias) unit.add("transformer.ln_f.bias", {config.n_embd}, kZeros, {.partial = true});
  if (!config.tied) add_classes(unit, "lm_head.weight", config, tensor);
  return unit.build();
}

// An adapter is divided as its linear layer is: B by rows where the layer is divided by outputs, A by columns
// where it is divided by inputs. Each rank then has a part of the other matrix's gradient.
UnitSpec adapter_unit(const GptConfig& config, const TensorRank& tensor, Decay decay, int layer) {
  const auto block = block_unit(config, tensor, decay, layer);
  UnitBuilder unit(block.name + ".lora", block.prefix, decay);
  for (int i = 0; i < kLinears; ++i) {
    if (!config.lora.on(static_cast<Linear>(i))) continue;
    const std::string name(name_of(static_cast<Linear>(i)));
    const auto& weight = block.parameter(name + ".weight");
    const std::int64_t out = weight.shape[0], in = weight.shape[1], rank = config.lora.rank;
    const Placement common{.partial = true};
    const bool by_inputs = weight.placement.dim == 1;
    // The variance of peft's uniform values.
    unit.add(name + ".lora_A.weight", {rank, in}, normal(1 / std::sqrt(3.0 * static_cast<double>(in))),
             by_inputs ? weight.placement : common);
    unit.add(name + ".lora_B.weight", {out, rank}, kZeros, by_inputs ? common : weight.placement);
  }
  return unit.build();
}

UnitSpec unit_of(const GptConfig& config, const TensorRank& tensor, Decay decay, int unit) {
  if (unit > config.n_layer + 1) return adapter_unit(config, tensor, decay, home_of(config, unit) - 1);
  if (unit == 0) return embedding_unit(config, tensor, decay);
  return unit <= config.n_layer ? block_unit(config, tensor, decay, unit - 1)
                                : head_unit(config, tensor, decay);
}

// The same unit of the next block: units of one kind differ in their names alone.
UnitSpec of_next_block(const GptConfig& config, UnitSpec unit, int number) {
  const auto before = unit.prefix.size();
  unit.name = unit_name(config, number);
  unit.prefix = block_prefix(home_of(config, number) - 1);
  for (auto& parameter : unit.parameters) parameter.name.replace(0, before, unit.prefix);
  return unit;
}

}  // namespace

std::string_view name_of(Linear layer) {
  constexpr std::string_view kNames[kLinears] = {"attn.c_attn", "attn.c_proj", "mlp.c_fc", "mlp.c_proj"};
  return kNames[static_cast<std::size_t>(layer)];
}

const ParameterSpec& UnitSpec::parameter(std::string_view its_name) const {
  for (const auto& spec : parameters) {
    if (std::string_view(spec.name).substr(prefix.size()) == its_name) return spec;
  }
  fail("unit {} has no parameter {}{}", name, prefix, its_name);
}

Tensor UnitView::operator[](const ParameterSlice& slice) const {
  if (slice.shape.rank() == 0 || !flat) return {};
  auto* start = flat.as<std::byte>() + static_cast<std::size_t>(slice.offset) * size_of(flat.dtype);
  if (int8 && slice.product) return {start, DType::i8, Int8Rows::shape(slice.shape[0], slice.shape[1])};
  return {start, flat.dtype, slice.shape};
}

std::vector<Box> ParameterSpec::boxes() const {
  const std::int64_t piece = placement.replicated() ? 0 : shape[placement.dim] / placement.parts;
  if (placement.replicated() || placement.range.count() == piece) {
    return {{.offset = no_offset(shape), .shape = shape}};
  }
  std::vector<Box> boxes;
  for (int part = 0; part < placement.parts; ++part) {
    Box box{.offset = no_offset(shape), .shape = shape};
    box.offset[placement.dim] = part * piece + placement.range.begin;
    box.shape[placement.dim] = placement.range.count();
    boxes.push_back(box);
  }
  return boxes;
}

bool fits(const std::string& unit, const std::string& pattern) {
  return ::fnmatch(pattern.c_str(), unit.c_str(), 0) == 0;
}

std::vector<UnitSpec> gpt_units(const GptConfig& config, const ModelPart& part, Decay decay) {
  std::vector<UnitSpec> units;
  const int model = config.n_layer + 2, count = model + (config.lora.rank > 0 ? config.n_layer : 0);
  units.reserve(static_cast<std::size_t>(count));
  for (int u = 0; u < count; ++u) {
    const int home = home_of(config, u);
    const bool next = home > 1 && home <= config.n_layer && part.has(config, home - 1);
    if (part.has(config, home)) {
      units.push_back(next ? of_next_block(config, units.back(), u) : unit_of(config, part.tensor, decay, u));
    } else {
      units.emplace_back().name = unit_name(config, u);
    }
    auto& unit = units.back();
    unit.home = home;
    unit.adapter = u >= model;
    unit.trained = unit.adapter || std::ranges::none_of(config.frozen, [&](const std::string& pattern) {
                     return fits(unit.name, pattern);
                   });
  }
  return units;
}

std::int64_t padded_vocabulary(const GptConfig& config, const TensorRank& tensor) {
  return round_up(local_classes(config, tensor).count(), kAlignment);
}

std::int64_t widest_vocabulary(const GptConfig& config, int tensor_ranks) {
  std::int64_t widest = 0;
  for (int rank = 0; rank < tensor_ranks; ++rank)
    widest = std::max(widest, padded_vocabulary(config, {.rank = rank, .size = tensor_ranks}));
  return widest;
}

std::int64_t parameter_count(const std::vector<UnitSpec>& units) {
  std::int64_t count = 0;
  for (const auto& unit : units) {
    for (const auto& parameter : unit.parameters) count += parameter.shape.count();
  }
  return count;
}

std::int64_t trained_count(const std::vector<UnitSpec>& units) {
  std::vector<UnitSpec> trained;
  std::ranges::copy_if(units, std::back_inserter(trained), &UnitSpec::trained);
  return parameter_count(trained);
}

double flops_per_token(const GptConfig& config) {
  const auto units = gpt_units(config);
  // An embedding that the head does not share is only looked up.
  const double looked_up = config.tied ? 0 : static_cast<double>(config.vocab_size) * config.n_embd;
  const double all = static_cast<double>(parameter_count(units)) - looked_up,
               trained = static_cast<double>(trained_count(units)) - (units[0].trained ? looked_up : 0);
  return 4 * all + 2 * trained + 12.0 * config.n_layer * config.n_embd * config.block_size;
}

bool owns(const ModelPart& part, const UnitSpec& unit, const ParameterSpec& parameter) {
  return part.computes(unit.home) && (part.tensor.rank == 0 || !parameter.placement.replicated());
}

void initialize(Backend& backend, const ParameterSpec& spec, const Box& box, const Tensor& out,
                std::int64_t first, std::uint64_t seed) {
  if (spec.init.kind != Initializer::Kind::normal) {
    return backend.fill(out, spec.init.kind == Initializer::Kind::ones ? 1.0f : 0.0f);
  }
  // Runs of elements that are neighbours in the whole parameter too: rows of the box, or all of it.
  const std::int64_t columns = spec.shape[-1], width = box.shape[-1];
  const std::int64_t run = width == columns ? box.shape.count() : width;
  for (std::int64_t done = 0; done < out.count();) {
    const std::int64_t at = first + done, n = std::min(out.count() - done, run - at % run);
    const std::int64_t row = box.offset.rank() == 1 ? 0 : box.offset[0] + at / width;
    const std::int64_t place = row * columns + box.offset[-1] + at % width;
    backend.fill_normal({out.as<float>() + done, DType::f32, {n}}, seed, fnv1a(spec.name), place,
                        spec.init.stddev);
    done += n;
  }
}

}  // namespace shoal
