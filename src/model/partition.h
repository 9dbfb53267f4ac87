// Which part of a model a rank has: ranges of units (pipeline), and a share of each sharded parameter
// (tensor).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "model/config.h"

namespace shoal {

// Units [begin, end) of the model: 0 is the embedding, 1 ... n_layer the blocks, n_layer + 1 the head.
struct UnitRange {
  int begin = 0, end = 0;
  bool holds(int unit) const { return unit >= begin && unit < end; }
  bool operator==(const UnitRange&) const = default;
};

struct ElementRange {
  std::int64_t begin = 0, end = 0;
  std::int64_t count() const { return end - begin; }
  ElementRange operator&(const ElementRange& other) const;  // empty ranges begin where they end
  bool operator==(const ElementRange&) const = default;
};

// Part `i` when n things are dealt to `parts` in order; parts differ by one thing at most.
ElementRange share_of(std::int64_t n, int parts, int i);

// A rank's place in its tensor-parallel group.
struct TensorPlace {
  int rank = 0, size = 1;
  bool sequence = false;  // norms, dropout and residual additions work on 1 / size of the tokens
  bool operator==(const TensorPlace&) const = default;
};

// The default is the whole model.
struct ModelPart {
  TensorPlace tensor;
  std::vector<UnitRange>
      chunks;  // this pipeline rank's, in the order of the model; empty: one with all units

  bool operator==(const ModelPart&) const = default;

  std::vector<UnitRange> ranges(const GptConfig& config) const;  // the chunks, or the whole model
  // Whether this pipeline rank computes the unit, and whether it has its parameters: where the head is, the
  // embedding's are too, since they share a matrix.
  bool computes(int unit) const;
  bool has(const GptConfig& config, int unit) const;
};

// What a tensor rank has of the heads, of the MLP's hidden channels, and of the vocabulary.
ElementRange local_heads(const GptConfig& config, const TensorPlace& place);
ElementRange local_hidden(const GptConfig& config, const TensorPlace& place);
ElementRange local_classes(const GptConfig& config, const TensorPlace& place);

// Throws UserError, with what would do, unless every tensor rank gets a head, a hidden channel and a class,
// and under sequence parallelism the `rows` tokens of a micro-batch divide.
void check_tensor_group(const GptConfig& config, const TensorPlace& place, std::int64_t rows);

}  // namespace shoal
