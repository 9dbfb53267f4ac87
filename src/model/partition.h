// A rank's part of the model: ranges of units (pipeline parallelism), and a range of each sharded parameter
// (tensor parallelism).
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "model/config.h"

namespace shoal {

// Units [begin, end) of the model: 0 is the embedding, 1 ... n_layer the blocks, n_layer + 1 the head.
struct UnitRange {
  int begin = 0, end = 0;
  bool holds(int unit) const { return unit >= begin && unit < end; }
  int count() const { return end - begin; }
  bool operator==(const UnitRange&) const = default;
};

// The units of a range that are blocks.
UnitRange blocks_of(const UnitRange& range, const GptConfig& config);

struct ElementRange {
  std::int64_t begin = 0, end = 0;
  std::int64_t count() const { return end - begin; }
  ElementRange operator&(const ElementRange& other) const;  // empty ranges begin where they end
  bool operator==(const ElementRange&) const = default;
};

// Range i of [0, n) cut into `parts` neighbouring ranges, whose sizes differ by one at most.
ElementRange even_range(std::int64_t n, int parts, int i);

// A rank of a tensor-parallel group.
struct TensorRank {
  int rank = 0, size = 1;
  bool sequence = false;  // norms, dropout and residual additions work on 1 / size of the tokens
  bool operator==(const TensorRank&) const = default;
};

// By default the whole model.
struct ModelPart {
  TensorRank tensor;
  std::vector<UnitRange> chunks;  // of this pipeline rank, in the model's order; empty: one with all units

  bool operator==(const ModelPart&) const = default;

  std::vector<UnitRange> ranges(const GptConfig& config) const;  // the chunks, or the whole model
  // Whether this pipeline rank computes the unit, and whether it has the unit's parameters: a rank with the
  // head has the embedding's too where they share a matrix.
  bool computes(int unit) const;
  bool has(const GptConfig& config, int unit) const;
};

// A tensor rank's heads, hidden channels of the MLP, and classes of the vocabulary.
ElementRange local_heads(const GptConfig& config, const TensorRank& tensor);
ElementRange local_hidden(const GptConfig& config, const TensorRank& tensor);
ElementRange local_classes(const GptConfig& config, const TensorRank& tensor);

// The largest tensor-parallel group in which every rank gets a head, a hidden channel and a class.
struct TensorLimit {
  std::int64_t ranks;
  std::string_view part;  // that there is one of for each rank: "attention heads"
};
TensorLimit tensor_limit(const GptConfig& config);

}  // namespace shoal
