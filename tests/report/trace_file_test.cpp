#include "report/trace_file.h"

#include <gtest/gtest.h>

namespace shoal {
namespace {

using trace::Event;
using trace::Lane;

Event traced_event(Lane lane, const char* category, const char* name, double begin, double end) {
  return {.lane = lane, .category = category, .name = name, .begin = begin, .end = end, .arguments = {}};
}

// Times of the file are in microseconds. Events were recorded at their end, so a step comes behind its parts.
TEST(TraceFile, HasWhatViewersRead) {
  auto pass = traced_event(Lane::compute, "forward", "block.0", 10.25, 10.5);
  pass.arguments = {{"micro-batch", "3"}};
  const std::vector<Event> events = {
      pass,
      traced_event(Lane::waits, "wait", "gradients", 10.25, 11),
      traced_event(Lane::transfers, "collective", "all_reduce", 10.125, 11.25),
      traced_event(Lane::compute, "step", "step 7", 10.25, 12),
  };
  const TracedRank rank{.rank = 1, .place = "data 1", .host = "host"};
  EXPECT_EQ(trace_lines(rank, events, [](double time) { return time - 10; }),
            R"JSON({"ph":"M","name":"process_name","pid":1,"tid":21,"args":{"name":"rank 1 (data 1)"}},
{"ph":"M","name":"process_labels","pid":1,"tid":21,"args":{"labels":"host"}},
{"ph":"M","name":"process_sort_index","pid":1,"tid":21,"args":{"sort_index":1}},
{"ph":"M","name":"thread_name","pid":1,"tid":21,"args":{"name":"compute"}},
{"ph":"M","name":"thread_sort_index","pid":1,"tid":21,"args":{"sort_index":0}},
{"ph":"M","name":"thread_name","pid":1,"tid":22,"args":{"name":"waits"}},
{"ph":"M","name":"thread_sort_index","pid":1,"tid":22,"args":{"sort_index":1}},
{"ph":"b","cat":"collective","name":"all_reduce","pid":1,"tid":22,"ts":125000.0,"id2":{"local":"0x1"},"args":{}},
{"ph":"e","cat":"collective","name":"all_reduce","pid":1,"tid":22,"ts":1250000.0,"id2":{"local":"0x1"}},
{"ph":"X","cat":"step","name":"step 7","pid":1,"tid":21,"ts":250000.0,"dur":1750000.0,"args":{}},
{"ph":"X","cat":"wait","name":"gradients","pid":1,"tid":22,"ts":250000.0,"dur":750000.0,"args":{}},
{"ph":"X","cat":"forward","name":"forward block.0","pid":1,"tid":21,"ts":250000.0,"dur":250000.0,"args":{"micro-batch":"3"}})JSON");
}

}  // namespace
}  // namespace shoal
