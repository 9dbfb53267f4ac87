// NCCL groups over an emulation of NCCL and of GPUs: ranks are threads with a GPU each.
#include "comm/nccl/nccl.h"

#include <gmock/gmock.h>

#include <atomic>
#include <cstdlib>
#include <cstring>

#include "comm/conformance.h"
#include "core/clock.h"
#include "ops/dry/dry_backend.h"
#include "parallel/staging.h"
#include "parallel/transports.h"

#ifdef SHOAL_EMULATED_NCCL

namespace shoal::test {
namespace {

using testing::AllOf;
using testing::AnyOf;
using testing::HasSubstr;

constexpr double kNcclSoon = 8;  // seconds within which all ranks of a failed run have ended

// Converts addresses to emulated GPU memory, as in tests/comm/nccl.
template <typename T>
T* moved(T* data) {
  return reinterpret_cast<T*>(reinterpret_cast<std::uintptr_t>(data) ^ std::uintptr_t{1} << 62);
}
Tensor moved(const Tensor& x) { return {x.data ? moved(x.data) : nullptr, x.dtype, x.shape}; }

// Accesses the memory at such addresses.
class GpuMemory final : public DryBackend {
 public:
  bool is_device_memory(const void* data) const override {
    return reinterpret_cast<std::uintptr_t>(data) >> 62 == 1;
  }
  void convert(const Tensor& out, const Tensor& x) override {
    std::memcpy(moved(out.data), moved(x.data), x.bytes());
  }
  void copy_to_host(void* host, const Tensor& from) override {
    std::memcpy(host, moved(from.data), from.bytes());
  }
  void copy_from_host(const Tensor& to, const void* host) override {
    std::memcpy(moved(to.data), host, to.bytes());
  }
};

// Presents every tensor as one in GPU memory.
class OnGpu final : public Communicator {
 public:
  explicit OnGpu(std::unique_ptr<Communicator> inner) : inner_(std::move(inner)) {}
  std::string_view name() const override { return inner_->name(); }
  int rank() const override { return inner_->rank(); }
  int size() const override { return inner_->size(); }
  Request all_reduce(const Tensor& x, ReduceOp op) override { return inner().all_reduce(moved(x), op); }
  Request reduce_scatter(const Tensor& out, const Tensor& x, ReduceOp op) override {
    return inner().reduce_scatter(moved(out), moved(x), op);
  }
  Request all_gather(const Tensor& out, const Tensor& x) override {
    return inner().all_gather(moved(out), moved(x));
  }
  Request all_to_all(const Tensor& out, const Tensor& x) override {
    return inner().all_to_all(moved(out), moved(x));
  }
  Request broadcast(const Tensor& x, int root) override { return inner().broadcast(moved(x), root); }
  Request send(const Tensor& x, int to) override { return inner().send(moved(x), to); }
  Request receive(const Tensor& x, int from) override { return inner().receive(moved(x), from); }
  void barrier() override { inner().barrier(); }
  void expect_messages(int to, int from) override { inner().expect_messages(to, from); }
  void abandon() noexcept override { inner_->abandon(); }
  std::unique_ptr<Communicator> split(const SplitKeys& keys) override {
    return std::make_unique<OnGpu>(inner().split(keys));
  }

 private:
  Communicator& inner() {
    inner_->set_purpose(purpose_);
    return *inner_;
  }
  std::unique_ptr<Communicator> inner_;
};

// Calls body on ranks with a GPU each, or all with the same one, bootstrapped over this transport.
void run_on_gpus(const WorldOptions& options, const RankBody& body, Transport transport = Transport::threads,
                 bool one_gpu = false) {
  ::setenv("SHOAL_NCCL_MODULE", SHOAL_EMULATED_NCCL, 1);
  ASSERT_EQ(no_nccl(), "");
  run_over(transport, options, [&](World& world) {
    GpuMemory memory;
    const int gpu = one_gpu ? 0 : world.ranks.rank();
    OnGpu ranks(make_nccl_communicator(make_staging_communicator(memory, world.ranks), gpu, nullptr));
    const int size = ranks.size(), rank = ranks.rank();
    ranks.expect_messages((rank + 1) % size, (rank + size - 1) % size);
    World on_gpu{ranks, world.local_rank, world.local_size, world.cores, world.where};
    body(on_gpu);
  });
}

// All checks but one: a group's first collective blocks the host until all members call it, while they wait
// for others.
std::vector<Check> checks() {
  std::vector<Check> checks(std::begin(kChecks), std::end(kChecks));
  std::erase_if(checks, [](const Check& check) { return std::string_view(check.name) == "LateRank"; });
  return checks;
}

struct Ranks {
  int count;
  Transport transport = Transport::threads;
};

class Nccl : public testing::TestWithParam<std::tuple<Ranks, Check>> {};

TEST_P(Nccl, Conforms) {
  const auto& [ranks, check] = GetParam();
  run_on_gpus(
      {.ranks = ranks.count, .deadline_seconds = 60},
      [&](World& world) {
        EXPECT_EQ(world.ranks.name(), "nccl");
        check.run(world, 4 << 10);
      },
      ranks.transport);
}

INSTANTIATE_TEST_SUITE_P(, Nccl,
                         testing::Combine(testing::Values(Ranks{1}, Ranks{2}, Ranks{3}, Ranks{4},
                                                          Ranks{3, Transport::mpi}),
                                          testing::ValuesIn(checks())),
                         [](const auto& test) {
                           const auto& ranks = std::get<0>(test.param);
                           return fmt::format("{}On{}Over{}", std::get<1>(test.param).name, ranks.count,
                                              name_of(ranks.transport));
                         });

// Messages in the direction of a ring that was not announced go through the host.
TEST(NcclMessages, UnannouncedOnesGoToo) {
  run_on_gpus({.ranks = 4}, [](World& world) {
    auto& group = world.ranks;
    const int across = group.rank() ^ 2;
    GuardedValues sent(DType::f32, 100), got(DType::f32, 100);
    sent.fill([&](std::int64_t i) { return value_of(group.rank(), i); });
    auto sending = group.send(sent.tensor(), across);
    group.receive(got.tensor(), across).wait();
    sending.wait();
    got.expect("message", [&](std::int64_t i) { return value_of(across, i); });
  });
}

// The error that a run of `body` throws; checks that it ends soon.
template <typename Failure = Error>
std::string failure_of(Transport transport, const WorldOptions& options, const RankBody& body,
                       bool one_gpu = false) {
  const Stopwatch watch;
  std::string text = "nothing was thrown";
  try {
    run_on_gpus(options, body, transport, one_gpu);
  } catch (const Error& error) {
    text = error.what();
    EXPECT_EQ(typeid(error), typeid(Failure)) << text;
  }
  EXPECT_LT(watch.seconds(), kNcclSoon);
  return text;
}

class FailingNccl : public testing::TestWithParam<Transport> {};

TEST_P(FailingNccl, ARankThatThrowsStopsAll) {
  for (const auto& [ranks, connected] : {std::pair{2, true}, {4, false}}) {
    std::atomic<int> stopped = 0;
    const auto text = failure_of<UserError>(GetParam(), {.ranks = ranks}, [&](World& world) {
      GuardedValues x(DType::f32, 10);
      if (connected) world.ranks.all_reduce(x.tensor()).wait();
      try {
        fail_while_others_wait(world);
      } catch (const StoppedByPeer&) {
        ++stopped;
        throw;
      }
    });
    EXPECT_EQ(text, fmt::format("rank {}: the disk is full", ranks - 1));
    EXPECT_EQ(stopped, ranks - 1);
  }
}

// A rank with a running collective that never ends.
TEST_P(FailingNccl, ARankThatUnwindsAbandonsWhatItHasBegun) {
  const auto text = failure_of<UserError>(GetParam(), {.ranks = 2}, [](World& world) {
    auto& group = world.ranks;
    GuardedValues x(DType::f32, 1000), y(DType::f32, 1000);
    group.all_reduce(x.tensor()).wait();
    if (group.rank() == 0) {
      const auto begun = group.all_reduce(y.tensor());
      fail_user("the disk is full");
    }
    for (;;) std::this_thread::sleep_for(std::chrono::milliseconds(10)), group.barrier();
  });
  EXPECT_EQ(text, "rank 0: the disk is full");
}

TEST_P(FailingNccl, ADeadlineNamesWhatAndWhom) {
  for (const bool connected : {true, false}) {
    const auto text = failure_of(GetParam(), {.ranks = 3, .deadline_seconds = 0.3}, [&](World& world) {
      GuardedValues x(DType::f32, 10);
      if (connected) world.ranks.all_reduce(x.tensor()).wait();
      miss_deadline(world, 0.3);
    });
    EXPECT_THAT(text, AnyOf(HasSubstr("all_reduce (sum) of 100000 float32 [step 12, gradients of block.3] "
                                      "waited 0.3 seconds for one of ranks "),
                            // The ids are exchanged on the host.
                            HasSubstr("[step 12, gradients of block.3] waited 0.3 seconds for rank 2")));
    EXPECT_TRUE(!connected || text.find("for one of ranks") != std::string::npos) << text;
  }
}

TEST_P(FailingNccl, ADeadlineOfAMessageNamesItsPeer) {
  const auto text = failure_of(GetParam(), {.ranks = 3, .deadline_seconds = 0.3}, [](World& world) {
    auto& group = world.ranks;
    GuardedValues x(DType::bf16, 64);
    group.set_purpose("input of micro-batch 3");
    if (group.rank() == 1) group.receive(x.tensor(), 0).wait();
    std::this_thread::sleep_for(std::chrono::seconds(1));
    group.barrier();
  });
  EXPECT_EQ(text, "rank 1: receive of 64 bfloat16 [input of micro-batch 3] waited 0.3 seconds for rank 0");
}

TEST(RefusingNccl, IsHeard) {
  const auto twice = failure_of(
      Transport::threads, {.ranks = 2}, [](World&) {}, true);
  EXPECT_THAT(twice, AllOf(HasSubstr("NCCL"), HasSubstr("Duplicate GPU")));
  const auto mixed = failure_of(Transport::threads, {.ranks = 2}, [](World& world) {
    GuardedValues x(DType::f32, 100 + world.ranks.rank());
    world.ranks.all_reduce(x.tensor()).wait();
  });
  EXPECT_THAT(mixed, AllOf(HasSubstr("all_reduce (sum) of 10"), HasSubstr("different collectives")));
}

INSTANTIATE_TEST_SUITE_P(, FailingNccl, testing::Values(Transport::threads, Transport::mpi),
                         [](const auto& test) { return std::string(name_of(test.param)); });

}  // namespace
}  // namespace shoal::test

#endif
