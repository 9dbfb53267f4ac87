// Runs the tests of the cuda backend if there is a GPU, and says why if there is not. It is one program,
// since every process that uses a GPU takes a second to start.
#include <gtest/gtest.h>

#include <iostream>

#include "ops/cuda/cuda.h"

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  if (const auto why = shoal::no_cuda_device(); !why.empty()) {
    constexpr int kSkipped = 77;
    std::cout << "[  SKIPPED ] the cuda backend's tests: " << why << '\n';
    return kSkipped;
  }
  return RUN_ALL_TESTS();
}
