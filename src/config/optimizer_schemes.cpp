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

OptimizerOptions muon(const OptimConfig& optim) {
  return MuonConfig{.adamw = std::get<AdamWConfig>(adamw(optim)),
                    .rate = optim.matrix_lr > 0 ? optim.matrix_lr / optim.lr : 1,
                    .momentum = optim.momentum,
                    .nesterov = optim.nesterov,
                    .steps = optim.ns_steps,
                    .scale = optim.adjust_lr};
}

constexpr OptimizerKeys kOfMuon = {"optim.matrix_lr", "optim.momentum", "optim.nesterov", "optim.ns_steps",
                                   "optim.adjust_lr"};
constexpr OptimizerKeys kOfMuonAndAccum = [] {
  auto keys = kOfMuon;
  keys.back() = "optim.accum_steps";
  return keys;
}();

constexpr OptimizerScheme kOptimizers[] = {
    {OptimizerKind::adamw, "adamw", "decoupled weight decay", adamw, kOfMuonAndAccum},
    {OptimizerKind::accum_adamw, "accum_adamw",
     "parameters move at every step, moments are committed once per accum_steps", adamw, kOfMuon},
    {OptimizerKind::accum_adam, "accum_adam", "the same, with the weight decay added to the gradient (L2)",
     adamw, kOfMuon},
    {OptimizerKind::muon,
     "muon",
     "hidden matrices move by their momentum made orthogonal, other parameters by AdamW",
     muon,
     {"optim.accum_steps"}},
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
