// Softmax cross-entropy.
#include <cmath>
#include <limits>

#include "ops/reference/reference_backend.h"
#include "ops/reference/values.h"

namespace shoal {

using reference::read;
using reference::Values;
using reference::write;

void ReferenceBackend::cross_entropy_stats(const CrossEntropy& args) {
  const auto rows = args.logits.rows(), columns = args.logits.columns();
  const auto in = read(args.logits);
  Values maxima(rows), sums(rows), target_logits(rows);
  for (std::int64_t r = 0; r < rows; ++r) {
    const double* row = &in[r * columns];
    double best = -std::numeric_limits<double>::infinity();
    std::int64_t best_class = 0;
    for (std::int64_t c = 0; c < args.valid; ++c) {
      if (row[c] > best) best = row[c], best_class = c;
    }
    for (std::int64_t c = 0; c < args.valid; ++c) sums[r] += std::exp(row[c] - best);
    maxima[r] = best;
    args.argmax.as<std::int32_t>()[r] = static_cast<std::int32_t>(args.first_class + best_class);
    const std::int64_t target = args.targets.as<const std::int32_t>()[r];
    const bool here = target >= args.first_class && target < args.first_class + args.valid;
    target_logits[r] = target >= 0 && here ? row[target - args.first_class] : 0;
  }
  write(args.maximum, maxima);
  write(args.exp_sum, sums);
  write(args.target_logit, target_logits);
}

void ReferenceBackend::cross_entropy_rescale(const Tensor& exp_sum, const Tensor& argmax, const Tensor& own,
                                             const Tensor& maximum) {
  auto sums = read(exp_sum);
  const auto mine = read(own), most = read(maximum);
  for (std::size_t r = 0; r < sums.size(); ++r) {
    sums[r] *= std::exp(mine[r] - most[r]);
    if (mine[r] < most[r]) argmax.as<std::int32_t>()[r] = std::numeric_limits<std::int32_t>::max();
  }
  write(exp_sum, sums);
}

void ReferenceBackend::cross_entropy_loss(const CrossEntropy& args) {
  const auto maxima = read(args.maximum), sums = read(args.exp_sum), target_logits = read(args.target_logit);
  Values out(maxima.size());
  for (std::size_t r = 0; r < out.size(); ++r) {
    if (args.targets.as<const std::int32_t>()[r] >= 0)
      out[r] = maxima[r] + std::log(sums[r]) - target_logits[r];
  }
  write(args.losses, out);
}

void ReferenceBackend::cross_entropy_backward(const CrossEntropy& args) {
  const auto rows = args.logits.rows(), columns = args.logits.columns();
  const auto in = read(args.logits), maxima = read(args.maximum), sums = read(args.exp_sum);
  Values out(in.size());  // the padding and the ignored rows stay zero
  for (std::int64_t r = 0; r < rows; ++r) {
    const std::int64_t target = args.targets.as<const std::int32_t>()[r];
    if (target < 0) continue;
    for (std::int64_t c = 0; c < args.valid; ++c) {
      const double probability = std::exp(in[r * columns + c] - maxima[r]) / sums[r];
      out[r * columns + c] = (probability - (args.first_class + c == target ? 1 : 0)) * args.scale;
    }
  }
  write(args.dlogits, out);
}

}  // namespace shoal
