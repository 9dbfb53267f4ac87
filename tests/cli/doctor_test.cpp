#include "cli/tiny_runs.h"
#include "core/cores.h"

namespace shoal::test {
namespace {

using testing::ContainsRegex;
using testing::HasSubstr;

TEST(Doctor, SaysWhatMachineAndBuildHave) {
  const auto result = run({"doctor"});
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_EQ(result.err, "");
  EXPECT_THAT(result.out, ContainsRegex("kernels +(x86-64-v2|avx|amx|native)"));
  EXPECT_THAT(result.out, ContainsRegex("cores +[1-9]"));
  if (cache_bytes(1) > 0) {
    EXPECT_THAT(result.out, ContainsRegex("caches +L1 [1-9][0-9.]* KiB"));
  }
  EXPECT_THAT(result.out, ContainsRegex("float32, GFLOP/s +[1-9][0-9]*.*\n +in a product +[1-9]"));
  EXPECT_THAT(result.out, ContainsRegex("bfloat16, GFLOP/s +[1-9][0-9]*.*\n +in a product +[1-9]"));
  EXPECT_THAT(result.out, ContainsRegex("memory read, GB/s +[0-9.]+"));
  EXPECT_THAT(result.out, ContainsRegex("between cores, ns +-( +[1-9][0-9]*)*\n"));
  for (const char* library : {"libarchive", "zlib", "libcurl", "utf8proc", "xxHash", "protobuf",
                              "toml[+][+]", "nlohmann-json", "CLI11", "fmt", "spdlog"}) {
    EXPECT_THAT(result.out, ContainsRegex(std::string(library) + " +[0-9]+")) << library;
  }
  EXPECT_THAT(result.out, ContainsRegex("threads +yes .*--ranks N"));
  EXPECT_THAT(result.out, ContainsRegex("Open MPI +(yes .*mpirun|no .*install libopenmpi-dev)"));
  EXPECT_THAT(result.out, ContainsRegex("MPICH +(yes .*: mpiexec.hydra -n N|no .*install libmpich-dev)"));
  EXPECT_THAT(result.out, ContainsRegex("CUDA +(- +not in this build: GPUs|[-0-9.]+ +GPUs)"));
}

#ifdef __x86_64__
TEST(Doctor, TakesTheLevelThatIsAskedFor) {
  const Process low({"doctor"}, ".",
                    {"SHOAL_ISA=x86-64-v2"});  // not until it has measured speeds, which takes long
  EXPECT_TRUE(eventually([&] {
    return testing::Matches(ContainsRegex("kernels +x86-64-v2"))(low.out_so_far());
  })) << low.out_so_far();
  const auto wrong = run({"doctor"}, ".", {"SHOAL_ISA=sse9"});
  EXPECT_EQ(wrong.code, 2);
  EXPECT_EQ(wrong.out, "");
  EXPECT_THAT(wrong.err, HasSubstr("the variable SHOAL_ISA is \"sse9\", which is none of x86-64-v2, avx2"));
}
#endif

}  // namespace
}  // namespace shoal::test
