#include "config/cluster_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "data/temp_folder.h"

namespace shoal::test {
namespace {

using ::testing::HasSubstr;

constexpr const char* kSmallCluster = R"(memory_gib = 16
inside = { gb_s = 100 }
[device]
float32_tflops = 20
bfloat16_tflops = 300
memory_gb_s = 2000
product = 0.5
)";

std::string with_line(std::string text, const std::string& line, const std::string& other) {
  text.replace(text.find(line), line.size(), other);
  return text;
}

TEST(ClusterFile, HasDefaultsForWhatItLeavesOut) {
  const TempFolder folder;
  const auto file = folder.write("small.toml", kSmallCluster);
  const auto cluster = read_cluster(file);
  EXPECT_EQ(cluster.name, "small");
  EXPECT_EQ(cluster.file, file.string());
  EXPECT_EQ(cluster.peak_float32, 20e12);
  EXPECT_EQ(cluster.product, 0.5);
  EXPECT_EQ(cluster.streaming, 0.8);
  EXPECT_EQ(cluster.between.bandwidth, 0);
}

TEST(ClusterFile, NumbersThatOthersAreDividedByAreAboveZero) {
  const TempFolder folder;
  const auto problem = [&](const std::string& line, const std::string& other) {
    const auto file = folder.write("small.toml", with_line(kSmallCluster, line, other));
    return user_error([&] { read_cluster(file); });
  };
  for (const char* key : {"product", "attention", "streaming"}) {
    EXPECT_THAT(problem("product = 0.5", std::string(key) + " = 0"),
                HasSubstr("small.toml:7:" + std::to_string(std::string_view(key).size() + 4) +
                          ": this is a number above 0"));
  }
  EXPECT_THAT(problem("gb_s = 100", "gb_s = 0"), HasSubstr("small.toml:2:19: this is a number above 0"));
  EXPECT_THAT(problem("gb_s = 100", "gb_s = inf"), HasSubstr("this is a number above 0"));
  EXPECT_THAT(problem("gb_s = 100", "gb_s = 1, latency_us = -1"), HasSubstr("this is a number, at least 0"));
  EXPECT_THAT(problem("memory_gb_s = 2000", ""), HasSubstr("small.toml: device.memory_gb_s is missing"));
}

}  // namespace
}  // namespace shoal::test
