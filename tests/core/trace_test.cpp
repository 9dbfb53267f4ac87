#include "core/trace.h"

#include <gmock/gmock.h>

#include <thread>

namespace shoal::trace {
namespace {

TEST(Trace, WithoutARecorderNothingIsKept) {
  EXPECT_EQ(recorder(), nullptr);
  const Span span("step", "step 1");
  EXPECT_EQ(recorder(), nullptr);
}

TEST(Trace, SpansNest) {
  Recorder trace;
  {
    const Span outer("forward", "micro-batch 3", 3);
    const Span inner("forward", "forward block.0");
  }
  ASSERT_EQ(trace.events().size(), 2u);
  const auto& inner = trace.events()[0];
  const auto& outer = trace.events()[1];
  EXPECT_EQ(inner.name, "forward block.0");
  EXPECT_TRUE(inner.arguments.empty());
  EXPECT_EQ(outer.category, "forward");
  EXPECT_EQ(outer.lane, Lane::compute);
  EXPECT_THAT(outer.arguments, testing::ElementsAre(testing::Pair("micro-batch", "3")));
  EXPECT_LE(outer.begin, inner.begin);
  EXPECT_LE(inner.begin, inner.end);
  EXPECT_LE(inner.end, outer.end);
}

TEST(Trace, APausedRecorderKeepsNothing) {
  Recorder trace(false);
  { const Span unseen("step", "step 1"); }
  trace.set_on(true);
  {
    const Span seen("step", "step 2");
    trace.set_on(false);
    const Span unseen("forward", "forward head");
  }
  ASSERT_EQ(trace.events().size(), 1u);
  EXPECT_EQ(trace.events()[0].name, "step 2");
}

TEST(Trace, ARecorderIsOfItsThreadAndScope) {
  Recorder outer;
  {
    Recorder inner;
    EXPECT_EQ(recorder(), &inner);
    std::thread([] { EXPECT_EQ(recorder(), nullptr); }).join();
  }
  EXPECT_EQ(recorder(), &outer);
}

}  // namespace
}  // namespace shoal::trace
