// Exchanges texts and errors between ranks, and checks that all ranks have the same settings. Every function
// is collective unless it says otherwise: every rank of the group calls it.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "comm/communicator.h"

namespace shoal {

// Returns rank `root`'s text on every rank.
std::string broadcast_text(Communicator& ranks, std::string text, int root = 0);
// Returns on every rank the text of the lowest rank whose text is not empty; "" where all are empty.
std::string first_text(Communicator& ranks, const std::string& text);
// Returns every rank's text, in the order of ranks.
std::vector<std::string> all_gather_text(Communicator& ranks, const std::string& text);
// Called by the two ranks only.
void send_text(Communicator& ranks, const std::string& text, int to);
std::string receive_text(Communicator& ranks, int from);

// Calls `stage` on every rank and returns when it succeeded on all. A rank where it threw throws the same
// error; the others throw StoppedByPeer. So an error on all ranks is thrown by all, and reported once.
void all_or_none(Communicator& ranks, const std::function<void()>& stage);
// Calls `stage` on the ranks where `here` is true (rank 0, for example). An error is thrown on every rank.
void some_for_all(Communicator& ranks, bool here, const std::function<void()>& stage);
// The same for a stage that may take longer than a collective may. It runs in a thread, and must not
// communicate.
void some_for_all_at_length(Communicator& ranks, bool here, const std::function<void()>& stage);

// A setting that must be the same on every rank: "optim.lr", "0.001".
struct Fact {
  std::string name, value;
};

// Returns when every rank has the facts of rank 0. A rank with other facts throws UserError with both values
// of each difference; the other ranks throw StoppedByPeer.
void require_agreement(Communicator& ranks, const std::vector<Fact>& facts);

}  // namespace shoal
