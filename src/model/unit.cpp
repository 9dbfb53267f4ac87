#include "model/unit.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "core/error.h"

namespace shoal {
namespace {

constexpr std::int64_t kAlignment = 16;  // floats: a cache line, and a vector

std::int64_t round_up(std::int64_t n, std::int64_t to) { return (n + to - 1) / to * to; }

class UnitBuilder {
 public:
  explicit UnitBuilder(std::string name) { unit_.name = std::move(name); }

  UnitBuilder& add(std::string name, Shape shape, Initializer init, Placement placement = {}) {
    unit_.parameters.push_back({.name = std::move(name),
                                .shape = shape,
                                .local_shape = shape,
                                .init = init,
                                .decay = shape.rank() >= 2,
                                .placement = placement});
    return *this;
  }
  UnitBuilder& pad_rows(std::int64_t rows) {
    unit_.parameters.back().local_shape[0] = rows;
    return *this;
  }

  UnitSpec build() {
    std::stable_partition(unit_.parameters.begin(), unit_.parameters.end(),
                          [](const auto& p) { return p.decay; });
    for (auto& parameter : unit_.parameters) {
      parameter.offset = unit_.size;
      unit_.size += round_up(parameter.local_shape.count(), kAlignment);
      if (parameter.decay) unit_.decayed = unit_.size;
    }
    return std::move(unit_);
  }

 private:
  UnitSpec unit_;
};

constexpr Initializer kZeros{Initializer::Kind::zeros};
constexpr Initializer kOnes{Initializer::Kind::ones};
constexpr Initializer normal(double stddev) { return {Initializer::Kind::normal, stddev}; }

UnitSpec embedding_unit(const GptConfig& config) {
  UnitBuilder unit("embedding");
  unit.add("transformer.wte.weight", {config.vocab_size, config.n_embd}, normal(0.02), {.dim = 0})
      .pad_rows(padded_vocabulary(config));
  unit.add("transformer.wpe.weight", {config.block_size, config.n_embd}, normal(0.02));
  return unit.build();
}

UnitSpec block_unit(const GptConfig& config, int layer) {
  const std::int64_t c = config.n_embd;
  const auto residual = normal(0.02 / std::sqrt(2.0 * config.n_layer));
  const std::string prefix = fmt::format("transformer.h.{}.", layer);
  UnitBuilder unit(fmt::format("block.{}", layer));
  const auto linear = [&](const char* name, std::int64_t out, std::int64_t in, Initializer init,
                          Placement placement) {
    unit.add(prefix + name + ".weight", {out, in}, init, placement);
    // The bias of a row-parallel product is added after its reduction, so it is replicated.
    if (config.bias)
      unit.add(prefix + name + ".bias", {out}, kZeros, placement.dim == 0 ? placement : Placement{});
  };
  const auto norm = [&](const char* name) {
    unit.add(prefix + name + ".weight", {c}, kOnes);
    if (config.bias) unit.add(prefix + name + ".bias", {c}, kZeros);
  };
  norm("ln_1");
  linear("attn.c_attn", 3 * c, c, normal(0.02), {.dim = 0, .parts = 3});
  linear("attn.c_proj", c, c, residual, {.dim = 1});
  norm("ln_2");
  linear("mlp.c_fc", 4 * c, c, normal(0.02), {.dim = 0});
  linear("mlp.c_proj", c, 4 * c, residual, {.dim = 1});
  return unit.build();
}

UnitSpec head_unit(const GptConfig& config) {
  UnitBuilder unit("head");
  unit.add("transformer.ln_f.weight", {config.n_embd}, kOnes);
  if (config.bias) unit.add("transformer.ln_f.bias", {config.n_embd}, kZeros);
  return unit.build();
}

}  // namespace

const ParameterSpec& UnitSpec::parameter(std::string_view name_end) const {
  for (const auto& spec : parameters) {
    if (spec.name.ends_with(name_end)) return spec;
  }
  fail("unit {} has no parameter {}", name, name_end);
}

Tensor UnitView::operator[](std::size_t i) const {
  const auto& parameter = spec->parameters[i];
  auto* start =
      static_cast<std::byte*>(flat.data) + static_cast<std::size_t>(parameter.offset) * size_of(flat.dtype);
  return {start, flat.dtype, parameter.local_shape};
}

Tensor UnitView::operator[](std::string_view name_end) const {
  for (std::size_t i = 0; i < spec->parameters.size(); ++i) {
    if (spec->parameters[i].name.ends_with(name_end)) return (*this)[i];
  }
  return {};
}

std::vector<UnitSpec> gpt_units(const GptConfig& config) {
  std::vector<UnitSpec> units{embedding_unit(config)};
  for (int layer = 0; layer < config.n_layer; ++layer) units.push_back(block_unit(config, layer));
  units.push_back(head_unit(config));
  return units;
}

std::int64_t padded_vocabulary(const GptConfig& config) { return round_up(config.vocab_size, kAlignment); }

std::int64_t parameter_count(const std::vector<UnitSpec>& units) {
  std::int64_t count = 0;
  for (const auto& unit : units) {
    for (const auto& parameter : unit.parameters) count += parameter.shape.count();
  }
  return count;
}

double flops_per_token(const GptConfig& config) {
  return 6.0 * static_cast<double>(parameter_count(gpt_units(config))) +
         12.0 * config.n_layer * config.n_embd * config.block_size;
}

void initialize(Backend& backend, const ParameterSpec& spec, const Tensor& out, std::int64_t first,
                std::uint64_t seed) {
  switch (spec.init.kind) {
    case Initializer::Kind::zeros:
      return backend.fill(out, 0.0f);
    case Initializer::Kind::ones:
      return backend.fill(out, 1.0f);
    case Initializer::Kind::normal:
      return backend.fill_normal(out, seed, name_hash(spec.name), first, spec.init.stddev);
  }
}

}  // namespace shoal
