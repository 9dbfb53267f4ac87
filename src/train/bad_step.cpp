#include "train/bad_step.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace shoal {

bool is_gradient(const std::string& tensor) { return tensor.starts_with("the gradient of"); }

bool BadStep::bad_parameters() const { return !tensor.empty() && !is_gradient(tensor); }

std::string BadStep::describe(const Config& config) const {
  // The micro-batch at fault: the first whose loss is not finite, or else the one with the highest.
  auto worst = std::ranges::find_if(losses, [](double x) { return !std::isfinite(x); });
  if (worst == losses.end()) worst = std::ranges::max_element(losses);
  const int size = config.train.micro_batch;
  const double loss = *worst / (static_cast<double>(size) * config.model.block_size);
  const auto index = (worst - losses.begin()) * workers + worker;  // they are assigned round-robin
  return fmt::format("step {}{}: {}; micro-batch {} of {} (samples {} to {}, loss {:.4f}){}", step,
                     workers > 1 ? fmt::format(", worker {}", worker) : "", why, index + 1,
                     std::ssize(losses) * workers, index * size, (index + 1) * size - 1,
                     std::isnan(loss) ? std::abs(loss) : loss,  // not "-nan"
                     tensor.empty() ? "" : "; first tensor that is not finite: " + tensor);
}

}  // namespace shoal
