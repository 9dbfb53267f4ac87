#include "ops/cuda/emulated/stream.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <deque>
#include <limits>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "ops/cuda/emulated/failure.h"

namespace shoal::emulated {
namespace {

struct Line;
// After the first `count` pieces of a stream's work.
struct Position {
  std::shared_ptr<Line> line;
  std::int64_t count = 0;
};
struct Work {
  std::function<void()> run;
  float milliseconds = 0;
  Position after = {};
};
// The work of a stream.
struct Line {
  std::deque<Work> waiting;
  std::int64_t queued = 0, done = 0;
  float clock = 0;
  bool eager = false;
  bool capturing = false, broken = false;
  std::vector<Work> captured;
};

// Ranks that are threads share one GPU, which does one thing at a time.
std::recursive_mutex gpu;
std::vector<std::shared_ptr<Line>> lines;

bool reached(const Position& position) { return !position.line || position.line->done >= position.count; }

// After a failure nothing runs any more.
void run(Line& line, const Work& work) {
  if (failure() == cudaSuccess) work.run();
  line.clock += work.milliseconds;
}
void run_first(Line& line) {
  const Work work = std::move(line.waiting.front());
  line.waiting.pop_front();
  run(line, work);
  ++line.done;
}
void run_eagerly() {
  for (bool any = true; any;) {
    any = false;
    for (const auto& line : lines) {
      for (; line->eager && !line->waiting.empty() && reached(line->waiting.front().after); any = true) {
        run_first(*line);
      }
    }
  }
}
void run_until(const Position& position) {
  while (!reached(position)) {
    Line& line = *position.line;
    const Position after = line.waiting.front().after;
    if (reached(after)) {
      run_first(line);
      run_eagerly();
    } else {
      run_until(after);
    }
  }
}

void append(const std::shared_ptr<Line>& line, Work work) {
  if (line->capturing) return line->captured.push_back(std::move(work));
  ++line->queued;
  line->waiting.push_back(std::move(work));
  run_eagerly();
}
Position now(const std::shared_ptr<Line>& line) { return {line, line->queued}; }

bool drawn_eager() {
  const char* given = std::getenv("SHOAL_EMULATED_ORDER");
  const auto seed = given ? std::strtoull(given, nullptr, 10) : 0;
  static std::uint64_t streams = 0;
  return seed != 0 && ((seed + streams++) * 0x9e3779b97f4a7c15u >> 40) % 2 != 0;
}

struct GpuStream final : CUstream_st {
  std::shared_ptr<Line> line = std::make_shared<Line>();

  GpuStream() {
    line->eager = drawn_eager();
    lines.push_back(line);
  }
  ~GpuStream() override {
    GpuStream::finish();
    const std::lock_guard lock(gpu);
    std::erase(lines, line);
  }
  void finish() override {
    const std::lock_guard lock(gpu);
    run_until(now(line));
  }
};

const std::shared_ptr<Line>& line_of(cudaStream_t stream) {
  static GpuStream null_stream;
  return (stream ? static_cast<GpuStream*>(stream) : &null_stream)->line;
}

bool break_capture(Line& line) {
  if (line.capturing) line.broken = true;
  return line.capturing;
}

}  // namespace

void queue(cudaStream_t stream, std::function<void()> work, float milliseconds) {
  const std::lock_guard lock(gpu);
  append(line_of(stream), {std::move(work), milliseconds});
}

bool breaks_capture(cudaStream_t stream) {
  const std::lock_guard lock(gpu);
  return break_capture(*line_of(stream));
}

bool breaks_captures() {
  const std::lock_guard lock(gpu);
  return std::count_if(lines.begin(), lines.end(), [](const auto& line) { return break_capture(*line); }) > 0;
}

void finish_all() {
  const std::lock_guard lock(gpu);
  for (std::size_t i = 0; i < lines.size(); ++i) run_until(now(lines[i]));
}

}  // namespace shoal::emulated

using namespace shoal::emulated;

struct CUevent_st {
  Position at;
  std::shared_ptr<float> time;
  std::shared_ptr<Line> captured_by;
};
struct CUgraph_st {
  std::shared_ptr<const std::vector<Work>> work;
};
struct CUgraphExec_st {
  std::shared_ptr<const std::vector<Work>> work;
};

extern "C" {

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned) {
  const std::lock_guard lock(gpu);
  return *stream = new GpuStream, failure();
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) { return delete stream, failure(); }
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  if (breaks_capture(stream)) return cudaErrorStreamCaptureUnsupported;
  const std::lock_guard lock(gpu);
  return run_until(now(line_of(stream))), failure();
}
cudaError_t cudaDeviceSynchronize() {
  if (breaks_captures()) return cudaErrorStreamCaptureUnsupported;
  return finish_all(), failure();
}

// --- events. In a capture of one stream, which is all that this emulation does, an event orders nothing, and
// neither the host nor another stream can wait for it.
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) {
  return *event = new CUevent_st, failure();
}
cudaError_t cudaEventCreate(cudaEvent_t* event) { return cudaEventCreateWithFlags(event, 0); }
cudaError_t cudaEventDestroy(cudaEvent_t event) { return delete event, failure(); }
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  const std::lock_guard lock(gpu);
  const auto& line = line_of(stream);
  if (line->capturing) return event->captured_by = line, failure();
  *event = {{}, std::make_shared<float>(std::numeric_limits<float>::quiet_NaN()), nullptr};
  append(line, {[line = line.get(), time = event->time] { *time = line->clock; }});
  return event->at = now(line), failure();
}
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  const std::lock_guard lock(gpu);
  const auto& line = line_of(stream);
  if (event->captured_by) {
    if (event->captured_by == line) return failure();
    return break_capture(*event->captured_by), cudaErrorStreamCaptureIsolation;
  }
  if (line->capturing) return break_capture(*line), cudaErrorStreamCaptureIsolation;
  return append(line, {[] {}, 0, event->at}), failure();
}
cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  const std::lock_guard lock(gpu);
  if (event->captured_by) return break_capture(*event->captured_by), cudaErrorCapturedEvent;
  return run_until(event->at), failure();
}
// A host that asks again and again gets there.
cudaError_t cudaEventQuery(cudaEvent_t event) {
  const std::lock_guard lock(gpu);
  if (event->captured_by) return break_capture(*event->captured_by), cudaErrorCapturedEvent;
  if (reached(event->at)) return failure();
  return run_until({event->at.line, event->at.line->done + 1}), cudaErrorNotReady;
}
cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t begin, cudaEvent_t end) {
  const std::lock_guard lock(gpu);
  if (!begin->time || !end->time) return cudaErrorInvalidResourceHandle;
  if (!reached(begin->at) || !reached(end->at)) return cudaErrorNotReady;
  return *milliseconds = *end->time - *begin->time, failure();
}

// --- graphs
cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode) {
  const std::lock_guard lock(gpu);
  Line& line = *line_of(stream);
  if (line.capturing) return cudaErrorIllegalState;
  return line.capturing = true, failure();
}
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  const std::lock_guard lock(gpu);
  Line& line = *line_of(stream);
  *graph = nullptr;
  if (!line.capturing) return cudaErrorIllegalState;
  line.capturing = false;
  const auto work = std::make_shared<const std::vector<Work>>(std::exchange(line.captured, {}));
  if (std::exchange(line.broken, false)) return cudaErrorStreamCaptureInvalidated;
  return *graph = new CUgraph_st{work}, failure();
}
cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus* status) {
  const std::lock_guard lock(gpu);
  const Line& line = *line_of(stream);
  *status = line.broken      ? cudaStreamCaptureStatusInvalidated
            : line.capturing ? cudaStreamCaptureStatusActive
                             : cudaStreamCaptureStatusNone;
  return failure();
}
cudaError_t cudaGraphInstantiate(cudaGraphExec_t* exec, cudaGraph_t graph, unsigned long long) {
  return *exec = new CUgraphExec_st{graph->work}, failure();
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream) {
  const std::lock_guard lock(gpu);
  const auto& line = line_of(stream);
  append(line, {[line = line.get(), all = exec->work] {
           for (const Work& work : *all) run(*line, work);
         }});
  return failure();
}
cudaError_t cudaGraphDestroy(cudaGraph_t graph) { return delete graph, failure(); }
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec) { return delete exec, failure(); }

}  // extern "C"
