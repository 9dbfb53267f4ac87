// The surroundings of every layer, and a micro-batch's sizes and address.
#pragma once

#include "model/tensor_group.h"
#include "model/unit_store.h"

namespace shoal {

// The sizes of one micro-batch on this rank.
struct BatchShape {
  std::int64_t batch = 1;      // sequences, B
  std::int64_t positions = 1;  // tokens of a sequence, T
  std::int64_t rows() const { return batch * positions; }
  bool operator==(const BatchShape&) const = default;
};

// The address of a micro-batch in the run. Dropout depends on it and on nothing else.
struct BatchAddress {
  std::uint64_t seed = 0;
  const std::uint32_t* step = nullptr;  // see Dropout::step
  std::int64_t first_sample = 0;        // of the global batch
  bool training = true;                 // whether dropout acts
  Tensor positions = {};  // i32 [B, T], of tokens that generation adds to texts; empty: 0, 1, ...
};

// The surroundings of every layer.
struct LayerContext {
  Backend& backend;
  UnitStore& store;
  GptConfig config;
  DType compute = DType::f32;
  TensorGroup tensor = {};

  Dropout dropout(const BatchAddress& address, std::uint32_t site) const;
  // The same for this rank's rows of a stream.
  Dropout dropout(const BatchAddress& address, std::uint32_t site, const Tensor& stream) const;
};

}  // namespace shoal
