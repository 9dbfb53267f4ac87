#include "ops/cuda/graph.h"

#include <type_traits>

#include "ops/cuda/check.h"

namespace shoal::cuda {
namespace {

struct GraphDeleter {
  void operator()(cudaGraph_t graph) const { cudaGraphDestroy(graph); }
};
struct ExecDeleter {
  void operator()(cudaGraphExec_t exec) const { cudaGraphExecDestroy(exec); }
};

class StepGraph final : public CapturedGraph {
 public:
  StepGraph(cudaGraph_t graph, cudaStream_t stream) : stream_(stream) {
    cudaGraphExec_t made = nullptr;
    check(cudaGraphInstantiate(&made, graph, 0));
    exec_.reset(made);
  }
  void replay() override { check(cudaGraphLaunch(exec_.get(), stream_)); }

 private:
  std::unique_ptr<std::remove_pointer_t<cudaGraphExec_t>, ExecDeleter> exec_;
  cudaStream_t stream_;
};

}  // namespace

// Relaxed: scratch memory that grows is allocated during a capture.
void begin_capture(cudaStream_t stream) {
  check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed));
}

std::unique_ptr<CapturedGraph> end_capture(cudaStream_t stream) {
  cudaGraph_t made = nullptr;
  check(cudaStreamEndCapture(stream, &made));
  const std::unique_ptr<std::remove_pointer_t<cudaGraph_t>, GraphDeleter> graph(made);
  return std::make_unique<StepGraph>(graph.get(), stream);
}

}  // namespace shoal::cuda
