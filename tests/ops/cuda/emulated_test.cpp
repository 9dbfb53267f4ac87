// The emulated GPU finds faults of kernels and calls that a GPU may hide.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <vector>

#include "ops/cuda/emulated/failure.h"
#include "ops/cuda/gpu.cuh"
#include "ops/cuda/memory.h"

namespace shoal::cuda {
namespace {

constexpr int kThreads = 64;

// Every thread takes the value of the one before it.
template <bool kBarrier>
void neighbours_kernel(float* out) {
  __shared__ float values[kThreads];
  values[threadIdx.x] = static_cast<float>(threadIdx.x);
  if (kBarrier) __syncthreads();
  out[threadIdx.x] = values[threadIdx.x == 0 ? 0 : threadIdx.x - 1];
}
void blocks_kernel(int* out) { out[0] = static_cast<int>(blockIdx.x); }
void count_kernel(int* out) { emulated::add_atomically(out, 1); }
void read_kernel(float* out, const float* x, int at) { *out = x[at]; }
void write_kernel(float* x, int at) { x[at] = 1; }
void shared_kernel(float* out, int at) { *out = dynamic_shared<float>()[at]; }
void set_kernel(float* x, float value) { *x = value; }
void lonely_kernel() {
  if (threadIdx.x < kWarp) shuffle_xor(threadIdx.x, 1);
  if (threadIdx.x == 0) shuffle_xor(threadIdx.x, 1);
}

class EmulatedGpu : public testing::Test {
 protected:
  ~EmulatedGpu() override {
    for (const char* name : {"SHOAL_EMULATED_ORDER", "SHOAL_EMULATED_GUARD", "SHOAL_EMULATED_RACES"}) {
      ::unsetenv(name);
    }
  }
  static void set(const char* name, int value) { ::setenv(name, std::to_string(value).c_str(), 1); }
  template <typename T>
  static T* device(const Memory& memory) {
    return static_cast<T*>(memory.get());
  }
  template <typename T>
  std::vector<T> copied(const Memory& from, std::size_t count) {
    std::vector<T> to(count);
    check(cudaMemcpyAsync(to.data(), from.get(), count * sizeof(T), cudaMemcpyDeviceToHost, stream_.get()));
    return to;
  }

  GpuStream stream_ = make_gpu_stream();
};

class EmulatedGpuDeath : public EmulatedGpu {
 protected:
  // The message of a failure. A failure stays, so it happens to a child.
  template <typename Work>
  void expect_failure(const std::string& message, const Work& work) {
    EXPECT_EXIT(
        {
          work();
          std::_Exit(cudaStreamSynchronize(stream_.get()) == cudaSuccess ? 0 : 1);
        },
        testing::ExitedWithCode(1), testing::HasSubstr(message));
  }
};

TEST_F(EmulatedGpu, AnotherOrderShowsAMissingBarrier) {
  const Memory out = take_memory(kThreads * sizeof(float));
  const auto run = [&](auto kernel, int seed) {
    set("SHOAL_EMULATED_ORDER", seed);
    launch(kernel, 1, kThreads, 0, stream_.get(), device<float>(out));
    return copied<std::uint32_t>(out, kThreads);
  };
  const auto expected = run(neighbours_kernel<true>, 0);
  EXPECT_EQ(run(neighbours_kernel<false>, 0), expected) << "in order it is hidden";
  EXPECT_NE(run(neighbours_kernel<false>, 1), expected);
  for (const int seed : {1, 2, 3}) EXPECT_EQ(run(neighbours_kernel<true>, seed), expected);
}

TEST_F(EmulatedGpu, BlocksHaveAnotherOrder) {
  const Memory out = take_memory(sizeof(int));
  std::vector<int> last;
  for (const int seed : {0, 1, 2, 3}) {
    set("SHOAL_EMULATED_ORDER", seed);
    launch(blocks_kernel, 100, 1, 0, stream_.get(), device<int>(out));
    last.push_back(copied<int>(out, 1)[0]);
  }
  EXPECT_EQ(last[0], 99);
  EXPECT_THAT(last, testing::Contains(testing::Ne(99)));
}

TEST_F(EmulatedGpuDeath, AReadPastTheEnd) {
  const Memory x = take_memory(1004 * sizeof(float)), out = take_memory(sizeof(float));
  expect_failure(
      "the kernel read_kernel, thread 0 of block (0, 0, 0), reads 0 bytes past the end of 4016 bytes of GPU",
      [&] { launch(read_kernel, 1, 1, 0, stream_.get(), device<float>(out), device<float>(x), 1004); });
}

TEST_F(EmulatedGpuDeath, AWritePastAnEndThatIsNotAligned) {
  Memory x = take_memory(1003 * sizeof(float));
  expect_failure("something wrote past the end of 4012 bytes of GPU memory", [&] {
    launch(write_kernel, 1, 1, 0, stream_.get(), device<float>(x), 1003);
    x.reset();
  });
}

TEST_F(EmulatedGpuDeath, AnAccessBeforeTheBegin) {
  ::setenv("SHOAL_EMULATED_GUARD", "begin", 1);
  const Memory x = take_memory(64);
  expect_failure("4 bytes before 64 bytes of GPU memory",
                 [&] { launch(write_kernel, 1, 1, 0, stream_.get(), device<float>(x), -1); });
}

TEST_F(EmulatedGpuDeath, AccessesToSharedAndFreedMemory) {
  Memory out = take_memory(sizeof(float));
  expect_failure(
      "shared_kernel, thread 0 of block (0, 0, 0), reads 0 bytes past the end of 256 bytes of shared",
      [&] { launch(shared_kernel, 1, 1, 256, stream_.get(), device<float>(out), 64); });
  expect_failure("writes GPU memory that was freed", [&] {
    auto* freed = device<float>(out);
    out.reset();
    launch(set_kernel, 1, 1, 0, stream_.get(), freed, 1.0f);
  });
  expect_failure("a copy reads 0 bytes past the end of 16 bytes of GPU memory", [&] {
    const Memory small = take_memory(16);
    float to[5];
    cudaMemcpyAsync(to, small.get(), sizeof to, cudaMemcpyDeviceToHost, stream_.get());
  });
}

TEST_F(EmulatedGpuDeath, ADeadlock) {
  expect_failure("the kernel lonely_kernel", [&] { launch(lonely_kernel, 1, kThreads, 0, stream_.get()); });
}

TEST_F(EmulatedGpu, WorkIsLate) {
  const Memory x = take_memory(sizeof(float));
  const Pinned host = take_pinned(sizeof(float));
  auto* value = static_cast<float*>(host.get());
  const GpuStream other = make_gpu_stream();
  const GpuEvent event = make_gpu_event();
  const auto copy_back = [&](cudaStream_t stream) {
    check(cudaMemcpyAsync(value, x.get(), sizeof(float), cudaMemcpyDeviceToHost, stream));
  };
  launch(set_kernel, 1, 1, 0, stream_.get(), device<float>(x), 1.0f);
  copy_back(stream_.get());
  EXPECT_EQ(*value, 0.0f) << "the host has not waited";
  check(cudaStreamSynchronize(stream_.get()));
  EXPECT_EQ(*value, 1.0f);

  launch(set_kernel, 1, 1, 0, stream_.get(), device<float>(x), 2.0f);
  check(cudaEventRecord(event.get(), stream_.get()));
  copy_back(other.get());
  check(cudaStreamSynchronize(other.get()));
  EXPECT_EQ(*value, 1.0f) << "the stream has not waited";
  check(cudaStreamWaitEvent(other.get(), event.get(), 0));
  copy_back(other.get());
  check(cudaStreamSynchronize(other.get()));
  EXPECT_EQ(*value, 2.0f);

  // Pinned memory is read when the copy runs.
  *value = 3;
  check(cudaMemcpyAsync(x.get(), value, sizeof(float), cudaMemcpyHostToDevice, stream_.get()));
  *value = 4;
  EXPECT_EQ(copied<float>(x, 1)[0], 4.0f);
}

TEST_F(EmulatedGpu, ACaptureRefusesWhatWaits) {
  const Memory x = take_memory(sizeof(float));
  const GpuEvent event = make_gpu_event(), outside = make_gpu_event();
  const GpuStream other = make_gpu_stream();
  check(cudaEventRecord(outside.get(), other.get()));
  float host = 0;
  cudaGraph_t graph = nullptr;
  const auto status_of = [&](const auto& call) {
    check(cudaStreamBeginCapture(stream_.get(), cudaStreamCaptureModeRelaxed));
    check(cudaEventRecord(event.get(), stream_.get()));
    const cudaError_t status = call();
    EXPECT_EQ(cudaStreamEndCapture(stream_.get(), &graph), cudaErrorStreamCaptureInvalidated);
    return status;
  };
  EXPECT_EQ(status_of([&] { return cudaStreamSynchronize(stream_.get()); }),
            cudaErrorStreamCaptureUnsupported);
  EXPECT_EQ(status_of([&] { return cudaDeviceSynchronize(); }), cudaErrorStreamCaptureUnsupported);
  EXPECT_EQ(status_of([&] { return cudaMemcpy(&host, x.get(), 4, cudaMemcpyDeviceToHost); }),
            cudaErrorStreamCaptureUnsupported);
  EXPECT_EQ(
      status_of([&] { return cudaMemcpyAsync(&host, x.get(), 4, cudaMemcpyDeviceToHost, stream_.get()); }),
      cudaErrorStreamCaptureUnsupported);
  EXPECT_EQ(status_of([&] { return cudaEventSynchronize(event.get()); }), cudaErrorCapturedEvent);
  EXPECT_EQ(status_of([&] { return cudaEventQuery(event.get()); }), cudaErrorCapturedEvent);
  EXPECT_EQ(status_of([&] { return cudaStreamWaitEvent(stream_.get(), outside.get(), 0); }),
            cudaErrorStreamCaptureIsolation);

  check(cudaStreamBeginCapture(stream_.get(), cudaStreamCaptureModeRelaxed));
  const Memory grown = take_memory(16);
  check(cudaStreamSynchronize(other.get()));
  launch(set_kernel, 1, 1, 0, stream_.get(), device<float>(x), 5.0f);
  ASSERT_EQ(cudaStreamEndCapture(stream_.get(), &graph), cudaSuccess);
  cudaGraphExec_t exec = nullptr;
  check(cudaGraphInstantiate(&exec, graph, 0));
  check(cudaGraphDestroy(graph));
  check(cudaGraphLaunch(exec, stream_.get()));
  check(cudaGraphExecDestroy(exec));
  EXPECT_EQ(copied<float>(x, 1)[0], 5.0f);
}

TEST_F(EmulatedGpu, LaunchesHaveLimits) {
  const auto status_of = [&](dim3 grid, unsigned threads, std::size_t shared) {
    emulated::launch({reinterpret_cast<const void*>(&lonely_kernel), grid, threads, shared}, stream_.get(),
                     [] {});
    return cudaGetLastError();
  };
  EXPECT_EQ(status_of({1, 65536}, 32, 0), cudaErrorInvalidConfiguration);
  EXPECT_EQ(status_of(1, 1025, 0), cudaErrorInvalidConfiguration);
  EXPECT_EQ(status_of(1, 32, (48 << 10) + 1), cudaErrorInvalidValue);
  EXPECT_EQ(status_of({1, 65535}, 32, 48 << 10), cudaSuccess);
}

#ifdef SHOAL_FINDS_RACES

TEST_F(EmulatedGpuDeath, Races) {
  set("SHOAL_EMULATED_RACES", 1);
  const Memory out = take_memory(kThreads * sizeof(float));
  expect_failure("neighbours_kernel<false>: thread 1 of block 0 reads what thread 0 of block 0 wrote", [&] {
    launch(neighbours_kernel<false>, 1, kThreads, 0, stream_.get(), device<float>(out));
  });
  expect_failure("blocks_kernel: thread 0 of block 1 writes what thread 0 of block 0 wrote",
                 [&] { launch(blocks_kernel, 2, 1, 0, stream_.get(), device<int>(out)); });
}

TEST_F(EmulatedGpu, NoRaces) {
  set("SHOAL_EMULATED_RACES", 1);
  const Memory out = take_memory(kThreads * sizeof(float)), count = take_memory(sizeof(int));
  check(cudaMemsetAsync(count.get(), 0, sizeof(int), stream_.get()));
  launch(neighbours_kernel<true>, 1, kThreads, 0, stream_.get(), device<float>(out));
  launch(count_kernel, 10, kThreads, 0, stream_.get(), device<int>(count));
  EXPECT_EQ(copied<int>(count, 1)[0], 10 * kThreads);
}

#endif

}  // namespace
}  // namespace shoal::cuda
