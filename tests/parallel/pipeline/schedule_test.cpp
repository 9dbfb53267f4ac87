#include "parallel/pipeline/schedule.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <map>
#include <set>
#include <tuple>

#include "core/error.h"

namespace shoal {

void PrintTo(const Action& action, std::ostream* out) { *out << describe(action); }

namespace test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::ThrowsMessage;
using Kind = Action::Kind;
using Actions = std::vector<Action>;

// Every kind over 1 to 8 stages, 1 to 17 micro-batches and, where it takes them, 1 to 4 chunks.
void for_all(const std::function<void(const Schedule&)>& check) {
  for (const auto& scheme : schedule_schemes()) {
    for (int stages = 1; stages <= 8; ++stages) {
      const int most_chunks = scheme.takes_chunks && stages > 1 ? 4 : 1;
      for (int chunks = 1; chunks <= most_chunks; ++chunks) {
        for (int micro_batches = 1; micro_batches <= 17; ++micro_batches) {
          const PipelineShape shape{stages, chunks, micro_batches};
          SCOPED_TRACE(fmt::format("{}, {} stages, {} chunks, {} micro-batches", scheme.name, stages, chunks,
                                   micro_batches));
          check(make_schedule(scheme.kind, shape));
          if (testing::Test::HasFailure()) return;
        }
      }
    }
  }
}

int range_of(const PipelineShape& shape, int rank, int chunk) { return chunk * shape.stages + rank; }
int last_range(const PipelineShape& shape) { return shape.stages * shape.chunks - 1; }
bool is_send(Kind kind) { return kind == Kind::send_output || kind == Kind::send_gradient; }
bool is_receive(Kind kind) { return kind == Kind::receive_input || kind == Kind::receive_gradient; }

// Identifies a transfer on both of its ranks.
struct Message {
  int from, to;
  bool gradient;
  int range;  // the range that computed it
  int micro_batch;
  auto operator<=>(const Message&) const = default;
};
Message message_of(const PipelineShape& shape, int rank, const Action& action) {
  const bool gradient = action.kind == Kind::send_gradient || action.kind == Kind::receive_gradient;
  const int mine = range_of(shape, rank, action.chunk);
  const int other =
      (action.kind == Kind::send_output || action.kind == Kind::receive_gradient) ? mine + 1 : mine - 1;
  const int from = is_send(action.kind) ? mine : other, to = is_send(action.kind) ? other : mine;
  return {from % shape.stages, to % shape.stages, gradient, from, action.micro_batch};
}

// Executes the lists with sends that wait for their receives. Returns the fault, a pass without its inputs or
// ranks that wait for each other, or "" where the run ends.
std::string run_blocking(const Schedule& schedule) {
  const auto& shape = schedule.shape;
  std::set<std::tuple<Kind, int, int>> done;  // received or computed by a range
  const auto has = [&](Kind kind, int range, int m) { return done.contains({kind, range, m}); };
  const auto wrong_pass = [&](int rank, const Action& action) {
    const int range = range_of(shape, rank, action.chunk), m = action.micro_batch;
    switch (action.kind) {
      case Kind::forward:
        return range > 0 && !has(Kind::receive_input, range, m);
      case Kind::backward:
        return !has(Kind::forward, range, m) ||
               (range < last_range(shape) && !has(Kind::receive_gradient, range, m));
      case Kind::send_output:
        return !has(Kind::forward, range, m);
      case Kind::send_gradient:
        return !has(Kind::backward, range, m);
      default:
        return false;
    }
  };
  std::vector<std::size_t> next(shape.stages, 0);
  const auto now = [&](int rank) -> const Action* {
    return next[rank] < schedule.ranks[rank].size() ? &schedule.ranks[rank][next[rank]] : nullptr;
  };
  const auto finish = [&](int rank) {
    const auto& action = *now(rank);
    done.insert({action.kind, range_of(shape, rank, action.chunk), action.micro_batch});
    ++next[rank];
  };
  for (bool moved = true; moved;) {
    moved = false;
    for (int rank = 0; rank < shape.stages; ++rank) {
      while (const auto* action = now(rank)) {
        if (wrong_pass(rank, *action)) return fmt::format("rank {} cannot {}", rank, describe(*action));
        if (is_receive(action->kind)) break;  // executed with its send
        if (is_send(action->kind)) {
          const auto message = message_of(shape, rank, *action);
          const auto* other = now(message.to);
          if (!other || !is_receive(other->kind) || message_of(shape, message.to, *other) != message) break;
          finish(message.to);
        }
        finish(rank);
        moved = true;
      }
    }
  }
  for (int rank = 0; rank < shape.stages; ++rank) {
    if (now(rank)) return fmt::format("rank {} waits for ever in {}", rank, describe(*now(rank)));
  }
  return "";
}

Actions passes(const Actions& actions) {
  Actions found;
  std::ranges::copy_if(actions, std::back_inserter(found),
                       [](const Action& a) { return a.kind == Kind::forward || a.kind == Kind::backward; });
  return found;
}

std::string passes_text(const Actions& actions) {
  std::string text;
  for (const auto& [kind, chunk, m] : passes(actions)) {
    text += fmt::format("{}{}{}", text.empty() ? "" : " ", kind == Kind::forward ? 'F' : 'B', m);
    if (chunk > 0) text += std::string(static_cast<std::size_t>(chunk), '\'');
  }
  return text;
}

TEST(Schedule, EveryPassIsThereOnceWithItsTransfers) {
  for_all([](const Schedule& schedule) {
    const auto& shape = schedule.shape;
    ASSERT_EQ(schedule.ranks.size(), static_cast<std::size_t>(shape.stages));
    for (int rank = 0; rank < shape.stages; ++rank) {
      std::map<std::tuple<Kind, int, int>, int> times;
      for (const auto& [kind, chunk, m] : schedule.ranks[rank]) ++times[{kind, chunk, m}];
      std::size_t expected = 0;
      for (int chunk = 0; chunk < shape.chunks; ++chunk) {
        const int range = range_of(shape, rank, chunk);
        const bool first = range == 0, last = range == last_range(shape);
        for (int m = 0; m < shape.micro_batches; ++m) {
          const auto expect = [&](Kind kind, bool there) {
            EXPECT_EQ((times[{kind, chunk, m}]), there ? 1 : 0) << describe({kind, chunk, m});
            expected += there;
          };
          expect(Kind::receive_input, !first);
          expect(Kind::forward, true);
          expect(Kind::send_output, !last);
          expect(Kind::receive_gradient, !last);
          expect(Kind::backward, true);
          expect(Kind::send_gradient, !first);
        }
      }
      EXPECT_EQ(schedule.ranks[rank].size(), expected) << "nothing else";
    }
  });
}

TEST(Schedule, EndsWhereSendsWaitForTheirReceives) {
  for_all([](const Schedule& schedule) { EXPECT_EQ(run_blocking(schedule), ""); });
}

// The check above detects faults in these schedules.
TEST(Schedule, ABadScheduleDoesNotEnd) {
  const auto good = make_schedule(ScheduleKind::one_f_one_b, {2, 1, 2});
  ASSERT_EQ(run_blocking(good), "");

  // Both ranks send first: rank 0 its second output, rank 1 its first gradient.
  auto both_send = good;
  const auto at = [&](int rank, const Action& action) {
    return std::ranges::find(both_send.ranks[rank], action);
  };
  std::iter_swap(at(0, {Kind::send_output, 0, 1}), at(0, {Kind::receive_gradient, 0, 0}));
  EXPECT_NE(run_blocking(both_send), "");
  EXPECT_THAT(run_blocking(both_send), HasSubstr("waits for ever"));

  // Rank 1 receives the second message first.
  auto wrong_order = good;
  for (auto& action : wrong_order.ranks[1]) {
    if (action.kind == Kind::receive_input) action.micro_batch = 1 - action.micro_batch;
  }
  EXPECT_THAT(run_blocking(wrong_order), HasSubstr("rank 0 waits for ever in send output 0.0"));

  auto no_input = good;
  std::erase(no_input.ranks[1], Action{Kind::receive_input, 0, 0});
  EXPECT_THAT(run_blocking(no_input), HasSubstr("rank 1 cannot forward 0.0"));

  auto too_early = good;
  std::ranges::stable_sort(too_early.ranks[0], {}, [](const Action& a) { return a.kind != Kind::backward; });
  EXPECT_THAT(run_blocking(too_early), HasSubstr("rank 0 cannot backward 0.0"));
  EXPECT_THROW(timeline(too_early), Error);
}

// Also for sends that do not wait: a pair of ranks receives each kind in the order of its sends.
TEST(Schedule, PairsOfRanksReceiveInTheOrderOfTheirSends) {
  for_all([](const Schedule& schedule) {
    std::map<std::tuple<int, int, bool>, std::vector<Message>> sent, received;
    for (int rank = 0; rank < schedule.shape.stages; ++rank) {
      for (const auto& action : schedule.ranks[rank]) {
        if (!is_send(action.kind) && !is_receive(action.kind)) continue;
        const auto message = message_of(schedule.shape, rank, action);
        auto& messages = is_send(action.kind) ? sent : received;
        messages[{message.from, message.to, message.gradient}].push_back(message);
      }
    }
    EXPECT_EQ(sent, received);
  });
}

TEST(Schedule, SendsStandBehindTheirPass) {
  for_all([](const Schedule& schedule) {
    for (const auto& actions : schedule.ranks) {
      Action pass;
      for (const auto& action : actions) {
        if (action.kind == Kind::forward || action.kind == Kind::backward) pass = action;
        if (!is_send(action.kind)) continue;
        const auto kind = action.kind == Kind::send_output ? Kind::forward : Kind::backward;
        EXPECT_EQ(pass, (Action{kind, action.chunk, action.micro_batch}));
      }
    }
  });
}

TEST(Schedule, ChunksTakeMicroBatchesInOrder) {
  for_all([](const Schedule& schedule) {
    for (const auto& actions : schedule.ranks) {
      std::map<std::pair<Kind, int>, int> next;
      for (const auto& [kind, chunk, m] : actions) EXPECT_EQ(m, (next[{kind, chunk}]++));
    }
  });
}

TEST(Schedule, GPipeGoesForwardFirst) {
  const auto schedule = make_schedule(ScheduleKind::gpipe, {3, 1, 4});
  for (const auto& actions : schedule.ranks) {
    EXPECT_EQ(passes_text(actions), "F0 F1 F2 F3 B0 B1 B2 B3");
  }
}

TEST(Schedule, OneForwardOneBackward) {
  const auto schedule = make_schedule(ScheduleKind::one_f_one_b, {4, 1, 5});
  EXPECT_EQ(passes_text(schedule.ranks[0]), "F0 F1 F2 F3 B0 F4 B1 B2 B3 B4");
  EXPECT_EQ(passes_text(schedule.ranks[1]), "F0 F1 F2 B0 F3 B1 F4 B2 B3 B4");
  EXPECT_EQ(passes_text(schedule.ranks[2]), "F0 F1 B0 F2 B1 F3 B2 F4 B3 B4");
  EXPECT_EQ(passes_text(schedule.ranks[3]), "F0 B0 F1 B1 F2 B2 F3 B3 F4 B4");
  // Fewer micro-batches than stages.
  const auto few = make_schedule(ScheduleKind::one_f_one_b, {4, 1, 2});
  EXPECT_EQ(passes_text(few.ranks[0]), "F0 F1 B0 B1");
  EXPECT_EQ(passes_text(few.ranks[3]), "F0 B0 F1 B1");
}

// Two ranks with two chunks; ' is the second.
TEST(Schedule, Interleaved) {
  const auto schedule = make_schedule(ScheduleKind::interleaved, {2, 2, 4});
  EXPECT_EQ(passes_text(schedule.ranks[0]), "F0 F1 F0' F1' F2 B0' F3 B1' F2' B0 F3' B1 B2' B3' B2 B3");
  EXPECT_EQ(passes_text(schedule.ranks[1]), "F0 F1 F0' B0' F1' B1' F2 B0 F3 B1 F2' B2' F3' B3' B2 B3");
  // The last group has one micro-batch.
  const auto odd = make_schedule(ScheduleKind::interleaved, {2, 2, 3});
  EXPECT_EQ(passes_text(odd.ranks[1]), "F0 F1 F0' B0' F1' B1' F2 B0 B1 F2' B2' B2");
}

TEST(Schedule, OneChunkInterleavedIs1F1B) {
  const PipelineShape shape{5, 1, 7};
  EXPECT_EQ(make_schedule(ScheduleKind::interleaved, shape).ranks,
            make_schedule(ScheduleKind::one_f_one_b, shape).ranks);
}

TEST(Schedule, OneStageRunsMicroBatchesOneByOne) {
  for (const auto& scheme : schedule_schemes()) {
    EXPECT_THAT(make_schedule(scheme.kind, {1, 1, 2}).ranks,
                ElementsAre(ElementsAre(Action{Kind::forward, 0, 0}, Action{Kind::backward, 0, 0},
                                        Action{Kind::forward, 0, 1}, Action{Kind::backward, 0, 1})));
  }
}

// Sets of activations of all chunks together.
int most_alive(const Actions& actions) {
  int now = 0, most = 0;
  for (const auto& pass : passes(actions)) {
    now += pass.kind == Kind::forward ? 1 : -1;
    most = std::max(most, now);
  }
  return most;
}

TEST(Schedule, PeaksOfBuffers) {
  for_all([](const Schedule& schedule) {
    const auto& [stages, chunks, micro_batches] = schedule.shape;
    for (int rank = 0; rank < stages; ++rank) {
      const auto needed = buffers_needed(schedule, rank);
      ASSERT_EQ(needed.size(), static_cast<std::size_t>(chunks));
      int sum = 0;
      for (const auto& [inputs, activations, gradients] : needed) {
        EXPECT_GE(inputs, activations);
        EXPECT_LE(inputs, activations + 1);
        EXPECT_GE(gradients, 1);
        EXPECT_LE(gradients, chunks == 1 ? 2 : std::max(2, (stages + 1) / 2));
        sum += activations;
      }
      if (stages == 1) {
        EXPECT_THAT(needed, ElementsAre(PipelineBuffers{1, 1, 1}));
      } else if (schedule.kind == ScheduleKind::gpipe) {
        EXPECT_EQ(sum, micro_batches);
      } else if (chunks == 1) {
        EXPECT_EQ(sum, std::min(stages - rank, micro_batches));
      } else {  // the passes of the warm-up and one more
        const int most =
            std::min(2 * (stages - rank - 1) + (chunks - 1) * stages + 1, chunks * micro_batches);
        const int alive = most_alive(schedule.ranks[rank]);
        EXPECT_LE(alive, most);
        if (micro_batches % stages == 0) {
          EXPECT_EQ(alive, most);
        }
        EXPECT_GE(sum, alive) << "chunks may have their peaks at different times";
      }
    }
  });
}

TEST(Schedule, BubblesAreAsTheTheorySays) {
  int exact = 0;
  for_all([&](const Schedule& schedule) {
    const auto& [stages, chunks, micro_batches] = schedule.shape;
    const auto line = timeline(schedule);
    const auto theory = [&](int m) { return (stages - 1.0) / (chunks * m + stages - 1.0); };
    if (chunks == 1 || micro_batches % stages == 0) {
      // Times are sums of at most 4 * 8 * 17 terms, each rounded by 2^-53 of the sum.
      EXPECT_NEAR(line.bubble, theory(micro_batches), 1e-12);
      ++exact;
    } else {
      // No longer than with a whole last group: forward and backward take 3 per micro-batch.
      const int whole = (micro_batches + stages - 1) / stages * stages;
      EXPECT_LE(line.length, 3 * whole / (1 - theory(whole)) + 1e-9);
    }
  });
  EXPECT_GT(exact, 400);
}

TEST(Schedule, TheTimelineIsOfWhatTakesHowLong) {
  const auto line = timeline(make_schedule(ScheduleKind::one_f_one_b, {2, 1, 2}), 10, 30);
  ASSERT_EQ(line.ranks.size(), 2u);
  std::vector<std::pair<double, double>> times;
  for (const auto& span : line.ranks[0]) times.emplace_back(span.begin, span.end);
  // F0 and F1, then rank 1 has done F0 (20) and B0 (50), F1 (60) and B1 (90).
  using P = std::pair<double, double>;
  EXPECT_THAT(times, ElementsAre(P{0, 10}, P{10, 20}, P{50, 80}, P{90, 120}));
  EXPECT_EQ(line.length, 120);
  EXPECT_DOUBLE_EQ(line.bubble, 1 / 3.0);
}

TEST(Schedule, ShapesWithoutMeaningAreRefused) {
  const auto refused = [](ScheduleKind kind, PipelineShape shape, const char* words) {
    EXPECT_THAT([&] { make_schedule(kind, shape); }, ThrowsMessage<UserError>(HasSubstr(words)));
  };
  refused(ScheduleKind::gpipe, {2, 2, 4}, "gpipe has one chunk");
  refused(ScheduleKind::one_f_one_b, {2, 2, 4}, "1f1b has one chunk");
  refused(ScheduleKind::interleaved, {1, 2, 4}, "a pipeline of one rank");
  refused(ScheduleKind::one_f_one_b, {0, 1, 4}, "0 stages");
  refused(ScheduleKind::one_f_one_b, {2, 1, 0}, "0 micro-batches");
  refused(ScheduleKind::interleaved, {2, 0, 1}, "0 chunks");
}

TEST(Schedule, Names) {
  EXPECT_EQ(name_of(ScheduleKind::one_f_one_b), "1f1b");
  EXPECT_EQ(describe({Kind::receive_gradient, 1, 12}), "receive gradient 1.12");
}

}  // namespace
}  // namespace test
}  // namespace shoal
