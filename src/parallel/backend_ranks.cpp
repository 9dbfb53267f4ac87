#include "parallel/backend_ranks.h"

#include <algorithm>
#include <map>
#include <utility>
#include <vector>

#include "comm/launcher.h"
#include "comm/nccl/nccl.h"
#include "core/hash.h"
#include "core/log.h"
#include "parallel/staging.h"

namespace shoal {
namespace {

// The facts about a rank that the others need.
struct Facts {
  std::uint64_t gpu = 0;   // a hash of host and PCI address; 0 means no GPU
  std::uint64_t nccl = 0;  // a hash of the version; 0 means no NCCL
};

std::vector<Facts> ask_around(Communicator& ranks, const Facts& mine) {
  std::vector<Facts> all(static_cast<std::size_t>(ranks.size()));
  Facts here = mine;
  constexpr auto kWords = static_cast<std::int64_t>(sizeof(Facts) / sizeof(std::int32_t));
  ranks.set_purpose("GPUs of the ranks");
  ranks.all_gather({all.data(), DType::i32, {ranks.size() * kWords}}, {&here, DType::i32, {kWords}}).wait();
  return all;
}

std::uint64_t hash(const std::string& text) { return fnv1a(text) | 1; }  // 0 means none

}  // namespace

CpuLevel common_cpu_level(Communicator& ranks) {
  const auto own = static_cast<std::int32_t>(cpu_level());
  std::int32_t bounds[2] = {own, -own};  // the lowest and the highest
  ranks.set_purpose("the processors' instructions");
  ranks.all_reduce({bounds, DType::i32, {2}}, ReduceOp::min).wait();
  const auto common = static_cast<CpuLevel>(bounds[0]), highest = static_cast<CpuLevel>(-bounds[1]);
  if (ranks.rank() == 0 && common != highest)
    log::warn("the ranks' processors differ: all compute with the instructions of {}, though some have {}",
              name_of(common), name_of(highest));
  return common;
}

namespace {

// Why NCCL cannot be used; empty on all ranks if it can.
std::string objection(const Gpu& gpu, Communicator& host) {
  auto all = ask_around(host, {.gpu = hash(fmt::format("{} {}", host_hash(), gpu.place))});
  std::map<std::uint64_t, int> holders;
  for (int rank = 0; rank < std::ssize(all); ++rank) {
    const auto [holder, is_new] = holders.try_emplace(all[static_cast<std::size_t>(rank)].gpu, rank);
    if (!is_new) return fmt::format("ranks {} and {} have the same GPU", holder->second, rank);
  }
  // Loaded only now, since it takes a moment.
  all = ask_around(host, {.nccl = no_nccl().empty() ? hash(nccl_version()) : 0});
  if (!no_nccl().empty()) return no_nccl();
  for (int rank = 0; rank < std::ssize(all); ++rank) {
    const auto nccl = all[static_cast<std::size_t>(rank)].nccl;
    if (nccl == 0) return fmt::format("rank {} has no NCCL", rank);
    if (nccl != all[0].nccl) return fmt::format("ranks 0 and {} have different versions of NCCL", rank);
  }
  return "";
}

}  // namespace

BackendRanks connect_backends(Backend& backend, Communicator& host, GpuExchange exchange) {
  auto staging = make_staging_communicator(backend, host);
  const auto gpu = backend.gpu();
  if (gpu.number < 0 || host.size() == 1) return {std::move(staging), ""};
  if (exchange == GpuExchange::host)
    return {std::move(staging), "through the host's memory, as the config says"};
  if (const auto why = objection(gpu, host); !why.empty()) {
    if (exchange == GpuExchange::nccl) throw NcclUnavailable(why);
    return {std::move(staging), fmt::format("through the host's memory, since {}", why)};
  }
  return {make_nccl_communicator(std::move(staging), gpu.number, gpu.stream),
          fmt::format("NCCL {}", nccl_version())};
}

}  // namespace shoal
