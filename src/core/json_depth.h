// How deep values of JSON lie within each other. nlohmann-json parses and destroys any depth, but copies,
// compares and dumps by recursion: some hundred kilobytes of brackets from a stranger overflow the stack.
#pragma once

#include <algorithm>

namespace shoal {

// Far deeper than anything that is read here, and harmless to recursion.
inline constexpr int kDeepestJson = 64;

// Whether lists and objects are nested more than `levels` deep. Json: one of nlohmann-json's types.
template <typename Json>
bool is_deeper(const Json& json, int levels = kDeepestJson) {
  if (!json.is_structured()) return false;
  return levels == 0 || std::any_of(json.begin(), json.end(),
                                    [&](const Json& value) { return is_deeper(value, levels - 1); });
}

}  // namespace shoal
