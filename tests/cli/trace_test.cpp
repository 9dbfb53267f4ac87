// Traces as a user makes them: checks the properties that viewers assume.
#include <fmt/format.h>

#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "cli/tiny_runs.h"
#include "comm/mpirun.h"

namespace shoal::test {
namespace {

using testing::HasSubstr;
using testing::Not;
using Json = nlohmann::json;

// An event with times in nanoseconds; the file has microseconds with three decimals.
struct TimedEvent {
  Json json;
  std::int64_t begin = 0, end = 0;
  std::string name() const { return json["name"]; }
  std::string category() const { return json["cat"]; }
  std::string argument(const char* key) const { return json["args"].value(key, ""); }
};

// A parsed trace.
struct Trace {
  Json file;
  std::map<int, std::string> processes;                             // by pid
  std::map<std::pair<int, int>, std::string> threads;               // by pid, tid
  std::map<std::pair<int, int>, std::vector<TimedEvent>> complete;  // by pid, tid
  std::map<int, std::vector<TimedEvent>> transfers;                 // by pid

  std::vector<TimedEvent> of(int pid, const std::string& category) const {
    std::vector<TimedEvent> found;
    for (const auto& [thread, events] : complete) {
      if (thread.first != pid) continue;
      for (const auto& event : events) {
        if (event.category() == category) found.push_back(event);
      }
    }
    return found;
  }
};

std::int64_t nanoseconds(const Json& microseconds) { return std::llround(microseconds.get<double>() * 1e3); }

Trace read_trace(const fs::path& path) {
  Trace trace;
  trace.file = Json::parse(read_file(path), nullptr, false);
  if (!trace.file.is_object()) {
    ADD_FAILURE() << path << " is no JSON object";
    return trace;
  }
  std::map<std::pair<int, std::string>, TimedEvent> open;  // by pid, id
  for (const auto& event : trace.file["traceEvents"]) {
    const std::string phase = event["ph"], name = event["name"];
    const int pid = event["pid"], tid = event["tid"];
    if (phase == "M") {
      if (name == "process_name") trace.processes[pid] = event["args"]["name"];
      if (name == "thread_name") trace.threads[{pid, tid}] = event["args"]["name"];
      continue;
    }
    TimedEvent timed{event, nanoseconds(event["ts"]), 0};
    EXPECT_GE(timed.begin, 0) << event;
    EXPECT_FALSE(timed.category().empty() || name.empty()) << event;
    if (phase == "X") {
      EXPECT_GE(event["dur"], 0) << event;
      timed.end = timed.begin + nanoseconds(event["dur"]);
      trace.complete[{pid, tid}].push_back(timed);
      continue;
    }
    const std::pair key(pid, event["id2"]["local"].get<std::string>());
    if (phase == "b") {
      EXPECT_TRUE(open.emplace(key, timed).second) << "an id twice: " << event;
    } else if (phase == "e" && open.contains(key)) {
      auto begun = open.extract(key).mapped();
      begun.end = timed.begin;
      EXPECT_GE(begun.end, begun.begin) << event;
      EXPECT_EQ(begun.name(), name);
      trace.transfers[pid].push_back(begun);
    } else {
      ADD_FAILURE() << "unexpected: " << event;
    }
  }
  EXPECT_TRUE(open.empty()) << open.size() << " transfers do not end";
  return trace;
}

// Checks the events of one thread, in the order of the file: overlapping events must be nested.
void expect_nesting(const std::vector<TimedEvent>& events) {
  std::vector<TimedEvent> around;
  std::int64_t last = 0;
  for (const auto& event : events) {
    EXPECT_LE(last, event.begin) << "out of order: " << event.json;
    last = event.begin;
    while (!around.empty() && around.back().end <= event.begin) around.pop_back();
    if (!around.empty()) {
      EXPECT_LE(event.end, around.back().end) << event.json << " crosses " << around.back().json;
    }
    around.push_back(event);
  }
}

// Every collective has all ranks of its group, and ends on no rank before it has started on all.
void expect_all_members(const Trace& trace) {
  struct Call {
    std::set<int> ranks, wanted;
    std::multiset<std::string> names;
    std::int64_t last_begin = 0, first_end = INT64_MAX;
    std::int64_t send_begin = 0, receive_end = INT64_MAX;
  };
  std::map<std::pair<std::string, std::string>, Call> calls;
  for (const auto& [pid, events] : trace.transfers) {
    for (const auto& event : events) {
      auto& call = calls[{event.argument("call"), event.argument("ranks")}];
      EXPECT_TRUE(call.ranks.insert(pid).second) << "twice: " << event.json;
      std::istringstream ranks(event.argument("ranks"));
      for (std::string rank; std::getline(ranks, rank, ',');) call.wanted.insert(std::stoi(rank));
      call.names.insert(event.name());
      call.last_begin = std::max(call.last_begin, event.begin);
      call.first_end = std::min(call.first_end, event.end);
      if (event.name() == "send") call.send_begin = event.begin;
      if (event.name() == "receive") call.receive_end = event.end;
      EXPECT_GE(std::stoll(event.argument("bytes")), 0);
    }
  }
  EXPECT_FALSE(calls.empty());
  for (const auto& [key, call] : calls) {
    const auto what = fmt::format("{} {} among {}", *call.names.begin(), key.first, key.second);
    EXPECT_EQ(call.ranks, call.wanted) << what;
    if (call.names.contains("send") || call.names.contains("receive")) {
      EXPECT_EQ(call.names, (std::multiset<std::string>{"receive", "send"})) << what;
      EXPECT_LE(call.send_begin, call.receive_end) << what;
      continue;
    }
    EXPECT_EQ(call.names.count(*call.names.begin()), call.names.size()) << what;
    // The root of a broadcast need not wait.
    if (!call.names.contains("broadcast")) {
      EXPECT_LE(call.last_begin, call.first_end) << what;
    }
  }
}

// Steps `first` to `last` on `ranks` ranks, on one host: clocks need no correction.
void expect_good(const Trace& trace, int ranks, int first, int last) {
  EXPECT_EQ(trace.file["otherData"]["ranks"], ranks);
  EXPECT_EQ(trace.file["otherData"]["clock_uncertainty_us"], Json(std::vector<double>(ranks, 0.0)));
  ASSERT_EQ(trace.processes.size(), static_cast<std::size_t>(ranks));
  EXPECT_EQ(trace.threads.size(), 2u * static_cast<std::size_t>(ranks));
  for (const auto& [thread, events] : trace.complete) {
    EXPECT_TRUE(trace.threads.contains(thread));
    expect_nesting(events);
  }
  if (ranks > 1) expect_all_members(trace);
  for (int rank = 0; rank < ranks; ++rank) {
    EXPECT_THAT(trace.processes.at(rank), testing::StartsWith(fmt::format("rank {}", rank)));
    const auto steps = trace.of(rank, "step");
    ASSERT_EQ(steps.size(), static_cast<std::size_t>(last - first + 1));
    for (int i = 0; i <= last - first; ++i) {
      EXPECT_EQ(steps[static_cast<std::size_t>(i)].name(), fmt::format("step {}", first + i));
    }
    EXPECT_LT(steps.back().end, std::int64_t{60'000'000'000});
    // Every step contains its update.
    const auto updates = trace.of(rank, "optimizer");
    ASSERT_EQ(updates.size(), steps.size());
    for (std::size_t i = 0; i < steps.size(); ++i) {
      EXPECT_LE(steps[i].begin, updates[i].begin);
      EXPECT_GE(steps[i].end, updates[i].end);
    }
    EXPECT_FALSE(trace.of(rank, "data").empty());
    const auto transfers = trace.transfers.find(rank);
    EXPECT_EQ(transfers != trace.transfers.end(), ranks > 1);
    if (transfers == trace.transfers.end()) continue;
    for (const auto& event : transfers->second) EXPECT_GE(event.begin, steps.front().begin);
  }
}

class Traces : public TinyRuns {};

TEST_F(Traces, OfFourRanksAreWhole) {
  train_well({"--ranks", "4", "--trace", "trace.json", "parallel.zero=3", "train.micro_batch=1",
              "run.name=threads"});
  const auto trace = read_trace(file("trace.json"));
  expect_good(trace, 4, 2, 11);
  // Evaluations follow steps 10 and 20; only the first is within the trace.
  EXPECT_EQ(trace.of(0, "evaluation").size(), 1u);
  EXPECT_FALSE(fs::exists(file(".trace.json.0.partial")));
}

TEST_F(Traces, OfOneRankHaveNoCollectives) {
  train_well({"--trace", "trace.json", "--trace-steps", "3"});
  expect_good(read_trace(file("trace.json")), 1, 2, 4);
}

TEST_F(Traces, OfARunThatIsShorterEndWithIt) {
  train_well({"--ranks", "2", "--trace", "trace.json", "--trace-steps", "1000", "train.steps=5"});
  expect_good(read_trace(file("trace.json")), 2, 2, 5);
  // The trace of a resumed run begins at its own second step and replaces the file.
  train_well({"--ranks", "2", "--trace", "trace.json", "init.from=resume", "train.steps=9"});
  expect_good(read_trace(file("trace.json")), 2, 7, 9);
  const auto result = train({"--trace", "none.json", "train.steps=1", "run.name=short"});
  EXPECT_EQ(result.code, 0);
  EXPECT_THAT(result.err, HasSubstr("no trace was written"));
  EXPECT_FALSE(fs::exists(file("none.json")));
  EXPECT_FALSE(fs::exists(file(".none.json.0.partial")));
}

TEST_F(Traces, DoNotChangeTheRun) {
  train_well({"--ranks", "2", "run.name=plain"});
  train_well({"--ranks", "2", "run.name=traced", "--trace", "trace.json"});
  EXPECT_EQ(reproducible_metrics("plain"), reproducible_metrics("traced"));
}

TEST_F(Traces, OfProcessesAreWhole) {
  const auto mpi = Mpi::open_mpi;
  if (const auto why = lacks(mpi, fs::path(SHOAL_BINARY).parent_path()); !why.empty()) GTEST_SKIP() << why;
  auto command = mpirun(mpi, 2);
  const auto script = fmt::format("cd {} && exec {} train tiny.toml --trace trace.json",
                                  folder_.path().string(), SHOAL_BINARY);
  command.insert(command.end(), {"sh", "-c", script});
  const auto result = MpiJob(command).wait(60);
  ASSERT_EQ(result.code, 0) << result.err;
  expect_good(read_trace(file("trace.json")), 2, 2, 11);
}

TEST_F(Traces, OfAnInterruptedRunAreWritten) {
  Process process(
      train_command({"--ranks", "2", "--trace", "trace.json", "--trace-steps", "100000", "train.steps=100000",
                     "eval.interval=-1", "checkpoint.interval=0", "log.interval=5"}),
      folder_.path());
  ASSERT_TRUE(eventually([&] { return process.err_so_far().find(" 10/100000") != std::string::npos; }));
  process.signal(SIGINT);
  EXPECT_EQ(process.wait().code, 0);
  const auto trace = read_trace(file("trace.json"));
  expect_good(trace, 2, 2, 1 + static_cast<int>(trace.of(0, "step").size()));
}

// A loss that is not finite fails the run.
TEST_F(Traces, OfAFailedRunShowTheFirstRank) {
  const auto result = train({"--ranks", "2", "--trace", "trace.json", "optim.lr=1e30",
                             "lr_schedule.warmup_steps=0", "train.grad_clip=0"});
  EXPECT_EQ(result.code, 1) << result.err;
  EXPECT_THAT(result.err, HasSubstr("the trace of rank 0 until the failure is in trace.json"));
  const auto trace = read_trace(file("trace.json"));
  EXPECT_EQ(trace.processes.size(), 1u);
  EXPECT_TRUE(trace.file["otherData"].contains("incomplete"));
}

// Two pipeline stages: every message has both ends, and a step can be drawn.
TEST_F(Traces, OfAPipelineCanBeDrawn) {
  train_well({"parallel.pipeline=2", "parallel.data=2", "--trace", "trace.json", "train.micro_batch=1"});
  const auto trace = read_trace(file("trace.json"));
  expect_good(trace, 4, 2, 11);
  EXPECT_THAT(trace.processes.at(3), HasSubstr("pipeline 1, data 1"));
  EXPECT_FALSE(trace.of(0, "forward").empty());
  EXPECT_EQ(shoal({"trace", "trace.json", "--step", "5", "-o", "step.svg"}).code, 0);
  const auto svg = read_file(file("step.svg"));
  EXPECT_THAT(svg, testing::StartsWith("<svg "));
  EXPECT_THAT(svg, testing::EndsWith("</svg>\n"));
  for (const char* text : {"Step 5", ">rank 0<", ">rank 3<", "backward of micro-batch 1"}) {
    EXPECT_THAT(svg, HasSubstr(text));
  }
  expect_user_error(shoal({"trace", "trace.json", "--step", "12", "-o", "s.svg"}),
                    "steps 2 to 11, but not 12");
  expect_user_error(shoal({"trace", "trace.json", "-o", "s.png"}), "name it s.svg");
  expect_user_error(shoal({"trace", "nothing.json", "-o", "s.svg"}), "nothing.json");
  write_file(file("half.json"), read_file(file("trace.json")).substr(0, 5000));
  write_file(file("other.json"), R"({"traceEvents": [{"ph": 3}]})");
  write_file(file("list.json"), "[1, 2]");
  write_file(file("empty.json"), R"({"traceEvents": []})");
  for (const char* name : {"half.json", "other.json", "list.json", "tiny.toml"}) {
    expect_user_error(shoal({"trace", name, "-o", "s.svg"}), name, "is not a trace");
  }
  expect_user_error(shoal({"trace", "empty.json", "-o", "s.svg"}), "empty.json has no step");
  EXPECT_FALSE(fs::exists(file("s.svg")));
}

TEST_F(Traces, ThatCannotBeWrittenAreRefusedBeforeTheRun) {
  fs::create_directory(file("folder"));
  for (const std::string ranks : {"1", "2"}) {
    expect_user_error(train({"--ranks", ranks, "--trace", "nowhere/trace.json"}), "nowhere/trace.json",
                      "No such file");
    expect_user_error(train({"--ranks", ranks, "--trace", "folder"}), "--trace folder", "folder");
    expect_user_error(train({"--ranks", ranks, "--trace", "folder/"}), "--trace folder/", "folder");
    expect_user_error(train({"--ranks", ranks, "--trace", "tiny.toml/t.json"}), "tiny.toml/t.json");
  }
  expect_user_error(train({"--trace", "t.json", "--dry-run"}), "--dry-run", "--trace");
  expect_user_error(train({"--trace-steps", "5"}), "--trace");
  expect_user_error(train({"--trace", "t.json", "--trace-steps", "0"}), "--trace-steps");
  expect_user_error(train({"--trace", ""}), "--trace");
  EXPECT_FALSE(fs::exists(file("runs")));
}

}  // namespace
}  // namespace shoal::test
