#include "comm/clocks.h"

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>
#include <string>
#include <system_error>
#include <vector>

#include "core/hash.h"
#include "core/trace.h"

namespace shoal {
namespace {

Tensor one(double& value) { return {&value, DType::f64, {1}}; }

std::vector<std::uint64_t> gather(Communicator& ranks, std::uint64_t mine) {
  std::vector<std::uint64_t> all(static_cast<std::size_t>(ranks.size()));
  ranks.all_gather({all.data(), DType::i32, {2 * ranks.size()}}, {&mine, DType::i32, {2}}).wait();
  return all;
}

ClockOffset query_rank_0(Communicator& ranks, const HostClock& clock, int rounds) {
  ClockOffset best{.uncertainty = std::numeric_limits<double>::infinity()};
  for (int round = 0; round < rounds; ++round) {
    double asked = clock.now(), answer = 0;
    ranks.send(one(asked), 0).wait();
    ranks.receive(one(answer), 0).wait();
    const double answered = clock.now();
    const double middle = (asked + answered) / 2, error = (answered - asked) / 2;
    if (error < best.uncertainty) best = {.at = middle, .offset = answer - middle, .uncertainty = error};
  }
  return best;
}

void answer_queries(Communicator& ranks, const HostClock& clock, int rounds, int rank) {
  for (int round = 0; round < rounds; ++round) {
    double asked = 0;
    ranks.receive(one(asked), rank).wait();
    double time = clock.now();
    ranks.send(one(time), rank).wait();
  }
}

}  // namespace

HostClock host_clock() {
  // One boot of the kernel has one monotonic clock; a time namespace shifts it.
  std::string boot;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> boot;
  std::error_code none;
  const auto time_namespace = std::filesystem::read_symlink("/proc/self/ns/time", none).string();
  return {fnv1a(boot + time_namespace), trace::now};
}

ClockOffset compare_clocks(Communicator& ranks, const HostClock& clock, int rounds) {
  ranks.set_purpose("comparing clocks");
  const auto clocks = gather(ranks, clock.id);
  const auto other = [&](int rank) { return clocks[static_cast<std::size_t>(rank)] != clocks[0]; };
  ClockOffset found{.at = clock.now()};
  if (ranks.rank() == 0) {
    for (int rank = 1; rank < ranks.size(); ++rank) {
      if (other(rank)) answer_queries(ranks, clock, rounds, rank);
    }
  } else if (other(ranks.rank())) {
    found = query_rank_0(ranks, clock, rounds);
  }
  ranks.set_purpose("");
  return found;
}

double time_of_first(double time, const ClockOffset& begin, const ClockOffset& end) {
  if (end.at <= begin.at) return time + begin.offset;
  const double share = (time - begin.at) / (end.at - begin.at);
  return time + begin.offset + share * (end.offset - begin.offset);
}

}  // namespace shoal
