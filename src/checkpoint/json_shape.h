// Shapes in JSON: arrays of sizes, outermost first.
#pragma once

#include <nlohmann/json.hpp>

#include <optional>

#include "core/json_integer.h"
#include "core/tensor.h"

namespace shoal {

template <typename Json>
Json shape_to_json(const Shape& shape) {
  Json sizes = Json::array();
  for (int i = 0; i < shape.rank(); ++i) sizes.push_back(shape[i]);
  return sizes;
}

// Nothing when it is not an array of at most Shape::kMaxRank whole numbers from 0 up.
inline std::optional<Shape> shape_from_json(const nlohmann::json& sizes) {
  if (!sizes.is_array() || sizes.size() > Shape::kMaxRank) return std::nullopt;
  Shape shape;
  for (const auto& size : sizes) {
    const auto value = integer_of<std::int64_t>(size);
    if (!value || *value < 0) return std::nullopt;
    shape.push_back(*value);
  }
  return shape;
}

}  // namespace shoal
