// Muon (Jordan et al. 2024): hidden matrices move by their momentum made orthogonal (newton_schulz.h), all
// other parameters by AdamW.
#pragma once

#include <cstdint>

#include "optim/adamw.h"
#include "optim/newton_schulz.h"

namespace shoal {

// The factor of an orthogonal update [rows, columns], as torch.optim.Muon's adjust_lr_fn.
enum class MuonScale : std::uint8_t {
  original,         // sqrt(max(1, rows / columns))
  match_rms_adamw,  // 0.2 sqrt(max(rows, columns)): an element moves as far as with AdamW (Liu et al. 2025)
};

struct MuonConfig {
  AdamWConfig adamw = {};  // of the other parameters; its weight decay is the matrices' too
  double rate = 1;         // the matrices' learning rate, as a multiple of the others'
  double momentum = 0.95;
  bool nesterov = true;
  int steps = 5;  // of Newton and Schulz
  MuonScale scale = MuonScale::match_rms_adamw;

  bool operator==(const MuonConfig&) const = default;
};

}  // namespace shoal
