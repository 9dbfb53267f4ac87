#include "parallel/pipeline/schedule.h"

#include <algorithm>
#include <array>
#include <tuple>

#include "core/error.h"

namespace shoal {
namespace {

using Kind = Action::Kind;
using Actions = std::vector<Action>;

void check(ScheduleKind kind, const PipelineShape& shape) {
  const auto& [stages, chunks, micro_batches] = shape;
  if (stages < 1 || chunks < 1 || micro_batches < 1) {
    fail_user(
        "a pipeline of {} stages, {} chunks and {} micro-batches is none; there is one of each at least",
        stages, chunks, micro_batches);
  }
  if (chunks == 1) return;
  if (!scheme_of(kind).takes_chunks) {
    fail_user("the schedule {} has one chunk of the model per rank, not {}; the schedule {} has many",
              name_of(kind), chunks, schedules_with_chunks(" or "));
  }
  if (stages == 1) fail_user("{} chunks per rank have no meaning in a pipeline of one rank", chunks);
}

// The passes of one chunk.
Actions in_order(Kind kind, int micro_batches) {
  Actions order;
  for (int m = 0; m < micro_batches; ++m) order.push_back({kind, 0, m});
  return order;
}

// `warm_up` forward passes, then one forward and one backward pass in turn, then the rest of the backward.
Actions alternate(const Actions& forward, const Actions& backward, std::size_t warm_up) {
  const auto ahead = static_cast<std::ptrdiff_t>(std::min(warm_up, forward.size()));
  Actions order(forward.begin(), forward.begin() + ahead);
  auto next = forward.begin() + ahead;
  for (const auto& pass : backward) {
    if (next != forward.end()) order.push_back(*next++);
    order.push_back(pass);
  }
  return order;
}

// The passes of all chunks: as many micro-batches as there are stages go through one chunk, then through the
// next, then come the next micro-batches. Forward from the first chunk, backward from the last.
Actions by_groups(Kind kind, const PipelineShape& shape, int micro_batches) {
  Actions order;
  for (int group = 0; group < micro_batches; group += shape.stages) {
    for (int i = 0; i < shape.chunks; ++i) {
      const int chunk = kind == Kind::forward ? i : shape.chunks - 1 - i;
      for (int m = group; m < std::min(group + shape.stages, micro_batches); ++m) {
        order.push_back({kind, chunk, m});
      }
    }
  }
  return order;
}

Actions gpipe(const PipelineShape& shape, int) {
  const int all = shape.micro_batches;
  return alternate(in_order(Kind::forward, all), in_order(Kind::backward, all),
                   static_cast<std::size_t>(all));
}

Actions one_f_one_b(const PipelineShape& shape, int rank) {
  return alternate(in_order(Kind::forward, shape.micro_batches),
                   in_order(Kind::backward, shape.micro_batches), shape.stages - rank - 1);
}

// The order is only known to work when groups are whole. So it is made for whole ones, and what belongs to
// micro-batches that do not exist is taken out: passes of different micro-batches do not need each other.
Actions interleaved(const PipelineShape& shape, int rank) {
  if (shape.chunks == 1) return one_f_one_b(shape, rank);
  const int stages = shape.stages;
  const int padded = (shape.micro_batches + stages - 1) / stages * stages;
  auto order = alternate(by_groups(Kind::forward, shape, padded), by_groups(Kind::backward, shape, padded),
                         2ul * (stages - rank - 1) + 1ul * (shape.chunks - 1) * stages);
  std::erase_if(order, [&](const Action& pass) { return pass.micro_batch >= shape.micro_batches; });
  return order;
}

constexpr std::array kScheduleSchemes = {
    ScheduleScheme{ScheduleKind::gpipe, "gpipe", "GPipe", "all forward passes, then all backward passes",
                   false, gpipe},
    ScheduleScheme{ScheduleKind::one_f_one_b, "1f1b", "1F1B", "in turn, with fewer activations", false,
                   one_f_one_b},
    ScheduleScheme{ScheduleKind::interleaved, "interleaved", "Interleaved 1F1B",
                   "1f1b with several chunks per rank, which waits less and sends more", true, interleaved},
};

// A pass, or a transfer between two ranks, in the one order of all.
struct Event {
  double time = 0;
  int rank = 0;  // that computes or sends
  Action action;
  int receiver = -1;  // -1: a pass
  Action received;

  // Transfers come before the passes that may wait for them; and of a rank's transfers the sends, for which
  // others wait: so outputs go from the last rank on, gradients from the first.
  auto order_at_one_time() const {
    const bool output = action.kind == Kind::send_output;
    return std::tuple(receiver < 0, output, output ? -rank : rank, action.chunk, action.micro_batch);
  }
  bool operator<(const Event& other) const {
    return time != other.time ? time < other.time : order_at_one_time() < other.order_at_one_time();
  }
};

// Adds the transfers to the passes: each when its sender has computed what it sends. A rank's list is its
// part of one order of all events, in which a transfer is one event of two ranks; so if every rank goes
// through its list, the first event in the order that has not happened can always happen.
class TransferPlacer {
 public:
  explicit TransferPlacer(const Schedule& passes)
      : shape_(passes.shape), line_(timeline(passes, shape_.chunks, 2 * shape_.chunks)) {  // whole numbers
    for (int rank = 0; rank < shape_.stages; ++rank) {
      needed_.push_back(buffers_needed(passes, rank));
      auto& ends = backward_ends_.emplace_back(shape_.chunks);
      for (const auto& [pass, begin, end] : line_.ranks[rank]) {
        if (pass.kind == Kind::backward) ends[pass.chunk].push_back(end);  // in the micro-batches' order
      }
    }
  }

  std::vector<Actions> place() const {
    std::vector<Event> events;
    for (int rank = 0; rank < shape_.stages; ++rank) {
      for (const auto& span : line_.ranks[rank]) {
        events.push_back({span.begin, rank, span.action, -1, {}});
        add_transfer(events, rank, span);
      }
    }
    std::sort(events.begin(), events.end());
    std::vector<Actions> ranks(shape_.stages);
    for (const auto& event : events) {
      ranks[event.rank].push_back(event.action);
      if (event.receiver >= 0) ranks[event.receiver].push_back(event.received);
    }
    return ranks;
  }

 private:
  void add_transfer(std::vector<Event>& events, int rank, const Timeline::Span& span) const {
    const auto [kind, chunk, m] = span.action;
    const bool forward = kind == Kind::forward;
    const int to = chunk * shape_.stages + rank + (forward ? 1 : -1);
    if (to < 0 || to == shape_.stages * shape_.chunks) return;
    const int receiver = to % shape_.stages, received_chunk = to / shape_.stages;
    events.push_back({forward ? std::max(span.end, room_for_input(receiver, received_chunk, m)) : span.end,
                      rank,
                      {forward ? Kind::send_output : Kind::send_gradient, chunk, m},
                      receiver,
                      {forward ? Kind::receive_input : Kind::receive_gradient, received_chunk, m}});
  }

  // When a chunk may receive an input so that it never has more than one beyond its most activations. The
  // forward pass is never earlier: it waits for one backward pass more.
  double room_for_input(int rank, int chunk, int micro_batch) const {
    const int before = micro_batch - needed_[rank][chunk].activations - 1;
    return before < 0 ? 0 : backward_ends_[rank][chunk][before];
  }

  PipelineShape shape_;
  Timeline line_;
  std::vector<std::vector<PipelineBuffers>> needed_;             // by rank and chunk
  std::vector<std::vector<std::vector<double>>> backward_ends_;  // by rank, chunk and micro-batch
};

}  // namespace

Schedule make_schedule(ScheduleKind kind, const PipelineShape& shape) {
  check(kind, shape);
  Schedule schedule{kind, shape, {}};
  const auto order = shape.stages == 1 ? one_f_one_b : scheme_of(kind).passes;
  for (int rank = 0; rank < shape.stages; ++rank) schedule.ranks.push_back(order(shape, rank));
  schedule.ranks = TransferPlacer(schedule).place();
  return schedule;
}

std::span<const ScheduleScheme> schedule_schemes() { return kScheduleSchemes; }

const ScheduleScheme& scheme_of(ScheduleKind kind) {
  return *std::ranges::find(kScheduleSchemes, kind, &ScheduleScheme::kind);
}

std::string schedules_with_chunks(std::string_view separator) {
  std::string names;
  for (const auto& scheme : schedule_schemes()) {
    if (!scheme.takes_chunks) continue;
    names += fmt::format("{}{}", names.empty() ? "" : separator, scheme.name);
  }
  return names;
}

std::string describe(const Action& action) {
  constexpr std::array kWords = {"receive input",    "forward",  "send output",
                                 "receive gradient", "backward", "send gradient"};
  return fmt::format("{} {}.{}", kWords[static_cast<std::size_t>(action.kind)], action.chunk,
                     action.micro_batch);
}

}  // namespace shoal
