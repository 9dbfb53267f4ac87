#include "config/optimizer_schemes.h"

#include <algorithm>

namespace shoal {
namespace {

OptimizerOptions adamw(const OptimConfig& optim) {
  return AdamWConfig{.beta1 = optim.betas[0],
                     .beta2 = optim.betas[1],
                     .eps = optim.eps,
                     .weight_decay = optim.weight_decay,
                     .l2 = optim.name == OptimizerKind::accum_adam,
                     .accum_steps = optim.accum_steps};
}

constexpr OptimizerScheme kOptimizers[] = {
    {OptimizerKind::adamw, "adamw", "decoupled weight decay", adamw, {"optim.accum_steps"}},
    {OptimizerKind::accum_adamw, "accum_adamw",
     "parameters move at every step, moments are committed once per accum_steps", adamw},
    {OptimizerKind::accum_adam, "accum_adam", "the same, with the weight decay added to the gradient (L2)",
     adamw},
};

}  // namespace

bool OptimizerScheme::reads(std::string_view key) const {
  return std::ranges::find(unread, key) == unread.end();
}

std::span<const OptimizerScheme> optimizer_schemes() { return kOptimizers; }

const OptimizerScheme& scheme_of(OptimizerKind kind) {
  return *std::ranges::find(kOptimizers, kind, &OptimizerScheme::kind);
}

}  // namespace shoal
