// What ranks say to each other beside tensors: texts, and that they were started alike. All of these are
// collective: every rank of the group calls them.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "comm/communicator.h"

namespace shoal {

// The text of rank `root`, on every rank.
std::string broadcast_text(Communicator& ranks, std::string text, int root = 0);
// The text of the lowest rank that has one, on every rank; "" where none has.
std::string first_text(Communicator& ranks, const std::string& text);
// Between two ranks.
void send_text(Communicator& ranks, const std::string& text, int to);
std::string receive_text(Communicator& ranks, int from);

// Does `stage` on every rank. Returns when it went well on all; else what it threw comes out where it did,
// and the other ranks stop. So a mistake that all make comes out of all, and is reported as one.
void all_or_none(Communicator& ranks, const std::function<void()>& stage);
// Does `stage` on this rank where `here` holds (on rank 0, say). A failure is thrown on every rank as it is.
void some_for_all(Communicator& ranks, bool here, const std::function<void()>& stage);

// Something that must be the same on every rank: "optim.lr", "0.001".
struct Fact {
  std::string name, value;
};

// Returns when all ranks have the facts of rank 0. On one that has others, UserError with both values of
// whatever differs comes out, and the other ranks stop.
void require_agreement(Communicator& ranks, const std::vector<Fact>& facts);

}  // namespace shoal
