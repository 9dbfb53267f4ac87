// The conformance suite of communicators: functions that all ranks of a world call together. They throw Error
// for a wrong result and use no test framework, so that a program under mpirun can run them, too. `chunk` is
// the number of bytes at which the implementation splits its work; the checks use sizes around it.
#pragma once

#include <atomic>
#include <chrono>
#include <thread>

#include "comm/check_collectives.h"
#include "comm/check_groups.h"

namespace shoal::test {

struct Check {
  const char* name;
  void (*run)(World& world, std::int64_t chunk);
};

inline constexpr Check kChecks[] = {
    {"Place", check_place},
    {"AllReduce", check_all_reduce},
    {"ReduceScatter", check_reduce_scatter},
    {"AllGather", check_all_gather},
    {"AllToAll", check_all_to_all},
    {"Broadcast", check_broadcast},
    {"Messages", check_messages},
    {"CrossingMessages", check_crossing_messages},
    {"Barriers", check_barriers},
    {"Rounding", check_rounding},
    {"SameBits", check_same_bits},
    {"ManyRequests", check_many_requests},
    {"Grid", check_grid},
    {"SplitOrder", check_split_order},
    {"DroppedRequests", check_dropped_requests},
    {"LateRank", check_late_rank},
    {"Refusals", check_refusals},
};

inline constexpr double kSoon = 5;  // seconds within which all ranks of a failed run have ended

// Its destructor takes so many seconds.
struct SlowEnd {
  double seconds;
  ~SlowEnd() { std::this_thread::sleep_for(std::chrono::duration<double>(seconds)); }
};

// Bodies of runs that must fail. They return on no rank.

// The last rank throws UserError "the disk is full"; the collectives of the others throw StoppedByPeer.
inline void fail_while_others_wait(World& world) {
  auto& group = world.ranks;
  GuardedValues x(DType::f32, 100000);
  if (group.rank() == group.size() - 1) {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    fail_user("the disk is full");
  }
  try {
    group.all_reduce(x.tensor()).wait();
  } catch (const StoppedByPeer&) {
    throw;
  } catch (const Error& error) {
    fail("a rank that waits for one that failed says: {}", error.what());
  }
  fail("a collective went on without a rank that failed");
}

// Rank 1 fails, and a destructor waits until rank 0 has heard of it. Whether that was soon is in `in_time`.
inline void fail_before_the_end(World& world, std::atomic<bool>& heard, std::atomic<bool>& in_time) {
  struct Patient {
    std::atomic<bool>&heard, &in_time;
    ~Patient() {
      for (int i = 0; i < 2000 && !heard; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(1));
      in_time = heard.load();
    }
  };
  try {
    if (world.ranks.rank() == 0) world.ranks.barrier();
  } catch (const StoppedByPeer&) {
    heard = true;
    throw;
  }
  const Patient end{heard, in_time};
  try {
    fail_user("the disk is full");
  } catch (...) {
    world.ranks.abandon();
    throw;
  }
}

// The last rank joins an all_reduce for "step 12, gradients of block.3" too late.
inline void miss_deadline(World& world, double deadline_seconds) {
  auto& group = world.ranks;
  GuardedValues x(DType::f32, 100000);
  group.set_purpose("step 12, gradients of block.3");
  if (group.rank() == group.size() - 1) {
    std::this_thread::sleep_for(std::chrono::duration<double>(deadline_seconds * 3));
  }
  group.all_reduce(x.tensor()).wait();
  fail("a collective whose deadline has passed went on");
}

}  // namespace shoal::test
