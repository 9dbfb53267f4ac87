#include "optim/optimizer.h"

namespace shoal {

std::unique_ptr<Optimizer> make_optimizer(const OptimizerOptions& options) {
  return std::visit([](const auto& config) { return make_optimizer(config); }, options);
}

}  // namespace shoal
