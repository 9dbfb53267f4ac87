#include "ops/cuda/cudnn/graph.h"

#include <utility>

#include "core/error.h"

namespace shoal::cuda::cudnn {

using Value = Graph::Value;

Dims contiguous(const Dims& dims) { return {dims[1] * dims[2] * dims[3], dims[2] * dims[3], dims[3], 1}; }

Value Value::transposed() const {
  return {tensor, {dims[0], dims[1], dims[3], dims[2]}, {strides[0], strides[1], strides[3], strides[2]}};
}

Value Graph::tensor(std::int64_t number, cudnnDataType_t type, const Dims& dims, const Dims& strides,
                    bool is_virtual, bool by_value) {
  constexpr std::int64_t kAlignment = 16;
  Descriptor& made = tensors_.emplace_back(functions_, CUDNN_BACKEND_TENSOR_DESCRIPTOR);
  made.set(CUDNN_ATTR_TENSOR_UNIQUE_ID, number)
      .set(CUDNN_ATTR_TENSOR_DATA_TYPE, type)
      .set_all(CUDNN_ATTR_TENSOR_DIMENSIONS, std::span<const std::int64_t>(dims))
      .set_all(CUDNN_ATTR_TENSOR_STRIDES, std::span<const std::int64_t>(strides))
      .set(CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, kAlignment)
      .set(CUDNN_ATTR_TENSOR_IS_VIRTUAL, is_virtual)
      .set(CUDNN_ATTR_TENSOR_IS_BY_VALUE, by_value)
      .finalize();
  return {&made, dims, strides};
}

Value Graph::memory(std::int64_t number, cudnnDataType_t type, const Dims& dims, const Dims& strides) {
  return tensor(number, type, dims, strides, false, false);
}

Value Graph::scalar(std::int64_t number) {
  return tensor(number, CUDNN_DATA_FLOAT, {1, 1, 1, 1}, {1, 1, 1, 1}, false, true);
}

Value Graph::result(cudnnDataType_t type, const Dims& dims) {
  return tensor(next_++, type, dims, contiguous(dims), true, false);
}

Value Graph::matmul(const Value& a, const Value& b) {
  const Value c = result(CUDNN_DATA_FLOAT, {a.dims[0], a.dims[1], a.dims[2], b.dims[3]});
  matmul_to(c, a, b);
  return c;
}

void Graph::matmul_to(const Value& c, const Value& a, const Value& b) {
  Descriptor& kind = kinds_.emplace_back(functions_, CUDNN_BACKEND_MATMUL_DESCRIPTOR);
  kind.set(CUDNN_ATTR_MATMUL_COMP_TYPE, CUDNN_DATA_FLOAT).finalize();
  operations_.emplace_back(functions_, CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR)
      .set(CUDNN_ATTR_OPERATION_MATMUL_ADESC, *a.tensor)
      .set(CUDNN_ATTR_OPERATION_MATMUL_BDESC, *b.tensor)
      .set(CUDNN_ATTR_OPERATION_MATMUL_CDESC, *c.tensor)
      .set(CUDNN_ATTR_OPERATION_MATMUL_DESC, kind)
      .finalize();
}

namespace {

Descriptor pointwise_kind(const Functions& functions, cudnnPointwiseMode_t mode, cudnnDataType_t type) {
  Descriptor kind(functions, CUDNN_BACKEND_POINTWISE_DESCRIPTOR);
  kind.set(CUDNN_ATTR_POINTWISE_MODE, mode)
      .set(CUDNN_ATTR_POINTWISE_MATH_PREC,
           type == CUDNN_DATA_BOOLEAN ? CUDNN_DATA_BOOLEAN : CUDNN_DATA_FLOAT);
  return kind;
}

}  // namespace

void Graph::pointwise(Descriptor&& kind, const Value& y, const Value& x, const Value* b, const Value* which) {
  Descriptor& operation = operations_.emplace_back(functions_, CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR);
  operation.set(CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, kinds_.emplace_back(std::move(kind)).finalize())
      .set(CUDNN_ATTR_OPERATION_POINTWISE_XDESC, *x.tensor)
      .set(CUDNN_ATTR_OPERATION_POINTWISE_YDESC, *y.tensor);
  if (b) operation.set(CUDNN_ATTR_OPERATION_POINTWISE_BDESC, *b->tensor);
  if (which) operation.set(CUDNN_ATTR_OPERATION_POINTWISE_TDESC, *which->tensor);
  operation.finalize();
}

Value Graph::pointwise(cudnnPointwiseMode_t mode, const Value& x, cudnnDataType_t type) {
  const Value y = result(type, x.dims);
  pointwise(pointwise_kind(functions_, mode, type), y, x, nullptr, nullptr);
  return y;
}

Value Graph::pointwise(cudnnPointwiseMode_t mode, const Value& x, const Value& b, cudnnDataType_t type) {
  const Value y = result(type, x.dims);
  pointwise(pointwise_kind(functions_, mode, type), y, x, &b, nullptr);
  return y;
}

void Graph::pointwise_to(const Value& y, cudnnPointwiseMode_t mode, const Value& x) {
  pointwise(pointwise_kind(functions_, mode, CUDNN_DATA_FLOAT), y, x, nullptr, nullptr);
}

void Graph::pointwise_to(const Value& y, cudnnPointwiseMode_t mode, const Value& x, const Value& b) {
  pointwise(pointwise_kind(functions_, mode, CUDNN_DATA_FLOAT), y, x, &b, nullptr);
}

Value Graph::select(const Value& x, const Value& b, const Value& which) {
  const Value y = result(CUDNN_DATA_FLOAT, x.dims);
  pointwise(pointwise_kind(functions_, CUDNN_POINTWISE_BINARY_SELECT, CUDNN_DATA_FLOAT), y, x, &b, &which);
  return y;
}

Value Graph::index(const Value& like, std::int64_t axis) {
  const Value y = result(CUDNN_DATA_INT32, like.dims);
  Descriptor kind = pointwise_kind(functions_, CUDNN_POINTWISE_GEN_INDEX, CUDNN_DATA_INT32);
  kind.set(CUDNN_ATTR_POINTWISE_AXIS, axis);
  pointwise(std::move(kind), y, like, nullptr, nullptr);
  return y;
}

Value Graph::reduce(cudnnReduceTensorOp_t operation, const Value& x) {
  const Value y = result(CUDNN_DATA_FLOAT, {x.dims[0], x.dims[1], x.dims[2], 1});
  Descriptor& kind = kinds_.emplace_back(functions_, CUDNN_BACKEND_REDUCTION_DESCRIPTOR);
  kind.set(CUDNN_ATTR_REDUCTION_COMP_TYPE, CUDNN_DATA_FLOAT)
      .set(CUDNN_ATTR_REDUCTION_OPERATOR, operation)
      .finalize();
  operations_.emplace_back(functions_, CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR)
      .set(CUDNN_ATTR_OPERATION_REDUCTION_XDESC, *x.tensor)
      .set(CUDNN_ATTR_OPERATION_REDUCTION_YDESC, *y.tensor)
      .set(CUDNN_ATTR_OPERATION_REDUCTION_DESC, kind)
      .finalize();
  return y;
}

Value Graph::transpose(const Value& x, cudnnDataType_t type) {
  const Value changed = x.transposed();
  const Value y = tensor(next_++, type, changed.dims, changed.strides, true, false);
  operations_.emplace_back(functions_, CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR)
      .set(CUDNN_ATTR_OPERATION_RESHAPE_XDESC, *x.tensor)
      .set(CUDNN_ATTR_OPERATION_RESHAPE_YDESC, *y.tensor)
      .finalize();
  return y;
}

Plan Graph::plan(const Target& target) const {
  Descriptor graph(functions_, CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR),
      heuristics(functions_, CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR),
      device(functions_, CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR);
  graph.set_all(CUDNN_ATTR_OPERATIONGRAPH_OPS, std::span<const Descriptor>(operations_));
  heuristics.set(CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_HEUR_MODE_A);
  if (target.handle) {
    graph.set(CUDNN_ATTR_OPERATIONGRAPH_HANDLE, target.handle);
  } else {
    device.set_all(CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION, std::span<const char>(target.description))
        .finalize();
    heuristics.set(CUDNN_ATTR_ENGINEHEUR_DEVICEPROP, device);
  }
  heuristics.set(CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, graph.finalize()).finalize();

  std::string why = "it knows no way";
  for (Descriptor& way :
       heuristics.get_all(CUDNN_ATTR_ENGINEHEUR_RESULTS, CUDNN_BACKEND_ENGINECFG_DESCRIPTOR)) {
    try {
      Descriptor made(functions_, CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR);
      made.set(CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, way);
      if (target.handle) {
        made.set(CUDNN_ATTR_EXECUTION_PLAN_HANDLE, target.handle);
      } else {
        made.set(CUDNN_ATTR_EXECUTION_PLAN_DEVICEPROP, device);
      }
      made.finalize();
      const auto workspace = made.get_integer(CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE);
      return {std::move(way), std::move(made), workspace};
    } catch (const Error& error) {
      why = error.what();
    }
  }
  fail("cuDNN has no plan for this: {}", why);
}

}  // namespace shoal::cuda::cudnn
