#include "generate/penalties.h"

#include <gmock/gmock.h>

namespace shoal {
namespace {

using ::testing::ElementsAre;

const std::vector<float> kLogits = {2, -2, 1, 0};

TEST(Penalties, RepetitionIsOfThePromptAndTheText) {
  Penalties penalties({.repetition_penalty = 2}, 4, std::vector<std::int32_t>{0});
  EXPECT_THAT(penalties.apply(kLogits), ElementsAre(1, -2, 1, 0));
  penalties.add(1);
  EXPECT_THAT(penalties.apply(kLogits), ElementsAre(1, -4, 1, 0));
}

TEST(Penalties, PresenceAndFrequencyAreOfTheTextAlone) {
  Penalties penalties({.presence_penalty = 0.5, .frequency_penalty = 0.25}, 4, std::vector<std::int32_t>{0});
  penalties.add(2);
  penalties.add(3);
  penalties.add(3);
  EXPECT_THAT(penalties.apply(kLogits), ElementsAre(2, -2, 0.25, -1));
}

TEST(Penalties, NoneLeaveTheLogitsAsTheyAre) {
  Penalties penalties({}, 4, std::vector<std::int32_t>{0});
  penalties.add(2);
  EXPECT_EQ(penalties.apply(kLogits).data(), kLogits.data());
}

}  // namespace
}  // namespace shoal
