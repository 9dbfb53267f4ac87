// Pipeline schedules as values: for every rank of a pipeline the list of what it does in a step, in order.
// The executor (parallel/pipeline/pipeline.h) only follows it.
//
// The model is cut into stages * chunks ranges of units; range k is chunk k / stages of rank k % stages.
// Transfers stand where one order of all events of all ranks has them, so that no run can deadlock, even
// where a send waits for its receive, and a pair of ranks sends in the order in which it receives. A send
// stands behind its pass, before the next; a receive may stand several passes before the one that needs it.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace shoal {

enum class ScheduleKind : std::uint8_t {
  gpipe,        // all forward passes, then all backward passes (Huang et al. 2019)
  one_f_one_b,  // as few activations as keep the pipeline full (Narayanan et al. 2019, PipeDream-Flush)
  interleaved,  // the same with several chunks per rank (Narayanan et al. 2021)
};

struct PipelineShape {
  int stages = 1;         // ranks of the pipeline
  int chunks = 1;         // ranges of units per rank; more than 1 only for schedules that take chunks
  int micro_batches = 1;  // of a step, any number
  bool operator==(const PipelineShape&) const = default;
};

struct Action {
  enum class Kind : std::uint8_t {
    receive_input,     // the activations of this chunk's input, from the rank that has the range before
    forward,           // of one micro-batch through one chunk
    send_output,       // to the rank that has the range behind
    receive_gradient,  // of this chunk's output
    backward,
    send_gradient,  // of this chunk's input
  };
  Kind kind = Kind::forward;
  int chunk = 0;
  int micro_batch = 0;
  bool operator==(const Action&) const = default;
};
std::string describe(const Action& action);  // "forward 0.3": chunk 0, micro-batch 3

// A kind of schedule, as the config, pictures and tests know it: a row of the table in schedule.cpp. A new
// one is an enumerator above, a function and its row.
struct ScheduleScheme {
  ScheduleKind kind;
  std::string_view name;     // in the config: "1f1b"
  std::string_view title;    // in pictures: "1F1B"
  std::string_view meaning;  // for `shoal config --explain`
  bool takes_chunks;         // whether a rank may have several chunks
  // Forward and backward passes of a rank, in order, in a pipeline of two stages or more.
  std::vector<Action> (*passes)(const PipelineShape& shape, int rank);
};
std::span<const ScheduleScheme> schedule_schemes();
const ScheduleScheme& scheme_of(ScheduleKind kind);
// The names of schemes that take chunks, with `separator` between them.
std::string schedules_with_chunks(std::string_view separator);

struct Schedule {
  ScheduleKind kind = ScheduleKind::one_f_one_b;
  PipelineShape shape;
  std::vector<std::vector<Action>> ranks;
};

// In every chunk both forward and backward passes take the micro-batches in their order 0, 1, ... One chunk
// interleaved is 1F1B, and with one stage every kind runs the micro-batches one by one. Throws
// UserError for a shape that the kind has no meaning for (chunks > 1 where it takes none, or in one stage).
Schedule make_schedule(ScheduleKind kind, const PipelineShape& shape);

// The buffers that a rank needs: for each of its chunks the most of them at a time. An input is there from
// its receive (or, in the first range, its forward) until its backward is done; a set of activations from its
// forward on; a gradient buffer from its receive (in the last range, its backward) until its send (in the
// first range, its backward). There is at most one input more than there are activations.
struct PipelineBuffers {
  int inputs = 0, activations = 0, gradients = 0;
  bool operator==(const PipelineBuffers&) const = default;
};
std::vector<PipelineBuffers> buffers_needed(const Schedule& schedule, int rank);  // one per chunk

// When everything happens if a forward pass of a whole rank takes 1 and a backward pass 2, shared equally by
// its chunks, and transfers take nothing. Throws Error for lists in which a rank waits for ever.
struct Timeline {
  struct Span {
    Action action;  // forward or backward
    double begin = 0, end = 0;
  };
  std::vector<std::vector<Span>> ranks;
  double length = 0;
  double bubble = 0;  // share of length * ranks in which nothing happens
};
Timeline timeline(const Schedule& schedule, double forward = 1, double backward = 2);

inline std::string_view name_of(ScheduleKind kind) { return scheme_of(kind).name; }

}  // namespace shoal
