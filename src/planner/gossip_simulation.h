// Predicts step times and consensus of gossip on slow and uneven networks, and step times of all-reduce and
// ZeRO 1 for comparison. The complete cost model:
//
// Compute. Workers 0 ... n - 1 are on hosts of `per_host` neighbouring workers. A worker's step takes a
// random time to compute; of every micro-batch, one third is forward and two thirds are backward. The model
// is cut into equal buckets, which become ready at equal intervals in the backward pass of the last
// micro-batch. Updates cost nothing, because the measured time of a step includes them.
//
// Network. A host has one full-duplex link to the others, with a bandwidth that its workers share and a delay
// per message. TCP carries 1448 bytes in a packet of 1500, and sends half an acknowledgement of 52 bytes for
// each. An exchange among k workers begins when all of them are ready. Each worker sends its part of the
// bucket to every other, and then the mean of its own part: 2 m (k - m) / k buckets through the link of a
// host with m of them ("direct", as Shoal's own transport does). The groups of a round share a host's link
// equally while they use it at the same time, and earlier rounds go first. An exchange ends two delays after
// its slowest link is done. In addition, the transport keeps at most four pieces of a bucket in flight, of at
// most 1 MiB each, and moves no more than those in two delays. A group within a host sends 2 (k - 1) / k
// buckets per worker through `local`. The exchanges of a worker share its bandwidth one after another; their
// delays overlap.
//
// Schemes. gossip: a bucket's exchange begins after its update and must end before its next update. With clip
// per bucket, a bucket is updated in the backward pass, otherwise all are updated at its end. With an outer
// optimizer, a fragment's exchange begins at the end of a step, and must end there too, or `overlap` steps
// later; the fragment is its share of the buckets. What is taken of the largest numbers goes from each member
// to every other at once: m (k - m) times its bytes through the link of a host, and one delay. all-reduce: a
// bucket is exchanged among all workers as soon as the last worker has it, and the next step begins when all
// buckets are done. Also as a ring: 2 (n - 1) / n buckets through every link, and the delay of two rounds
// around the ring. ZeRO 1: half of that during the backward pass, and the other half during the next forward
// pass, which needs the buckets in order. Both end the backward pass with two small messages from all to all,
// one after the other: the norm of the gradient and the losses.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "parallel/gossip/outer_options.h"
#include "parallel/gossip/topology.h"
#include "planner/distribution.h"

namespace shoal {

struct SimulatedLink {
  Distribution bandwidth = 1000.0;  // Mbit/s in each direction, by host
  Distribution delay = 0.0;         // ms per message, by sending host
};

struct SimulatedRun {
  Topology topology;
  int per_host = 1;
  Distribution compute = 100.0;  // ms of a step, by worker
  SimulatedLink link, local;     // between hosts, and between the workers of a host
  double mtu = 1500;             // bytes of a packet between hosts
  double bytes = 0;              // of all parameters, float32
  int buckets = 1;
  int micro_batches = 1;  // per step and worker
  bool clip_by_bucket = false;
  std::optional<OuterOptions> outer = {};  // in place of the averaging of every step; of units of equal size
  int steps = 200;                         // at least 2; with an outer optimizer at least its interval
  // Steps that are not measured; default: half of `steps`, so that whole intervals are measured.
  std::optional<int> warm_up = {};
  int first_measured() const;
  std::uint64_t seed = 1;
};

struct SimulatedScheme {
  std::string name;
  double step_ms = 0;   // mean over steps and workers
  double idle = 0;      // share of the time that workers wait
  double apart_ms = 0;  // time between the first and the last worker's end of the run
};

// Gossip first, then the schemes to compare with. Takes O(steps x workers x buckets) time: 65,536 workers, 19
// buckets and 200 steps take some seconds. Throws UserError when a bandwidth of 0 is drawn, or when a time
// is infinite. Calls `done`, if given, after each step with the number of simulated steps.
std::vector<SimulatedScheme> simulate(const SimulatedRun& run, const std::function<void(int)>& done = {});

// The effect of the rounds on the difference between workers' models, independent of time.
struct Consensus {
  double decay = 0;  // factor of the distance to the mean per step; 0: no distance after one step
  // Steps until a random difference is a thousandth of its initial size; 0: more than `steps`.
  int steps_to_thousandth = 0;
  // The distance to the mean (rms), in updates, when every step adds an independent update to each worker.
  double updates_apart = 0;
};
Consensus consensus_of(const Topology& topology, int steps, std::uint64_t seed);

}  // namespace shoal
