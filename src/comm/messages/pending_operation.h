// A collective or a message that this rank has started, and the group that it belongs to.
#pragma once

#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "comm/messages/plan.h"
#include "core/clock.h"

namespace shoal::messages {

enum class OperationKind : std::uint8_t { collective, send, receive };

// Ids of groups. The barrier at the end of a run has a group of its own, so that it cannot match a collective
// of a rank that still runs.
constexpr int kWorldGroup = 0, kEndGroup = 1, kFirstFreeGroup = 2;

struct Group {
  int id = kWorldGroup;      // part of its messages' tags; equal on all members
  std::vector<int> members;  // world ranks, in order
  int rank = 0;              // rank of this process in the group

  // Number of operations that this rank has started; messages by peer. Guarded by the engine's mutex.
  std::int64_t collectives = 0;
  std::vector<std::int64_t> sends = std::vector<std::int64_t>(members.size());
  std::vector<std::int64_t> receives = std::vector<std::int64_t>(members.size());

  RankAndSize rank_and_size() const { return {rank, static_cast<int>(members.size())}; }
  std::int64_t& started(OperationKind kind, int peer) {
    if (kind == OperationKind::collective) return collectives;
    return (kind == OperationKind::send ? sends : receives)[static_cast<std::size_t>(peer)];
  }
};

struct PendingOperation {
  std::shared_ptr<Group> group;
  OperationKind kind = OperationKind::collective;
  int peer = 0;          // for a message: rank in the group
  std::string describe;  // "all_reduce (sum) of 12 float32 [step 3, gradients of block.1]"
  Plan plan;
  std::int64_t bytes = 0;  // size of the rank's tensor

  std::int64_t number = 0;  // counted per group, kind and peer
  std::atomic<bool> done = false;
  std::atomic<bool> awaited = false;  // the rank waits for it
  std::optional<WaitWatch> waited;    // since the wait began. Guarded by the engine's mutex.

  // Used by the engine's thread only.
  std::int64_t order = 0;                  // position among all operations of this rank
  std::int64_t started = 0, finished = 0;  // pieces
};

}  // namespace shoal::messages
