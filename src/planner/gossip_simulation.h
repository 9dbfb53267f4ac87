// Predicts how gossip trains on slow and uneven networks, beside all-reduce and ZeRO 1 under the same
// conditions. The cost model, in full:
//
// Workers 0 ... n - 1 sit on hosts of `per_host` neighbours. A worker's step takes a random time to compute:
// of every micro-batch one third forward and two thirds backward. The model is cut into equal buckets, which
// get ready at equal distances in the backward pass of the last micro-batch; updates cost nothing, as they
// are part of what is measured as a step's time.
//
// A host has one full-duplex link to the others, with a bandwidth that its workers share and a delay of its
// messages. TCP carries 1448 bytes in a packet of 1500, and sends half an acknowledgement of 52 bytes for
// each. An exchange among k workers begins when all have come. Each of them sends its part of the bucket to
// every other and then the mean of its own part: 2 m (k - m) / k buckets through the link of a host that has
// m of them ("direct", as Shoal's own transport does). The groups of a round share a host's link equally
// while they use it at the same time, earlier rounds go first, the last link to be done decides, and two
// delays come on top; also a transport that keeps four pieces of a bucket under way, 1 MiB each at most,
// moves no more than those in two delays. A group within a host sends 2 (k - 1) / k buckets per worker
// through `local`. The exchanges of a worker follow each other in bandwidth; delays overlap.
//
// gossip: a bucket's exchange begins after its update and has to end before its next one. With clip per
// bucket a bucket's update is in the backward pass, otherwise all are at its end.
// all-reduce: a bucket is exchanged among all workers as soon as the last of them has it; the next step
// begins when all buckets are there. Also as a ring: 2 (n - 1) / n buckets through every link, and the delay
// of two rounds around the ring. ZeRO 1: half of that while backward goes on, and the other half while the
// next forward pass goes on, which needs the buckets in order. Both end the backward pass with two small
// messages from everybody to everybody, one after the other: the norm of the gradient and the losses.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "parallel/gossip/topology.h"
#include "planner/distribution.h"

namespace shoal {

struct SimulatedLink {
  Distribution bandwidth = 1000.0;  // Mbit/s in each direction, by host
  Distribution delay = 0.0;         // ms of a message, by the host that sends it
};

struct SimulatedRun {
  Topology topology;
  int per_host = 1;
  Distribution compute = 100.0;  // ms of a step, by worker
  SimulatedLink link, local;     // between hosts, and between the workers of one
  double mtu = 1500;             // bytes of a packet between hosts
  double bytes = 0;              // of the parameters, float32
  int buckets = 1;
  int micro_batches = 1;  // of a step, on each worker
  bool clip_by_bucket = false;
  int steps = 200;                  // 2 or more
  std::optional<int> warm_up = {};  // of them, that are not measured; by default half
  int first_measured() const { return warm_up.value_or(steps / 2); }
  std::uint64_t seed = 1;
};

struct SimulatedScheme {
  std::string name;
  double step_ms = 0;   // the average over steps and workers
  double idle = 0;      // share of the time in which a worker waits
  double apart_ms = 0;  // between the first and the last worker at the end of the run
};

// Gossip first, then what it is compared with. O(steps x workers x buckets) time: 65,536 workers, 19 buckets
// and 200 steps take some seconds. Throws UserError when a bandwidth of 0 is drawn. `done`, if there, is told
// how many steps there are after each.
std::vector<SimulatedScheme> simulate(const SimulatedRun& run, const std::function<void(int)>& done = {});

// What the rounds do to models that differ, whatever the time they take.
struct Consensus {
  double decay = 0;  // of the distance to the mean, per step for as long as there is any; 0: none after one
  // Until a random difference is a thousandth of what it was; 0: not within the steps.
  int steps_to_thousandth = 0;
  // The distance to the mean (rms), in updates, where every step adds to each worker an independent update.
  double updates_apart = 0;
};
Consensus consensus_of(const Topology& topology, int steps, std::uint64_t seed);

}  // namespace shoal
