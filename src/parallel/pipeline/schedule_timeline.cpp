// The timeline of a schedule, and the memory that it needs.
#include <algorithm>

#include "core/error.h"
#include "parallel/pipeline/schedule.h"

namespace shoal {
namespace {

using Kind = Action::Kind;

// Ends of forward and backward passes, by range and micro-batch; negative while they are not known.
class Ends {
 public:
  explicit Ends(const PipelineShape& shape)
      : shape_(shape), ends_(2ul * shape.stages * shape.chunks * shape.micro_batches, -1) {}

  double& of(Kind kind, int range, int micro_batch) {
    const bool backward = kind == Kind::backward;
    return ends_[(2ul * range + backward) * shape_.micro_batches + micro_batch];
  }

  // The end of what a pass waits for; 0 where that is nothing.
  double dependency(const Action& pass, int range) {
    const int last = shape_.stages * shape_.chunks - 1;
    if (pass.kind == Kind::forward) return range == 0 ? 0 : of(Kind::forward, range - 1, pass.micro_batch);
    return range == last ? of(Kind::forward, range, pass.micro_batch)
                         : of(Kind::backward, range + 1, pass.micro_batch);
  }

 private:
  PipelineShape shape_;
  std::vector<double> ends_;
};

std::vector<Action> passes(const std::vector<Action>& actions) {
  std::vector<Action> found;
  for (const auto& action : actions) {
    if (action.kind == Kind::forward || action.kind == Kind::backward) found.push_back(action);
  }
  return found;
}

// A count and its maximum so far.
struct Count {
  int now = 0, most = 0;
  void take() { most = std::max(most, ++now); }
  void give() { --now; }
};

}  // namespace

Timeline timeline(const Schedule& schedule, double forward, double backward) {
  const auto& shape = schedule.shape;
  Ends ends(shape);
  Timeline line;
  line.ranks.resize(schedule.ranks.size());
  std::vector<std::vector<Action>> todo;
  for (const auto& actions : schedule.ranks) todo.push_back(passes(actions));
  double busy = 0;
  for (bool moved = true; moved;) {
    moved = false;
    for (int rank = 0; rank < shape.stages; ++rank) {
      auto& done = line.ranks[rank];
      while (done.size() < todo[rank].size()) {
        const auto& pass = todo[rank][done.size()];
        const int range = pass.chunk * shape.stages + rank;
        const double ready = ends.dependency(pass, range);
        if (ready < 0) break;
        const double begin = std::max(ready, done.empty() ? 0 : done.back().end);
        const double takes = (pass.kind == Kind::forward ? forward : backward) / shape.chunks;
        done.push_back({pass, begin, begin + takes});
        ends.of(pass.kind, range, pass.micro_batch) = begin + takes;
        line.length = std::max(line.length, begin + takes);
        busy += takes;
        moved = true;
      }
    }
  }
  for (int rank = 0; rank < shape.stages; ++rank) {
    if (line.ranks[rank].size() == todo[rank].size()) continue;
    fail("the pipeline's schedule cannot be run: rank {} waits for ever before {}", rank,
         describe(todo[rank][line.ranks[rank].size()]));
  }
  line.bubble = line.length > 0 ? std::max(0.0, 1 - busy / (line.length * shape.stages)) : 0;
  return line;
}

std::vector<PipelineBuffers> buffers_needed(const Schedule& schedule, int rank) {
  const auto& shape = schedule.shape;
  struct Counts {
    Count inputs, activations, gradients;
  };
  std::vector<Counts> counts(shape.chunks);
  for (const auto& action : schedule.ranks.at(rank)) {
    auto& [inputs, activations, gradients] = counts[action.chunk];
    const int range = action.chunk * shape.stages + rank;
    const bool first = range == 0, last = range == shape.stages * shape.chunks - 1;
    switch (action.kind) {
      case Kind::receive_input:
        inputs.take();
        break;
      case Kind::forward:
        if (first) inputs.take();
        activations.take();
        break;
      case Kind::send_output:
        break;
      case Kind::receive_gradient:
        gradients.take();
        break;
      case Kind::backward:
        if (last) gradients.take();
        if (first) gradients.give();
        inputs.give();
        activations.give();
        break;
      case Kind::send_gradient:
        gradients.give();
        break;
    }
  }
  std::vector<PipelineBuffers> needed;
  for (const auto& [inputs, activations, gradients] : counts) {
    needed.push_back({inputs.most, activations.most, gradients.most});
  }
  return needed;
}

}  // namespace shoal
