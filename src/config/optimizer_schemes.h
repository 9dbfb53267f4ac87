// The optimizers by name, as a table. A new one is an enumerator of OptimizerKind and a row in
// optimizer_schemes.cpp; the config, its rules and the plan find it there.
#pragma once

#include <array>
#include <span>
#include <string_view>

#include "config/config.h"
#include "optim/optimizer.h"

namespace shoal {

using OptimizerKeys = std::array<std::string_view, 8>;

struct OptimizerScheme {
  OptimizerKind kind;
  std::string_view name;     // in the config: "adamw"
  std::string_view meaning;  // for `shoal config --explain`
  OptimizerOptions (*options)(const OptimConfig& optim);
  OptimizerKeys unread = {};  // keys of [optim] that it does not read, which are refused

  bool reads(std::string_view key) const;
};

std::span<const OptimizerScheme> optimizer_schemes();
const OptimizerScheme& scheme_of(OptimizerKind kind);

}  // namespace shoal
