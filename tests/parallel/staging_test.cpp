// Collectives on device memory.
#include "parallel/staging.h"

#include <gtest/gtest.h>

#include <cstring>

#include "comm/conformance.h"
#include "ops/dry/dry_backend.h"

namespace shoal::test {
namespace {

// Reports all memory as device memory.
class DeviceMemory final : public DryBackend {
 public:
  bool is_device_memory(const void*) const override { return true; }
  void convert(const Tensor& out, const Tensor& x) override { std::memcpy(out.data, x.data, x.bytes()); }
  void copy_to_host(void* host, const Tensor& from) override { std::memcpy(host, from.data, from.bytes()); }
  void copy_from_host(const Tensor& to, const void* host) override { std::memcpy(to.data, host, to.bytes()); }
};

class Staging : public testing::TestWithParam<Check> {};

TEST_P(Staging, Conforms) {
  for (const int ranks : {1, 2, 4}) {
    run_threads({.ranks = ranks, .deadline_seconds = 60}, [&](World& world) {
      DeviceMemory backend;
      const auto staging = make_staging_communicator(backend, world.ranks);
      World staged{*staging, world.local_rank, world.local_size, world.cores, world.where};
      GetParam().run(staged, 64 << 10);
    });
  }
}

INSTANTIATE_TEST_SUITE_P(, Staging, testing::ValuesIn(kChecks),
                         [](const auto& test) { return std::string(test.param.name); });

}  // namespace
}  // namespace shoal::test
