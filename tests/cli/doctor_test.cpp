#include "cli/run.h"

namespace shoal::test {
namespace {

using testing::ContainsRegex;
using testing::HasSubstr;

TEST(Doctor, SaysWhatMachineAndBuildHave) {
  const auto result = run({"doctor"});
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_EQ(result.err, "");
#ifdef __x86_64__
  EXPECT_THAT(result.out, ContainsRegex("AVX2 +(yes|no) +(yes|no)"));
  EXPECT_THAT(result.out, ContainsRegex("AVX512_BF16 +(yes|no) +(yes|no)"));
#endif
  EXPECT_THAT(result.out, ContainsRegex("cores +[1-9]"));
  EXPECT_THAT(result.out, ContainsRegex("float32 +[1-9][0-9]* GFLOP/s"));
  EXPECT_THAT(result.out, ContainsRegex("bfloat16 +[1-9][0-9]* GFLOP/s"));
  EXPECT_THAT(result.out, ContainsRegex("reading memory +[0-9.]+ GB/s"));
  for (const char* library : {"oneDNN", "OpenMP", "libarchive", "libcurl", "utf8proc", "xxHash", "protobuf",
                              "toml[+][+]", "nlohmann-json", "CLI11", "fmt", "spdlog"}) {
    EXPECT_THAT(result.out, ContainsRegex(std::string(library) + " +[0-9]+")) << library;
  }
  EXPECT_THAT(result.out, ContainsRegex("threads +yes .*--ranks N"));
  EXPECT_THAT(result.out, ContainsRegex("Open MPI +(yes .*mpirun|no .*install libopenmpi-dev)"));
  EXPECT_THAT(result.out, ContainsRegex("MPICH +(yes .*mpirun|no .*install libmpich-dev)"));
  EXPECT_THAT(result.out, ContainsRegex("CUDA +(- +not in this build: GPUs|[-0-9.]+ +GPUs)"));
  // This build uses only instruction sets that the machine has, or it could not have started.
  EXPECT_THAT(result.out, testing::Not(ContainsRegex("\n  A[A-Z0-9_/-]+ +no +yes")));
}

}  // namespace
}  // namespace shoal::test
