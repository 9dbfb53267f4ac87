// Programs that are named as an mpirun.
#include "launch/mpirun.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include "data/temp_folder.h"

namespace shoal::test {
namespace {

TEST(FindMpirun, NamesOneThatHangs) {
  const TempFolder folder;
  const auto program = folder.write("mpirun", "#!/bin/sh\nexec sleep 60\n").string();
  ::chmod(program.c_str(), 0755);
  EXPECT_EQ(user_error([&] { find_mpirun(program, 0.1); }),
            "`" + program +
                " --version` has not ended within 100 ms; repair it, or name another with --mpirun PROGRAM");
}

}  // namespace
}  // namespace shoal::test
