#include "planner/stage_actions.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <set>
#include <utility>

#include "planner/block_gathers.h"

namespace shoal {
namespace {

class StageActions {
 public:
  StageActions(const RunPlan& plan, const Schedule& schedule, const PricedSample& sample,
               const PricedSample& kept, Machine& machine, int stage)
      : plan_(plan),
        schedule_(schedule),
        sample_(sample),
        kept_(kept),
        machine_(machine),
        stage_(stage),
        part_(plan.part({.pipeline = stage, .tensor = sampled_tensor_rank(plan)})),
        ranges_(part_.ranges(plan.model)),
        gathers_(plan.model, part_),
        held_(ranges_.size(), -1) {}

  std::vector<StepAction> list() {
    if (plan_.engine.gossip) add_exchange();
    for (const auto& one : sample_.tape.update_calls) {
      if (begins_next_step(one)) for_units(one, [&](int unit) { call(one, unit); });
    }
    for (const auto& action : schedule_.ranks[static_cast<std::size_t>(stage_)]) follow(action);
    finish();
    return std::move(actions_);
  }

 private:
  int last_range() const { return schedule_.shape.stages * schedule_.shape.chunks - 1; }
  int range_of(const Action& action) const { return action.chunk * schedule_.shape.stages + stage_; }
  // A range's inputs, or its gradients: their messages come in the micro-batches' order.
  static int channel(bool gradient, int range) { return 2 * range + (gradient ? 1 : 0); }
  int previous() const { return (stage_ + plan_.mesh.pipeline - 1) % plan_.mesh.pipeline; }
  int next() const { return (stage_ + 1) % plan_.mesh.pipeline; }
  int ranks_of_stage() const { return plan_.mesh.data * plan_.mesh.tensor; }

  void follow(const Action& action) {
    const int range = range_of(action);
    switch (action.kind) {
      case Action::Kind::receive_input:
      case Action::Kind::receive_gradient:
        return;  // posted early; the pass waits for it
      case Action::Kind::send_output:
        return send(next(), channel(false, range + 1));
      case Action::Kind::send_gradient:
        return send(previous(), channel(true, range - 1));
      case Action::Kind::forward:
        if (range > 0) receive(previous(), channel(false, range));
        return forward(action);
      case Action::Kind::backward:
        if (range < last_range()) receive(next(), channel(true, range));
        return backward(action);
    }
  }

  // The pass of the sample that a micro-batch is like: gradients are zeroed in the first and reduced in the
  // last.
  int like(int micro_batch) const {
    if (micro_batch + 1 == plan_.pipeline.micro_batches) return kSamplePasses - 1;
    return micro_batch == 0 ? 0 : 1;
  }

  // The block behind the last one of a chunk that is recomputed.
  int recomputed_end(int chunk) const {
    const auto blocks = blocks_of(ranges_[static_cast<std::size_t>(chunk)], plan_.model);
    const int count = plan_.pipeline.recomputed_blocks(chunk * schedule_.shape.stages + stage_);
    return count < 0 ? blocks.end : blocks.begin + count;
  }

  void forward(const Action& action) {
    pass_ = action.micro_batch;
    held_[static_cast<std::size_t>(action.chunk)] = pass_;
    const auto range = ranges_[static_cast<std::size_t>(action.chunk)];
    const int recomputed = recomputed_end(action.chunk);
    bool first = true;
    for (int unit = range.begin; unit < std::min(range.end, plan_.model.n_layer + 1); ++unit) {
      use(unit);
      if (unit == 0) {
        part(sample_, StepPart::embedding_forward, CostTerm::forward);
      } else {
        part(unit < recomputed ? sample_ : kept_,
             first ? StepPart::first_block_forward : StepPart::block_forward, CostTerm::forward);
        first = false;
      }
    }
  }

  void backward(const Action& action) {
    pass_ = action.micro_batch;
    bool held = std::exchange(held_[static_cast<std::size_t>(action.chunk)], -1) == pass_;
    const auto range = ranges_[static_cast<std::size_t>(action.chunk)];
    const int recomputed = recomputed_end(action.chunk);
    for (int unit = range.end; unit-- > range.begin;) {
      if (unit > 0) use(unit);  // the embedding's parameters are used forward only
      if (unit == plan_.model.n_layer + 1) {
        part(sample_, StepPart::head, CostTerm::backward);
        if (!part_.computes(0) && part_.has(plan_.model, 0)) reduce_embedding();
      } else if (unit == 0) {
        part(sample_, StepPart::embedding_backward, CostTerm::backward);
      } else if (unit >= recomputed) {
        part(kept_, StepPart::block_backward, CostTerm::backward);
      } else {
        part(sample_, held ? StepPart::last_block_backward : StepPart::block_backward, CostTerm::backward);
        held = false;
      }
    }
  }

  // Gathers the parameters that the use of a unit needs, and waits for those that are on their way.
  void use(int unit) {
    const auto needed = gathers_.use(unit);
    const auto& gather = sample_.tape.gather;
    if (gather && needed.own) call(*gather, unit);
    if (unit == head()) {
      gather_head();
      await(0);  // tied
    }
    await(unit);
    if (gather && needed.ahead >= 0) call(*gather, needed.ahead);
    if (unit + 1 == head() && part_.computes(head())) gather_head();
  }
  // Once a step, since it has a buffer of its own. The sample has its gather among the first pass's calls.
  void gather_head() {
    if (std::exchange(head_is_gathered_, true)) return;
    for (const auto& call : sample_.tape.calls.at(0, StepPart::head)) {
      if (call.term == CostTerm::parameters) this->call(call, head());
    }
  }
  void await(int unit) {
    if (coming_.erase(unit) == 1)
      add({.kind = StepAction::Kind::join, .term = CostTerm::parameters, .unit = unit});
  }
  int head() const { return plan_.model.n_layer + 1; }

  // The gathers of what the update has changed are waited for where the next step uses it.
  bool begins_next_step(const TapeCall& call) const {
    return call.queued && call.term == CostTerm::parameters && machine_.overlaps();
  }

  void part(const PricedSample& sample, StepPart part, CostTerm term) {
    const int pass = like(pass_);
    add({.term = term, .seconds = sample.times.parts.at(pass, part), .uses_core = true});
    for (const auto& call : sample.tape.calls.at(pass, part)) {
      if (call.term != CostTerm::parameters) this->call(call);
    }
  }

  // Reduces the gradients of the last stage's copy of the tied parameters.
  void reduce_embedding() {
    for (const auto& call : sample_.tape.calls.at(like(pass_), StepPart::embedding_backward)) {
      if (call.term == CostTerm::gradients) this->call(call);
    }
  }

  // Gossip: the exchange that the step before has begun. It has to end before the update; its time is the
  // mean over the rounds, of worker 0's group. With an outer optimizer the mean over its interval, in which
  // workers may have to wait for it.
  void add_exchange() {
    const auto& gossip = *plan_.engine.gossip;
    const auto& outer = plan_.engine.outer;
    const auto trained = static_cast<double>(elements_here(sample_.unit_sizes) / shards());
    if (trained == 0) return;  // nothing is exchanged
    double seconds = 0;
    for (const auto& round : gossip.topology.rounds) {
      const auto& group = round.front();
      const int members = static_cast<int>(group.size()), apart = members > 1 ? group[1] - group[0] : 1;
      const double bytes = 4 * trained * (outer ? exchanged_share(outer->sent, members) : 1.0);
      const double buckets = std::ceil(bytes / gossip.bucket_bytes);
      seconds += buckets * machine_.seconds({.bytes = bytes / buckets,
                                             .ranks = members,
                                             .stride = apart * plan_.mesh.ranks_of_worker()});
    }
    const bool waits = !machine_.overlaps() || (outer && outer->overlap == 0);
    add({.kind = waits ? StepAction::Kind::compute : StepAction::Kind::start,
         .term = CostTerm::parameters,
         .seconds =
             seconds / gossip.topology.period() / (outer ? static_cast<double>(outer->interval) : 1.0)});
  }

  // The elements of this stage, of units of these sizes.
  std::int64_t elements_here(const std::vector<std::int64_t>& sizes) const {
    std::int64_t elements = 0;
    for (int unit = 0; unit < static_cast<int>(sizes.size()); ++unit) {
      if (part_.has(plan_.model, unit)) elements += sizes[static_cast<std::size_t>(unit)];
    }
    return elements;
  }
  int shards() const { return plan_.engine.zero > 0 ? plan_.mesh.data / plan_.engine.replicate : 1; }

  // `unit`: whose parameters it gathers.
  void call(const TapeCall& call, int unit = -1) {
    const bool queued = call.queued && machine_.overlaps();
    add({.kind = queued ? StepAction::Kind::start : StepAction::Kind::compute,
         .term = call.term,
         .seconds = queued ? call.seconds - call.delay : call.seconds,
         .delay = queued ? call.delay : 0,
         .unit = queued ? unit : -1});
    if (queued && unit >= 0) coming_.insert(unit);
  }

  void finish() {
    pass_ = -1;
    add({.kind = StepAction::Kind::join, .term = CostTerm::gradients});
    const auto& mesh = plan_.mesh;
    const bool ends = plan_.model.tied && mesh.pipeline > 1 && (stage_ == 0 || stage_ == mesh.pipeline - 1);
    if (ends) {
      const double bytes = 4.0 * static_cast<double>(sample_.unit_sizes.front()) / shards();
      add({.term = CostTerm::gradients,
           .seconds = machine_.seconds(
               {.bytes = bytes, .ranks = 2, .stride = (mesh.pipeline - 1) * mesh.data * mesh.tensor})});
    }
    const std::int64_t updated = elements_here(sample_.updated_sizes) / sample_.update_ranks;
    add({.term = CostTerm::update,
         .seconds = sample_.times.update * static_cast<double>(updated),
         .uses_core = true});
    for (auto one : sample_.tape.update_calls) {
      if (one.unit == kHiddenMatrices) one.seconds *= 1.0 * blocks() / kTapeBlocks;
      if (!begins_next_step(one)) for_units(one, [&](int) { call(one); });
    }
    if (plan_.mesh.ranks() > 1) {
      add({.term = CostTerm::other,
           .seconds = machine_.seconds({.bytes = 8.0 * plan_.pipeline.micro_batches * mesh.data,
                                        .ranks = mesh.ranks(),
                                        .stride = 1})});
    }
  }

  // f(unit) for the units of this stage for which it makes a call of the sample's update, -1 for a call of no
  // unit: the sample's block 0 stands for all blocks. Calls for hidden matrices, which are assigned to the
  // data ranks together, take longer instead.
  template <typename F>
  void for_units(const TapeCall& call, F&& f) const {
    if (call.unit == "embedding") {
      if (part_.has(plan_.model, 0)) f(0);
    } else if (call.unit == "head") {
      if (part_.computes(head())) f(head());
    } else if (call.unit.starts_with("block.0")) {
      for (const auto& range : ranges_) {
        const auto blocks = blocks_of(range, plan_.model);
        for (int unit = blocks.begin; unit < blocks.end; ++unit) f(unit);
      }
    } else if (!call.unit.starts_with("block.1")) {
      f(-1);
    }
  }
  // The blocks of this stage.
  int blocks() const {
    int count = 0;
    for (const auto& range : ranges_) count += blocks_of(range, plan_.model).count();
    return count;
  }

  void send(int to, int channel) {
    const auto& batch = plan_.pipeline.batch;
    const double bytes = static_cast<double>(size_of(plan_.pipeline.stream)) *
                         static_cast<double>(batch.rows()) * plan_.model.n_embd /
                         (plan_.sequence ? plan_.mesh.tensor : 1);
    // Ranks on two hosts may be fewer apart than a host has.
    const int here = stage_ * ranks_of_stage(), there = to * ranks_of_stage();
    const int per_host = machine_.ranks_per_host();
    int stride = std::abs(there - here);
    for (int i = 0; per_host > 0 && i < ranks_of_stage(); ++i) {
      if ((here + i) / per_host != (there + i) / per_host) stride = std::max(stride, per_host);
    }
    const GroupCall message{.kind = GroupCall::Kind::message, .bytes = bytes, .ranks = 2, .stride = stride};
    const double delay = machine_.delay(message);
    add({.kind = StepAction::Kind::send,
         .seconds = machine_.seconds(message) - delay,
         .delay = delay,
         .peer = to,
         .channel = channel});
  }
  void receive(int from, int channel) {
    add({.kind = StepAction::Kind::receive, .term = CostTerm::stages, .peer = from, .channel = channel});
  }
  void add(StepAction action) {
    action.pass = pass_;
    actions_.push_back(action);
  }

  const RunPlan& plan_;
  const Schedule& schedule_;
  const PricedSample& sample_;
  const PricedSample& kept_;
  Machine& machine_;
  int stage_;
  ModelPart part_;
  std::vector<UnitRange> ranges_;
  BlockGathers gathers_;
  // The micro-batch of each chunk's last pass, where that was a forward one: the activations of the last
  // recomputed block are still there (Gpt::has_to_recompute).
  std::vector<int> held_;
  std::vector<StepAction> actions_;
  int pass_ = -1;
  std::set<int> coming_;  // units whose parameters are on their way
  bool head_is_gathered_ = false;
};

}  // namespace

std::vector<StepAction> actions_of_stage(const RunPlan& plan, const Schedule& schedule,
                                         const PricedSample& sample, const PricedSample& kept,
                                         Machine& machine, int stage) {
  return StageActions(plan, schedule, sample, kept, machine, stage).list();
}

}  // namespace shoal
