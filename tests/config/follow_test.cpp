// Keys of a config file that are adapted to the arguments, the data and the ranks.
#include "config/follow.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "config/layout.h"
#include "data/temp_folder.h"

namespace shoal::test {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using Settings = std::vector<std::string>;

constexpr const char* kConfig = R"(
data.dir = "data"
[train]
global_batch = 216
micro_batch = 27
steps = 1000
[lr_schedule]
warmup_steps = 50
)";

Config parse(const Settings& settings, const std::string& more = "") {
  return parse_config(kConfig + more, "a.toml", settings);
}
std::string refused(const Settings& settings, const std::string& more = "") {
  return user_error([&] { parse(settings, more); });
}

TEST(Follow, TheMicroBatchFollowsTheBatchOfAnArgument) {
  const auto config = parse({"train.global_batch=128"});
  EXPECT_EQ(config.train.micro_batch, 16);
  EXPECT_THAT(config.followed, ElementsAre(AllOf(HasSubstr("train.micro_batch = 16"), HasSubstr("27"),
                                                 HasSubstr("train.global_batch = 128"))));
  EXPECT_EQ(parse({"train.global_batch=8"}).train.micro_batch, 8);
  EXPECT_EQ(parse({"train.global_batch=29"}).train.micro_batch, 1);
  // Values that fit are kept.
  EXPECT_EQ(parse({"train.global_batch=54"}).train.micro_batch, 27);
  EXPECT_THAT(parse({}).followed, IsEmpty());
}

TEST(Follow, AMicroBatchThatWasGivenStays) {
  EXPECT_EQ(parse({"train.global_batch=128", "train.micro_batch=4"}).train.micro_batch, 4);
  EXPECT_THAT(refused({"train.global_batch=128", "train.micro_batch=3"}),
              HasSubstr("train.micro_batch = 3 (argument 'train.micro_batch=3') does not divide"));
  EXPECT_THAT(refused({"train.micro_batch=25"}),
              HasSubstr("does not divide train.global_batch = 216 (a.toml:4)"));
  EXPECT_THAT(user_error([] {
                parse_config("data.dir = \"d\"\ntrain = {global_batch = 8, micro_batch = 3, steps = 1}", "b");
              }),
              HasSubstr("does not divide"));
}

TEST(Follow, TheWarmupFollowsTheStepsOfAnArgument) {
  const auto config = parse({"train.steps=12"});
  EXPECT_EQ(config.lr_schedule.warmup_steps, 1);
  EXPECT_THAT(config.followed, ElementsAre(AllOf(HasSubstr("lr_schedule.warmup_steps = 1"), HasSubstr("50"),
                                                 HasSubstr("12 steps"))));
  EXPECT_EQ(parse({"train.steps=40"}).lr_schedule.warmup_steps, 4);
  EXPECT_EQ(parse({"train.steps=1"}).lr_schedule.warmup_steps, 1);
  EXPECT_EQ(parse({"train.steps=50"}).lr_schedule.warmup_steps, 50);  // it fits
  EXPECT_THAT(refused({"train.steps=12", "lr_schedule.warmup_steps=13"}), HasSubstr("longer than the run"));
  EXPECT_THAT(refused({"lr_schedule.warmup_steps=1001"}), HasSubstr("longer than the run"));
}

TEST(Follow, TheFinalDecayFollowsToo) {
  const std::string wsd = "name = \"wsd\"\ndecay_steps = 200\n";
  const auto config = parse({"train.steps=100"}, wsd);
  EXPECT_EQ(config.lr_schedule.warmup_steps, 50);
  EXPECT_EQ(config.lr_schedule.decay_steps, 20);
  EXPECT_THAT(refused({"train.steps=100", "lr_schedule.decay_steps=200"}, wsd),
              HasSubstr("together longer than the run"));
}

TEST(Follow, ALengthInEpochsReplacesOneInSteps) {
  const auto config = parse({"train.epochs=3", "data.sampling=epochs"});
  EXPECT_EQ(config.train.steps, 0);
  EXPECT_EQ(config.train.epochs, 3);
  EXPECT_THAT(refused({"train.epochs=3", "train.steps=3", "data.sampling=epochs"}), HasSubstr("both set"));
}

// With the micro-batch given by the file, or by an argument.
Config settled(int ranks, const Settings& settings) {
  auto config = parse(settings);
  resolve_layout(config, ranks);
  return config;
}

TEST(Follow, TheMicroBatchFollowsTheRanks) {
  EXPECT_EQ(settled(8, {}).train.micro_batch, 27);
  const auto config = settled(16, {});
  EXPECT_EQ(config.train.micro_batch, 12);
  EXPECT_THAT(config.followed, ElementsAre(AllOf(HasSubstr("train.micro_batch = 12"), HasSubstr("27"),
                                                 HasSubstr("16 data ranks"))));
  EXPECT_EQ(settled(216, {}).train.micro_batch, 1);
  EXPECT_THAT(user_error([] { settled(16, {"train.micro_batch=27"}); }),
              HasSubstr("cannot share the 8 micro-batches"));
  // With layout determinism the micro-batch is a part of the result.
  EXPECT_THAT(user_error([] { settled(16, {"run.deterministic=layout"}); }),
              HasSubstr("set train.micro_batch=12"));
  // Every gossip worker gets the same number of micro-batches.
  EXPECT_EQ(settled(4, {"parallel.engine=gossip", "gossip.topology=complete"}).train.micro_batch, 27);
  EXPECT_EQ(settled(12, {"parallel.engine=gossip", "gossip.topology=complete"}).train.micro_batch, 18);
}

}  // namespace
}  // namespace shoal::test
