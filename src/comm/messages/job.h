// A collective or a message that this rank has begun.
#pragma once

#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "comm/messages/plan.h"
#include "core/clock.h"

namespace shoal::messages {

enum class JobKind : std::uint8_t { collective, send, receive };

// Groups of all ranks. That of the end is one of its own, so that a rank which still calls collectives does
// not meet those that have ended.
constexpr int kWorldGroup = 0, kEndGroup = 1, kFirstFreeGroup = 2;

struct Group {
  int id = kWorldGroup;      // tells its messages from those of other groups; the same on all its ranks
  std::vector<int> members;  // world ranks, in order
  int rank = 0;              // this one's among them

  // How many jobs this rank has begun; messages by peer. Guarded by the engine.
  std::int64_t collectives = 0;
  std::vector<std::int64_t> sends = std::vector<std::int64_t>(members.size());
  std::vector<std::int64_t> receives = std::vector<std::int64_t>(members.size());

  Seat seat() const { return {rank, static_cast<int>(members.size())}; }
  std::int64_t& begun(JobKind kind, int peer) {
    if (kind == JobKind::collective) return collectives;
    return (kind == JobKind::send ? sends : receives)[static_cast<std::size_t>(peer)];
  }
};

struct Job {
  std::shared_ptr<Group> group;
  JobKind kind = JobKind::collective;
  int peer = 0;          // of a message: rank in the group
  std::string describe;  // "all_reduce (sum) of 12 float32 [step 3, gradients of block.1]"
  Plan plan;
  std::int64_t bytes = 0;  // of the rank's tensor

  std::int64_t number = 0;  // counted per group, kind and peer
  std::atomic<bool> done = false;
  std::atomic<bool> awaited = false;  // the rank waits for it
  std::optional<Stopwatch> waited;    // since then. Guarded by the engine.

  // Of the engine's thread.
  std::int64_t order = 0;                  // in which this rank's came
  std::int64_t started = 0, finished = 0;  // pieces
};

}  // namespace shoal::messages
