// A graph of cuDNN's operations on tensors of four dimensions, and the plan that runs it.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <string>
#include <vector>

#include "ops/cuda/cudnn/library.h"

namespace shoal::cuda::cudnn {

using Dims = std::array<std::int64_t, 4>;

// The target of a plan: the GPU of a handle, or a described one (in cuDNN's JSON), which lets tests make
// plans without a GPU.
struct Target {
  cudnnHandle_t handle = nullptr;
  std::string description;
};

struct Plan {
  Descriptor way, made;    // the second is created from the first
  std::int64_t workspace;  // bytes
};

class Graph {
 public:
  struct Value {
    const Descriptor* tensor;  // the graph's
    Dims dims, strides;

    // The same with its last two dimensions swapped.
    Value transposed() const;
  };

  explicit Graph(const Functions& functions) : functions_(functions) {}

  // A tensor whose memory is given under this number when the plan runs.
  Value memory(std::int64_t number, cudnnDataType_t type, const Dims& dims, const Dims& strides);
  // A float32 in host memory, likewise.
  Value scalar(std::int64_t number);

  // Results get memory, or stay inside the kernel, in the given type (float32 by default).
  // c [.., m, n] = a [.., m, k] . b [.., k, n]
  Value matmul(const Value& a, const Value& b);
  void matmul_to(const Value& c, const Value& a, const Value& b);
  // The shape of x; b is broadcast to it.
  Value pointwise(cudnnPointwiseMode_t mode, const Value& x, cudnnDataType_t type = CUDNN_DATA_FLOAT);
  Value pointwise(cudnnPointwiseMode_t mode, const Value& x, const Value& b,
                  cudnnDataType_t type = CUDNN_DATA_FLOAT);
  void pointwise_to(const Value& y, cudnnPointwiseMode_t mode, const Value& x);
  void pointwise_to(const Value& y, cudnnPointwiseMode_t mode, const Value& x, const Value& b);
  // x where `which` is true, else b.
  Value select(const Value& x, const Value& b, const Value& which);
  // Every element's index along an axis.
  Value index(const Value& like, std::int64_t axis);
  // The reduction over the last dimension.
  Value reduce(cudnnReduceTensorOp_t operation, const Value& x);
  Value transpose(const Value& x, cudnnDataType_t type);

  // The first plan that works among those of cuDNN's heuristics. Throws Error.
  Plan plan(const Target& target) const;

 private:
  Value tensor(std::int64_t number, cudnnDataType_t type, const Dims& dims, const Dims& strides,
               bool is_virtual, bool by_value);
  Value result(cudnnDataType_t type, const Dims& dims);
  void pointwise(Descriptor&& kind, const Value& y, const Value& x, const Value* b, const Value* which);

  const Functions& functions_;
  std::deque<Descriptor> tensors_, kinds_;
  std::vector<Descriptor> operations_;
  std::int64_t next_ = std::int64_t{1} << 32;  // number of the next tensor inside the kernel
};

// Strides of contiguous rows.
Dims contiguous(const Dims& dims);

}  // namespace shoal::cuda::cudnn
