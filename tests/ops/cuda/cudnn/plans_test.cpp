// Tests cuDNN's attention without a GPU: the library makes plans for a GPU from its description. That
// includes compiling the kernels, which the stand-in for the driver accepts.
#include <dlfcn.h>
#include <gmock/gmock.h>

#include "core/error.h"
#include "ops/cuda/cudnn/attention_graphs.h"

namespace shoal::cuda::cudnn {
namespace {

using testing::AllOf;
using testing::Ge;
using testing::HasSubstr;
using testing::Le;

// The description of a GPU for cuDNN; the arguments are the properties that differ between GPUs.
std::string described(int processors, int shared_bytes, int version) {
  return fmt::format(
      R"({{"deviceName": "a GPU", "deviceVer": {}, "multiProcessorCount": {}, "maxSharedMemoryPerBlockOptin": {},
      "maxSharedMemoryPerBlock": 49152, "reservedSharedMemoryPerBlock": 1024, "totalGlobalMem": 85899345920,
      "maxGridSize": [2147483647, 65535, 65535], "maxBlockSize": [1024, 1024, 64], "regsPerBlock": 65536,
      "maxRegistersPerSM": 65536, "maxCtasPerSM": 32, "maxThreadsPerBlock": 1024, "maxThreadsPerSM": 2048,
      "warpSize": 32, "supportCoopLaunch": 1, "isTccDriver": 0, "pciDeviceId": 0, "cudaDeviceId": 0,
      "smClockRateKHz": 1980000, "memClockRateKHz": 3201000, "l2CacheSize": 62914560, "driverVer": 13000}})",
      version, processors, shared_bytes);
}
std::string hopper() { return described(132, 232448, 900); }
std::string ampere() { return described(108, 166912, 800); }

class CudnnPlans : public testing::Test {
 protected:
  // cuDNN opens libcuda.so.1 and gets the one that is already loaded. Without it, it makes no plan.
  void SetUp() override {
    if (!dlopen(SHOAL_EMULATED_DRIVER, RTLD_NOW | RTLD_GLOBAL)) {
      GTEST_SKIP() << "no driver for cuDNN: " << dlerror();
    }
    try {
      functions_ = open_library();
    } catch (const Error& error) {
      GTEST_SKIP() << "no cuDNN: " << error.what();
    }
  }

  // The order of sums is fixed if the workspace has room for the gradients of all scores, 2 bytes each.
  void expect_plans(const std::string& gpu, const AttentionSizes& sizes) const {
    constexpr std::int64_t kLittle = 4096;
    const auto workspace = [&](const Graph& graph) {
      return graph.plan({.handle = nullptr, .description = gpu}).workspace;
    };
    EXPECT_LE(workspace(forward_graph(functions_, sizes)), kLittle);
    const std::int64_t kept = 2 * sizes.B * sizes.H * sizes.T * sizes.T;
    EXPECT_THAT(workspace(backward_graph(functions_, sizes)), AllOf(Ge(kept), Le(kept + kLittle)));
  }

  Functions functions_{};
};

TEST_F(CudnnPlans, AreThereForGpt2OnHopper) {
  expect_plans(hopper(), {.B = attention_piece(64, 12, 1024), .T = 1024, .H = 12, .D = 64});
}
TEST_F(CudnnPlans, NeedLittleMemoryWithoutAnOrderOnHopper) {
  const auto graph = unordered_backward_graph(functions_, {.B = 64, .T = 1024, .H = 12, .D = 64});
  EXPECT_LE(graph.plan({.handle = nullptr, .description = hopper()}).workspace, 4096);
}
TEST_F(CudnnPlans, AreThereForOtherHeadsAndShortSequences) {
  expect_plans(hopper(), {.B = 2, .T = 128, .H = 3, .D = 80});
}
TEST_F(CudnnPlans, AreThereOnAmpere) { expect_plans(ampere(), {.B = 2, .T = 256, .H = 6, .D = 64}); }

TEST_F(CudnnPlans, WhereThereIsNoneTheReasonIsSaid) {
  const AttentionSizes sizes{.B = 2, .T = 128, .H = 3, .D = 63};
  try {
    forward_graph(functions_, sizes).plan({.handle = nullptr, .description = hopper()});
    FAIL() << "a plan for heads of 63 channels";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("cuDNN"));
  }
}

std::string why_not_opened(const char* file) {
  try {
    open_library(file);
    return "opened";
  } catch (const Error& error) {
    return error.what();
  }
}

TEST(CudnnLibrary, ThatIsNotThereIsNamed) {
  EXPECT_THAT(why_not_opened("/nowhere/libcudnn.so.9"), HasSubstr("/nowhere/libcudnn.so.9"));
}
TEST(CudnnLibrary, ThatIsTooOldIsNotTaken) {
  EXPECT_THAT(why_not_opened(SHOAL_OLD_CUDNN), HasSubstr("cuDNN 9.10.0 is too old, 9.10.2 is needed"));
}

TEST(AttentionPiece, DividesTheBatchAndStaysWithin512MiB) {
  EXPECT_EQ(attention_piece(64, 12, 1024), 16);
  EXPECT_EQ(attention_piece(8, 25, 1024), 8);
  EXPECT_EQ(attention_piece(1, 64, 8192), 1) << "one sequence, however large";
  for (const std::int64_t B : {1, 7, 22, 60}) EXPECT_EQ(B % attention_piece(B, 16, 1024), 0) << B;
}

}  // namespace
}  // namespace shoal::cuda::cudnn
