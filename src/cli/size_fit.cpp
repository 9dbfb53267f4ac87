#include "cli/size_fit.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <limits>
#include <numeric>
#include <utility>

#include "cli/sizes.h"
#include "config/memory.h"
#include "core/error.h"
#include "core/text.h"

namespace shoal::cli {
namespace {

constexpr std::array kKinds = {Recompute::none, Recompute::gelu, Recompute::light, Recompute::block};

double parse_bytes(const std::string& text) {
  constexpr std::pair<std::string_view, double> kUnits[] = {{"", 1024.0 * 1024 * 1024},
                                                            {"MiB", 1024.0 * 1024},
                                                            {"GiB", 1024.0 * 1024 * 1024},
                                                            {"MB", 1e6},
                                                            {"GB", 1e9}};
  double number = 0;
  const auto read = std::from_chars(text.data(), text.data() + text.size(), number);
  if (read.ec == std::errc() && number > 0) {
    for (const auto& [unit, bytes] : kUnits) {
      if (std::string_view(read.ptr, text.data() + text.size()) == unit) return number * bytes;
    }
  }
  fail_user("--fit: '{}' is not allowed; it takes a size such as 16GiB, 24GB or 900MiB", text);
}

// The micro-batches of a step, as many as the config has: a pipeline holds some of them at a time, and sums
// of a fixed order a part for each.
int micro_batches_of(const Config& config) { return config.train.global_batch / config.train.micro_batch; }

double memory_of(Config config, int micro_batch) {
  config.train.global_batch = micro_batch * micro_batches_of(config);
  config.train.micro_batch = micro_batch;
  const auto plan = make_plan(config);
  return estimate_memory(plan, RankCounts::as_threads(plan.mesh.ranks())).of_device();
}

// The least number of sequences whose tokens the tensor ranks can divide among themselves.
int sequences_at_once(const Config& config) {
  const int tensor = config.parallel.tensor;
  return config.parallel.sequence ? tensor / std::gcd(tensor, config.model.block_size) : 1;
}

// Memory grows with the micro-batch. 0 where the least one does not fit.
int largest(const Config& config, double limit) {
  constexpr int kMost = 1 << 16;
  const int unit = sequences_at_once(config);
  // The sequences of a step are an int too.
  const int most = std::min(kMost, std::numeric_limits<int>::max() / micro_batches_of(config)) / unit;
  const auto fit = [&](int units) { return memory_of(config, units * unit) <= limit; };
  int fits = 0, too_large = 1;  // in units
  while (too_large <= most && fit(too_large)) {
    fits = too_large;
    too_large = std::min(2 * too_large, most + 1);
  }
  while (too_large - fits > 1) {
    const int middle = (fits + too_large) / 2;
    (fit(middle) ? fits : too_large) = middle;
  }
  return fits * unit;
}

}  // namespace

void print_size_fit(const Config& given, const std::string& memory) {
  const double limit = parse_bytes(memory);
  Config config = given;
  config.train.recompute_blocks.clear();
  const int data = config.parallel.data;
  fmt::print("\nlargest micro-batch in {} per {}, of {} tokens a sequence, {}{}\n", format_bytes(limit),
             config.train.backend == BackendKind::cuda ? "GPU" : "rank", config.model.block_size,
             name_of(config.train.dtype),
             data > 1 ? fmt::format("; in brackets the sequences of all {} data ranks", data) : "");
  fmt::print("  {:<18}", "train.recompute");
  for (const auto kind : kKinds) fmt::print("{:>16}", name_of(kind));
  fmt::print("\n");
  for (int zero = 0; zero <= (data / worker_count(config) > 1 ? 3 : 0); ++zero) {
    config.parallel.zero = zero;
    fmt::print("  {:<18}", fmt::format("parallel.zero={}", zero));
    for (const auto kind : kKinds) {
      config.train.recompute = kind;
      const int batch = largest(config, limit);
      fmt::print("{:>16}", batch == 0  ? "none"
                           : data == 1 ? std::to_string(batch)
                                       : fmt::format("{} ({})", batch, batch * data));
    }
    fmt::print("\n");
  }
}

}  // namespace shoal::cli
