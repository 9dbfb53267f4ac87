// The settings of an outer optimizer (outer_optimizer.h).
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "model/unit.h"

namespace shoal {

// The part of their movement that workers send. They keep the rest and add it to the next movement (error
// feedback).
struct OuterSent {
  enum class Kind : std::uint8_t {
    all,       // float32
    bfloat16,  // all, rounded; sums are rounded once more
    int4,      // all, in 4 bits and a scale for each block of kSparseBlock; sums in 4 bits once more
    largest,   // the largest numbers of each block of kSparseBlock, rounded to bfloat16, and their places
  };
  Kind kind = Kind::all;
  double share = 1;  // of a block that is sent
  bool operator==(const OuterSent&) const = default;
};
// "none", "bfloat16", "int4", "topk:0.02"; empty for another text.
std::optional<OuterSent> outer_sent(std::string_view text);
// The bytes of an exchange among so many workers, as a share of an all-reduce in float32.
double exchanged_share(const OuterSent& sent, int members);

struct OuterOptions {
  std::int64_t interval = 0;  // steps
  double lr = 0.7, momentum = 0.9;
  bool nesterov = true;
  OuterSent sent = {};
  // The fragment of each unit; empty: one fragment of all. Fragments move in turn, at equal distances in the
  // interval.
  std::vector<int> fragment_of = {};
  // Steps that a movement is under way, at most interval / fragments. With 0 workers wait for it. Else they
  // go on from own_share of their own weights and the rest of the moved model.
  std::int64_t overlap = 0;
  double own_share = 0;
  bool operator==(const OuterOptions&) const = default;

  int fragments() const;
  bool has(int fragment, int unit) const {
    return fragment_of.empty() || fragment_of[static_cast<std::size_t>(unit)] == fragment;
  }
  // The exchange that begins after update `update`, counted from 1.
  struct Exchange {
    int fragment;
    std::int64_t round;  // of this fragment, from 0
  };
  std::optional<Exchange> exchange_after(std::int64_t update) const;
  // Steps under way after which members of an int4 exchange add up what each has of the others' movements,
  // and pass the sums on.
  std::int64_t sums_after() const { return overlap / 2; }
};

// Describes the fault of these settings, or returns "". `say` names a setting with its value: "--overlap 3"
// for "overlap".
std::string fault_of_turns(std::int64_t interval, std::int64_t fragments, std::int64_t overlap,
                           const std::function<std::string(std::string_view)>& say);

// Deals units to fragments of about equal size. Throws UserError where there are fewer units that are
// trained.
std::vector<int> deal_fragments(const std::vector<UnitSpec>& units, int fragments);

// The tensors that it keeps beside each parameter: the model of the last time, the momentum of its movement,
// and what was not sent of it, where that is not all.
inline constexpr std::string_view kOuterStates[] = {"outer", "outer_m", "outer_e"};
inline std::size_t outer_states(const OuterOptions& options) {
  return options.sent.kind == OuterSent::Kind::all ? 2 : 3;
}

}  // namespace shoal
