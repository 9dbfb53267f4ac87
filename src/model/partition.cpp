#include "model/partition.h"

#include <algorithm>

#include "core/error.h"

namespace shoal {

ElementRange ElementRange::operator&(const ElementRange& other) const {
  const std::int64_t from = std::max(begin, other.begin);
  return {from, std::max(from, std::min(end, other.end))};
}

ElementRange share_of(std::int64_t n, int parts, int i) { return {n * i / parts, n * (i + 1) / parts}; }

bool ModelPart::computes(int unit) const {
  return chunks.empty() || std::any_of(chunks.begin(), chunks.end(), [&](auto& c) { return c.holds(unit); });
}

bool ModelPart::has(const GptConfig& config, int unit) const {
  return computes(unit) || (unit == 0 && computes(config.n_layer + 1));
}

std::vector<UnitRange> ModelPart::ranges(const GptConfig& config) const {
  return chunks.empty() ? std::vector{UnitRange{0, config.n_layer + 2}} : chunks;
}

ElementRange local_heads(const GptConfig& config, const TensorPlace& place) {
  return share_of(config.n_head, place.size, place.rank);
}

ElementRange local_hidden(const GptConfig& config, const TensorPlace& place) {
  // In whole vectors where the width allows it.
  const std::int64_t hidden = 4 * config.n_embd, quantum = hidden % 16 == 0 ? 16 : 1;
  const auto quanta = share_of(hidden / quantum, place.size, place.rank);
  return {quanta.begin * quantum, quanta.end * quantum};
}

ElementRange local_classes(const GptConfig& config, const TensorPlace& place) {
  return share_of(config.vocab_size, place.size, place.rank);
}

void check_tensor_group(const GptConfig& config, const TensorPlace& place, std::int64_t rows) {
  const auto refuse = [&](std::int64_t most, std::string_view what) {
    if (place.size > most) {
      fail_user("parallel.tensor = {} ranks cannot share {} {}; use at most {}", place.size, most, what,
                most);
    }
  };
  refuse(config.n_head, "attention heads");
  refuse(config.vocab_size, "classes of the vocabulary");
  const TensorPlace one{};
  const std::int64_t hidden = local_hidden(config, one).count();
  refuse(hidden % 16 == 0 ? hidden / 16 : hidden, "pieces of the MLP's hidden channels");
  if (place.sequence && rows % place.size != 0) {
    fail_user(
        "parallel.sequence: the {} tokens of a micro-batch do not divide over parallel.tensor = {} ranks; "
        "choose another train.micro_batch, or parallel.sequence=false",
        rows, place.size);
  }
}

}  // namespace shoal
