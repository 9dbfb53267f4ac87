#include "parallel/gossip/outer_options.h"

#include <charconv>

namespace shoal {

std::optional<OuterSent> outer_sent(std::string_view text) {
  if (text == "none") return OuterSent{};
  if (text == "bfloat16") return OuterSent{OuterSent::Kind::bfloat16};
  constexpr std::string_view kLargest = "topk:";
  if (!text.starts_with(kLargest)) return std::nullopt;
  text.remove_prefix(kLargest.size());
  double share = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), share);
  if (error != std::errc() || end != text.data() + text.size() || !(share > 0 && share <= 1))
    return std::nullopt;
  return OuterSent{OuterSent::Kind::largest, share};
}

}  // namespace shoal
