#include "planner/shared_link.h"

#include <gmock/gmock.h>

namespace shoal {
namespace {

using testing::DoubleEq;
using testing::ElementsAre;
using Times = std::vector<double>;

// The times when the messages of each flow are sent.
std::vector<Times> serve(SharedLink& link, double busy, const std::vector<Times>& ready, double from = 0) {
  std::vector<Times> ends;
  for (const auto& times : ready) ends.emplace_back(times.size());
  std::vector<Flow> flows;
  for (std::size_t i = 0; i < ready.size(); ++i)
    flows.push_back({.busy = busy, .ready = ready[i], .end = ends[i]});
  link.serve(flows, from);
  return ends;
}
std::vector<Times> serve(double busy, const std::vector<Times>& ready) {
  SharedLink link;
  return serve(link, busy, ready);
}

TEST(SharedLink, OneFlowSendsAMessageAfterTheOther) {
  EXPECT_THAT(serve(10, {{0, 0, 5, 100}}), ElementsAre(ElementsAre(10, 20, 30, 110)));
}

TEST(SharedLink, IsSharedEquallyWhileBothSend) {
  EXPECT_THAT(serve(10, {{0}, {0}}), ElementsAre(ElementsAre(20), ElementsAre(20)));
  // The first flow is alone for 4 ms. Then both share the link: 6 more take 12. The other's last 4 are alone
  // again.
  EXPECT_THAT(serve(10, {{0}, {4}}), ElementsAre(ElementsAre(16), ElementsAre(20)));
  EXPECT_THAT(serve(10, {{0, 0}, {0}}), ElementsAre(ElementsAre(20, 30), ElementsAre(20)));
  EXPECT_THAT(serve(9, {{0}, {0}, {0}}),
              ElementsAre(ElementsAre(DoubleEq(27)), ElementsAre(DoubleEq(27)), ElementsAre(DoubleEq(27))));
}

TEST(SharedLink, NeverDoesMoreThanItCan) {
  const auto ends = serve(3, {{0, 1, 2, 30}, {5, 5, 6, 31}, {2, 40, 41, 42}});
  double last = 0;
  for (const auto& flow : ends) last = std::max(last, flow.back());
  // The link is idle from 24 to 30 and, with two messages of 3, from 36 to 40.
  EXPECT_DOUBLE_EQ(last, 49);
}

TEST(SharedLink, EarlierCallsGoFirstAndLeaveTheRest) {
  SharedLink link;
  serve(link, 10, {{0, 50}});  // until 10, and from 50 to 60
  EXPECT_THAT(serve(link, 10, {{5, 45}}), ElementsAre(ElementsAre(20, 65)));
  // The taken intervals are now 0 to 20 and 45 to 65.
  EXPECT_THAT(serve(link, 30, {{0}}), ElementsAre(ElementsAre(70)));
}

TEST(SharedLink, NothingToSendTakesNoTime) {
  EXPECT_THAT(serve(0, {{3}, {3}}), ElementsAre(ElementsAre(3), ElementsAre(3)));
}

}  // namespace
}  // namespace shoal
