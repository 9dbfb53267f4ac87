#include "model/partition.h"

#include <algorithm>

namespace shoal {
namespace {

// The hidden channels of the MLP are divided in whole vectors where the width allows it.
std::int64_t hidden_quantum(const GptConfig& config) { return 4 * config.n_embd % 16 == 0 ? 16 : 1; }

}  // namespace

UnitRange blocks_of(const UnitRange& range, const GptConfig& config) {
  return {std::max(range.begin, 1), std::min(range.end, config.n_layer + 1)};
}

ElementRange ElementRange::operator&(const ElementRange& other) const {
  const std::int64_t from = std::max(begin, other.begin);
  return {from, std::max(from, std::min(end, other.end))};
}

ElementRange even_range(std::int64_t n, int parts, int i) { return {n * i / parts, n * (i + 1) / parts}; }

bool ModelPart::computes(int unit) const {
  return chunks.empty() || std::any_of(chunks.begin(), chunks.end(), [&](auto& c) { return c.holds(unit); });
}

bool ModelPart::has(const GptConfig& config, int unit) const {
  return computes(unit) || (config.tied && unit == 0 && computes(config.n_layer + 1));
}

std::vector<UnitRange> ModelPart::ranges(const GptConfig& config) const {
  return chunks.empty() ? std::vector{UnitRange{0, config.n_layer + 2}} : chunks;
}

ElementRange local_heads(const GptConfig& config, const TensorRank& tensor) {
  return even_range(config.n_head, tensor.size, tensor.rank);
}

ElementRange local_hidden(const GptConfig& config, const TensorRank& tensor) {
  const std::int64_t hidden = 4 * config.n_embd, quantum = hidden_quantum(config);
  const auto quanta = even_range(hidden / quantum, tensor.size, tensor.rank);
  return {quanta.begin * quantum, quanta.end * quantum};
}

ElementRange local_classes(const GptConfig& config, const TensorRank& tensor) {
  return even_range(config.vocab_size, tensor.size, tensor.rank);
}

TensorLimit tensor_limit(const GptConfig& config) {
  return std::min(
      {TensorLimit{config.n_head, "attention heads"},
       TensorLimit{config.vocab_size, "classes of the vocabulary"},
       TensorLimit{4 * config.n_embd / hidden_quantum(config), "pieces of the MLP's hidden channels"}},
      [](const TensorLimit& a, const TensorLimit& b) { return a.ranks < b.ranks; });
}

}  // namespace shoal
