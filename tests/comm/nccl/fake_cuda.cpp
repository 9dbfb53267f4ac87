// The functions of CUDA's runtime that src/comm/nccl calls.
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>

#include "comm/nccl/fake.h"
#include "comm/nccl/kernels.h"
#include "core/dtype.h"
#include "ops/cuda/emulated/stream.h"

namespace {

// A thread that runs its tasks in order.
struct ThreadStream final : CUstream_st {
  std::mutex mutex;
  std::condition_variable changed;
  std::deque<std::function<void()>> tasks;
  bool closing = false;
  std::thread thread{[this] { run(); }};

  ~ThreadStream() override {
    {
      const std::lock_guard lock(mutex);
      closing = true;
      changed.notify_one();
    }
    thread.join();
  }
  void queue(std::function<void()> task) {
    const std::lock_guard lock(mutex);
    tasks.push_back(std::move(task));
    changed.notify_one();
  }
  void finish() override {}

  void run() {
    std::unique_lock lock(mutex);
    while (true) {
      changed.wait(lock, [&] { return closing || !tasks.empty(); });
      if (tasks.empty()) return;
      auto task = std::move(tasks.front());
      tasks.pop_front();
      lock.unlock();
      task();
      lock.lock();
    }
  }
};

struct Flag {
  std::mutex mutex;
  std::condition_variable changed;
  bool set = false;

  void raise() {
    const std::lock_guard lock(mutex);
    set = true;
    changed.notify_all();
  }
  void wait() {
    std::unique_lock lock(mutex);
    changed.wait(lock, [&] { return set; });
  }
  bool is_set() {
    const std::lock_guard lock(mutex);
    return set;
  }
};

thread_local int device = -1;

}  // namespace

struct CUevent_st {
  std::shared_ptr<Flag> flag;  // set by the last record
};

namespace shoal::emulated {

void enqueue(cudaStream_t stream, std::function<void()> task) {
  if (auto* ours = dynamic_cast<ThreadStream*>(stream)) return ours->queue(std::move(task));
  if (stream) stream->finish();
  task();
}

int current_device() { return device; }

}  // namespace shoal::emulated

using shoal::emulated::enqueue;
using shoal::emulated::moved;

extern "C" {

cudaError_t cudaSetDevice(int number) { return device = number, cudaSuccess; }
cudaError_t cudaGetLastError() { return cudaSuccess; }
const char* cudaGetErrorString(cudaError_t) { return "emulated"; }
const char* cudaGetErrorName(cudaError_t) { return "emulated"; }

cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  return *least = *greatest = 0, cudaSuccess;
}
cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned, int) {
  return *stream = new ThreadStream, cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) { return delete stream, cudaSuccess; }

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) {
  return *event = new CUevent_st, cudaSuccess;
}
cudaError_t cudaEventDestroy(cudaEvent_t event) { return delete event, cudaSuccess; }
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  event->flag = std::make_shared<Flag>();
  enqueue(stream, [flag = event->flag] { flag->raise(); });
  return cudaSuccess;
}
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  if (event->flag) enqueue(stream, [flag = event->flag] { flag->wait(); });
  return cudaSuccess;
}
cudaError_t cudaEventQuery(cudaEvent_t event) {
  return !event->flag || event->flag->is_set() ? cudaSuccess : cudaErrorNotReady;
}

cudaError_t cudaMalloc(void** memory, std::size_t bytes) {
  void* near = std::aligned_alloc(256, (bytes + 255) / 256 * 256);
  std::memset(near, 0xff, bytes);
  return *memory = moved(near), cudaSuccess;
}
cudaError_t cudaFree(void* memory) { return std::free(moved(memory)), cudaSuccess; }
cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes, const void* data) {
  *attributes = {};
  attributes->type = shoal::emulated::is_far(data) ? cudaMemoryTypeDevice : cudaMemoryTypeUnregistered;
  return cudaSuccess;
}

// Only one kernel exists, add_parts.
cudaError_t cudaLaunchKernel(const void* function, dim3 grid, dim3 block, void** arguments, std::size_t,
                             cudaStream_t stream) {
  using shoal::bfloat16;
  using Kernel = void (*)(bfloat16*, const bfloat16*, const bfloat16*, int, int, std::int64_t);
  const auto kernel = reinterpret_cast<Kernel>(const_cast<void*>(function));
  auto* out = moved(*static_cast<bfloat16**>(arguments[0]));
  const auto* own = moved(*static_cast<const bfloat16**>(arguments[1]));
  const auto* others = moved(*static_cast<const bfloat16**>(arguments[2]));
  const int rank = *static_cast<int*>(arguments[3]), ranks = *static_cast<int*>(arguments[4]);
  const auto count = *static_cast<std::int64_t*>(arguments[5]);
  enqueue(stream, [=] {
    shoal::emulated::gridDim = grid;
    shoal::emulated::blockDim = block;
    for (unsigned b = 0; b < grid.x; ++b) {
      for (unsigned t = 0; t < block.x; ++t) {
        shoal::emulated::blockIdx = {b, 0, 0};
        shoal::emulated::threadIdx = {t, 0, 0};
        kernel(out, own, others, rank, ranks, count);
      }
    }
  });
  return cudaSuccess;
}

}  // extern "C"
