// Measures what ranks do: samples of a step, and collectives. The ranks are threads of this process, or those
// of an MPI job, which all call these functions together.
#pragma once

#include <functional>
#include <utility>
#include <vector>

#include "comm/world.h"
#include "planner/machine.h"

namespace shoal {

// Seconds that a sample or a trial is measured for at least, after its first step.
inline constexpr double kSampleSeconds = 0.6;

// Runs `body` on so many ranks and waits for them. In an MPI job all of its ranks run it.
using RunRanks = std::function<void(int ranks, const RankBody& body)>;

// Seconds of a sample of a step: of its parts, for one block each, of the update of all its elements, and of
// the whole, the mean over the ranks; and until the last of them has ended it, where they begin together.
struct MeasuredSample {
  PerPart<double> parts;
  double update = 0, step = 0, slowest = 0;
};

// `sample` runs on `ranks` ranks at once, each with memory and `threads` threads of its own. `together`:
// tensor ranks wait for each other after each part, so that its time is that of the slowest, as where they
// exchange.
MeasuredSample measure_sample(const RunRanks& run, const RunPlan& sample, int ranks, int threads,
                              bool together);

// Bytes and seconds of a collective in groups of group.ranks ranks that are group.stride apart, of growing
// sizes up to `most` bytes. All groups of the `ranks` ranks are busy at once, as in a step.
std::vector<std::pair<double, double>> measure_call(const RunRanks& run, const GroupCall& group, int ranks,
                                                    double most);

// Seconds of a training step of a plan, which says its threads, on random parameters: the mean of some.
double measure_step(const RunRanks& run, const RunPlan& plan);

// The value below which a third of the values are: disturbances of a machine only ever add time.
double typical(std::vector<double> values);

}  // namespace shoal
