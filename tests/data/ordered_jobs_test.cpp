#include "data/ordered_jobs.h"

#include <gtest/gtest.h>

#include <numeric>
#include <stdexcept>

namespace shoal {
namespace {

struct Numbers {
  std::vector<int> of;
  std::size_t size = 0;  // pretended size
  std::size_t bytes() const { return size; }
};

// Job i makes i % 5 chunks of one number each.
std::vector<int> run(int threads, int jobs, std::size_t bytes, std::size_t weight) {
  std::vector<int> result;
  OrderedJobs<Numbers> work(threads, [&](Numbers&& chunk) { result.push_back(chunk.of.at(0)); });
  for (int i = 0; i < jobs; ++i) {
    work.submit(
        [i, bytes](const auto& emit) {
          for (int k = 0; k < i % 5; ++k) emit({{10 * i + k}, bytes});
        },
        weight);
  }
  work.finish();
  return result;
}

TEST(OrderedJobs, ChunksComeInTheOrderOfTheJobs) {
  std::vector<int> expected;
  for (int i = 0; i < 500; ++i) {
    for (int k = 0; k < i % 5; ++k) expected.push_back(10 * i + k);
  }
  for (const int threads : {1, 2, 7}) {
    EXPECT_EQ(run(threads, 500, 1, 1), expected) << threads;
    // Each chunk and each job exceeds the limit of waiting data: they run one after another, and none waits
    // forever.
    EXPECT_EQ(run(threads, 500, std::size_t{1} << 30, std::size_t{1} << 30), expected) << threads;
  }
}

TEST(OrderedJobs, AnErrorComesAfterWhatWasBefore) {
  std::vector<int> consumed;
  OrderedJobs<Numbers> work(3, [&](Numbers&& chunk) { consumed.push_back(chunk.of.at(0)); });
  const auto feed = [&] {
    for (int i = 0; i < 100; ++i) {
      work.submit(
          [i](const auto& emit) {
            emit({{i}, 1});
            if (i == 20) throw std::runtime_error("twenty");
          },
          1);
    }
    work.finish();
  };
  EXPECT_THROW(feed(), std::runtime_error);
  std::vector<int> expected(21);
  std::iota(expected.begin(), expected.end(), 0);
  EXPECT_EQ(consumed, expected);
}

TEST(OrderedJobs, WhatIsUnderWayIsDropped) {
  for (int round = 0; round < 50; ++round) {
    OrderedJobs<Numbers> work(4, [](Numbers&&) {});
    for (int i = 0; i < 8; ++i) {
      work.submit(
          [](const auto& emit) {
            for (;;) emit({{1}, 1 << 20});
          },
          1);
    }
  }
}

}  // namespace
}  // namespace shoal
