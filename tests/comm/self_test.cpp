// The group of one rank: every collective completes at once and copies at most.
#include <gmock/gmock.h>

#include <vector>

#include "comm/communicator.h"
#include "core/error.h"

namespace shoal::test {
namespace {

using testing::ElementsAre;

class Self : public testing::Test {
 protected:
  static Tensor tensor(std::vector<float>& values) {
    return {values.data(), DType::f32, {static_cast<std::int64_t>(values.size())}};
  }

  std::unique_ptr<Communicator> group_ = make_self_communicator();
  std::vector<float> x_{1, 2, 3};
  std::vector<float> out_{0, 0, 0};
};

TEST_F(Self, IsRankZeroOfOne) {
  EXPECT_EQ(group_->name(), "self");
  EXPECT_EQ(group_->rank(), 0);
  EXPECT_EQ(group_->size(), 1);
}

TEST_F(Self, ReductionsLeaveTheirInput) {
  group_->all_reduce(tensor(x_)).wait();
  group_->all_reduce(tensor(x_), ReduceOp::max).wait();
  group_->broadcast(tensor(x_), 0).wait();
  group_->barrier();
  EXPECT_THAT(x_, ElementsAre(1, 2, 3));
}

TEST_F(Self, TheRestCopies) {
  group_->reduce_scatter(tensor(out_), tensor(x_)).wait();
  EXPECT_THAT(out_, ElementsAre(1, 2, 3));
  x_ = {4, 5, 6};
  group_->all_gather(tensor(out_), tensor(x_)).wait();
  EXPECT_THAT(out_, ElementsAre(4, 5, 6));
  x_ = {7, 8, 9};
  group_->all_to_all(tensor(out_), tensor(x_)).wait();
  EXPECT_THAT(out_, ElementsAre(7, 8, 9));
}

TEST_F(Self, TakesItsOwnPartOfTheOutput) {
  group_->all_gather(tensor(x_), tensor(x_)).wait();
  EXPECT_THAT(x_, ElementsAre(1, 2, 3));
}

TEST_F(Self, HasNobodyElse) {
  EXPECT_THROW(group_->send(tensor(x_), 0), Error);
  EXPECT_THROW(group_->receive(tensor(x_), 1), Error);
  EXPECT_THROW(group_->broadcast(tensor(x_), 1), Error);
}

TEST_F(Self, SplitsIntoItself) {
  const auto part = group_->split([](int) { return Communicator::SplitKey{3, 7}; });
  EXPECT_EQ(part->rank(), 0);
  EXPECT_EQ(part->size(), 1);
}

TEST(Request, WaitsOnceAndBeforeItIsReplaced) {
  struct Counting final : Request::Pending {
    explicit Counting(int& counter) : waits(counter) {}
    void wait() override { ++waits; }
    int& waits;
  };
  int waits = 0;
  Request request(std::make_unique<Counting>(waits));
  request.wait();
  request.wait();
  EXPECT_EQ(waits, 1);
  request = Request(std::make_unique<Counting>(waits));
  EXPECT_EQ(waits, 1);
  Request moved(std::move(request));
  EXPECT_EQ(waits, 1);
  moved = Request();
  EXPECT_EQ(waits, 2);
  Request().wait();
}

}  // namespace
}  // namespace shoal::test
