// Whole numbers in JSON of strangers. nlohmann-json converts any number: 1e30 is undefined behaviour then,
// and 2^40 is cut to an int.
#pragma once

#include <concepts>
#include <cstdint>
#include <optional>
#include <utility>

namespace shoal {

// Nothing where it is not a whole number (1.0 is not), or T cannot hold it. Json: one of nlohmann-json's
// types.
template <std::integral T, typename Json>
std::optional<T> integer_of(const Json& value) {
  const auto fitting = [](auto number) {
    return std::in_range<T>(number) ? std::optional(static_cast<T>(number)) : std::nullopt;
  };
  if (value.is_number_unsigned()) return fitting(value.template get<std::uint64_t>());
  if (value.is_number_integer()) return fitting(value.template get<std::int64_t>());
  return std::nullopt;
}

}  // namespace shoal
