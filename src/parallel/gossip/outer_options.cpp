#include "parallel/gossip/outer_options.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <numeric>

#include "core/error.h"
#include "ops/kernels.h"

namespace shoal {

std::optional<OuterSent> outer_sent(std::string_view text) {
  if (text == "none") return OuterSent{};
  if (text == "bfloat16") return OuterSent{OuterSent::Kind::bfloat16};
  if (text == "int4") return OuterSent{OuterSent::Kind::int4};
  constexpr std::string_view kLargest = "topk:";
  if (!text.starts_with(kLargest)) return std::nullopt;
  text.remove_prefix(kLargest.size());
  double share = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), share);
  if (error != std::errc() || end != text.data() + text.size() || !(share > 0 && share <= 1))
    return std::nullopt;
  return OuterSent{OuterSent::Kind::largest, share};
}

double exchanged_share(const OuterSent& sent, int members) {
  switch (sent.kind) {
    case OuterSent::Kind::all:
      return 1;
    case OuterSent::Kind::bfloat16:
      return 0.5;
    case OuterSent::Kind::int4:
      return static_cast<double>(kInt4Words) / kSparseBlock;
    case OuterSent::Kind::largest:  // four bytes for each, which go to every other; an all-reduce sends all
                                    // twice
      return sent.share * members / 2;
  }
  fail("no such kind");
}

int OuterOptions::fragments() const { return fragment_of.empty() ? 1 : std::ranges::max(fragment_of) + 1; }

// Fragment f of n has its turn f + 1 n-ths into the interval, the last one at its end.
std::optional<OuterOptions::Exchange> OuterOptions::exchange_after(std::int64_t update) const {
  if (update < 1) return std::nullopt;
  const int n = fragments();
  const std::int64_t round = (update - 1) / interval, at = update - round * interval;
  for (int f = 0; f < n; ++f) {
    if (at == (f + 1) * interval / n) return Exchange{f, round};
  }
  return std::nullopt;
}

std::string fault_of_turns(std::int64_t interval, std::int64_t fragments, std::int64_t overlap,
                           const std::function<std::string(std::string_view)>& say) {
  if (fragments > interval)
    return fmt::format("{} do not have a step each in {}", say("fragments"), say("interval"));
  const std::int64_t most = interval / fragments;
  if (overlap <= most) return "";
  return fmt::format("{}: a fragment is under way until the next one at most, {} step{} with {} and {}",
                     say("overlap"), most, most == 1 ? "" : "s", say("interval"), say("fragments"));
}

// The largest unit goes first, each to the fragment that has least.
std::vector<int> deal_fragments(const std::vector<UnitSpec>& units, int fragments) {
  std::vector<int> order(units.size());
  std::iota(order.begin(), order.end(), 0);
  const auto size = [&](int u) {
    const auto& unit = units[static_cast<std::size_t>(u)];
    return unit.trained ? unit.size : 0;
  };
  if (const auto trained = std::ranges::count_if(order, [&](int u) { return size(u) > 0; });
      fragments > trained) {
    fail_user("outer.fragments = {}: there are {} embeddings, blocks and heads to share; use at most {}",
              fragments, trained, trained);
  }
  std::ranges::stable_sort(order, std::greater(), size);
  std::vector<std::int64_t> filled(static_cast<std::size_t>(fragments));
  std::vector<int> fragment_of(units.size());
  for (const int u : order) {
    const auto least = std::ranges::min_element(filled);
    *least += size(u);
    fragment_of[static_cast<std::size_t>(u)] = static_cast<int>(least - filled.begin());
  }
  return fragment_of;
}

}  // namespace shoal
