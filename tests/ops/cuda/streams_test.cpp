// The cuda backend's streams order their work by events. On the emulated GPU, whose streams are as late as
// they may be, a missing event changes the results.
#include <gmock/gmock.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <vector>

#include "ops/conformance.h"

namespace shoal::test {
namespace {

using Stream = Device::Stream;

class CudaStreams : public testing::Test {
 protected:
  static constexpr std::int64_t kCount = 1000;

  struct PinnedValues {
    Backend& backend;
    float* data = static_cast<float*>(backend.allocate_host(kCount * sizeof(float)));
    explicit PinnedValues(Backend& of) : backend(of) {}
    PinnedValues(const PinnedValues&) = delete;
    PinnedValues& operator=(const PinnedValues&) = delete;
    ~PinnedValues() { backend.release_host(data, kCount * sizeof(float)); }
  };

  std::shared_ptr<Backend> backend_ = backend_under_test(1);
  Side side_{*backend_, DType::f32};
};

// Pieces pass through one buffer: in, doubled, out, as the state that rests on the host does.
TEST_F(CudaStreams, EventsOrderThem) {
  const Buffer buffer = side_.full({kCount});
  const PinnedValues in(*backend_), first(*backend_), second(*backend_), third(*backend_);
  const std::array outs{first.data, second.data, third.data};
  const auto copied_in = backend_->make_event(), computed = backend_->make_event(),
             copied_out = backend_->make_event();
  for (int piece = 1; piece <= 3; ++piece) {
    backend_->synchronize(*copied_in);
    std::fill_n(in.data, kCount, static_cast<float>(piece));
    backend_->wait(Stream::copy_in, *copied_out);
    backend_->copy_in(buffer, in.data);
    backend_->record(*copied_in, Stream::copy_in);
    backend_->wait(Stream::kernels, *copied_in);
    backend_->scale(buffer, buffer, 2.0f);
    backend_->record(*computed, Stream::kernels);
    backend_->wait(Stream::copy_out, *computed);
    backend_->copy_out(outs[static_cast<std::size_t>(piece - 1)], buffer);
    backend_->record(*copied_out, Stream::copy_out);
  }
  backend_->synchronize(*copied_out);
  for (int piece = 1; piece <= 3; ++piece) {
    const float* out = outs[static_cast<std::size_t>(piece - 1)];
    EXPECT_THAT(std::vector<float>(out, out + kCount), testing::Each(2.0f * static_cast<float>(piece)));
  }
}

// A row that, with the kernel's own arrays, just exceeds the shared memory that a block has without asking.
TEST_F(CudaStreams, SharedMemoryIsAskedFor) {
  const std::int64_t R = 2, V = 24512;
  const Side side{*backend_, DType::bf16};
  const Buffer logits = side.compute({R, V}), targets = side.ints({R}), losses = side.full({R}),
               maximum = side.full({R}), sum = side.full({R}), target = side.full({R}),
               argmax = side.ints({R});
  backend_->cross_entropy_train({.logits = logits,
                                 .targets = targets,
                                 .valid = V,
                                 .maximum = maximum,
                                 .exp_sum = sum,
                                 .target_logit = target,
                                 .argmax = argmax,
                                 .losses = losses,
                                 .dlogits = logits,
                                 .scale = 1.0f});
  EXPECT_NEAR(losses.values()[0], std::log(static_cast<double>(V)), 1e-4);
}

}  // namespace
}  // namespace shoal::test
