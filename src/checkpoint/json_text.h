// Texts and shapes in JSON. A shape is an array of sizes, outermost first.
#pragma once

#include <nlohmann/json.hpp>

#include <algorithm>
#include <optional>
#include <string>

#include "core/json_integer.h"
#include "core/json_text.h"
#include "core/tensor.h"

namespace shoal {

// A string is written without nlohmann-json where it needs no escape, as most do: that is faster.
inline std::string json_text(const std::string& text) {
  const auto needs_escape = [](char c) { return c < ' ' || c > '~' || c == '"' || c == '\\'; };
  return std::ranges::any_of(text, needs_escape) ? json_text(nlohmann::json(text)) : '"' + text + '"';
}

inline std::string json_text(const Shape& shape) {
  std::string sizes;
  for (int i = 0; i < shape.rank(); ++i) sizes += (i == 0 ? "" : ",") + std::to_string(shape[i]);
  return '[' + sizes + ']';
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
