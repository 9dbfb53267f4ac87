#include "ops/cuda/cudnn/attention_graphs.h"

#include <utility>

namespace shoal::cuda::cudnn {
namespace {

using Value = Graph::Value;

constexpr auto kBf16 = CUDNN_DATA_BFLOAT16, kF32 = CUDNN_DATA_FLOAT;

struct Shapes {
  Dims heads, in_qkv, in_out, rows;

  explicit Shapes(const AttentionSizes& at)
      : heads{at.B, at.H, at.T, at.D},
        in_qkv{at.T * 3 * at.H * at.D, at.D, 3 * at.H * at.D, 1},
        in_out{at.T * at.H * at.D, at.D, at.H * at.D, 1},
        rows{at.B, at.H, at.T, 1} {}

  Value qkv(Graph& graph, Number number) const { return graph.memory(number, kBf16, heads, in_qkv); }
  Value qkv_transposed(Graph& graph, Number number) const {
    const Value as = Value{nullptr, heads, in_qkv}.transposed();
    return graph.memory(number, kBf16, as.dims, as.strides);
  }
  Value out(Graph& graph, Number number) const { return graph.memory(number, kBf16, heads, in_out); }
  Value row(Graph& graph, Number number) const { return graph.memory(number, kF32, rows, contiguous(rows)); }
};

Value masked(Graph& graph, const Value& scores) {
  const Value query = graph.index(scores, 2), key = graph.index(scores, 3);
  const Value seen = graph.pointwise(CUDNN_POINTWISE_CMP_GE, query, key, CUDNN_DATA_BOOLEAN);
  return graph.select(scores, graph.scalar(kUnseen), seen);
}

}  // namespace

Graph forward_graph(const Functions& functions, const AttentionSizes& sizes) {
  Graph graph(functions);
  const Shapes shapes(sizes);
  const Value q = shapes.qkv(graph, kQ), keys = shapes.qkv_transposed(graph, kK), v = shapes.qkv(graph, kV);
  const Value scores =
      masked(graph, graph.pointwise(CUDNN_POINTWISE_MUL, graph.matmul(q, keys), graph.scalar(kScale)));
  const Value maximum = graph.reduce(CUDNN_REDUCE_TENSOR_MAX, scores);
  const Value terms =
      graph.pointwise(CUDNN_POINTWISE_EXP, graph.pointwise(CUDNN_POINTWISE_SUB, scores, maximum));
  const Value sum = graph.reduce(CUDNN_REDUCE_TENSOR_ADD, terms);
  graph.pointwise_to(shapes.row(graph, kLse), CUDNN_POINTWISE_ADD, maximum,
                     graph.pointwise(CUDNN_POINTWISE_LOG, sum));
  graph.matmul_to(shapes.out(graph, kOut), graph.pointwise(CUDNN_POINTWISE_DIV, terms, sum, kBf16), v);
  return graph;
}

namespace {

// All but the product that is the gradient of q, whose operands it returns: the gradients of scores, and k.
std::pair<Value, Value> add_backward(const Shapes& shapes, Graph& graph) {
  const Value q = shapes.qkv(graph, kQ), keys = shapes.qkv_transposed(graph, kK),
              values = shapes.qkv_transposed(graph, kV), dout = shapes.out(graph, kDout),
              delta = shapes.row(graph, kDelta), scale = graph.scalar(kScale);
  const Value together = graph.pointwise(CUDNN_POINTWISE_MUL, dout, shapes.out(graph, kOut));
  graph.pointwise_to(delta, CUDNN_POINTWISE_MUL, graph.reduce(CUDNN_REDUCE_TENSOR_ADD, together),
                     graph.scalar(kOne));

  const Value scores = graph.pointwise(CUDNN_POINTWISE_MUL, graph.matmul(q, keys), scale);
  const Value logs = graph.pointwise(CUDNN_POINTWISE_SUB, scores, shapes.row(graph, kLse));
  const Value probabilities = graph.pointwise(CUDNN_POINTWISE_EXP, masked(graph, logs));
  graph.matmul_to(shapes.qkv(graph, kDv), graph.transpose(probabilities, kBf16), dout);

  const Value dprobabilities = graph.pointwise(CUDNN_POINTWISE_SUB, graph.matmul(dout, values), delta);
  const Value dlogs = graph.pointwise(CUDNN_POINTWISE_MUL, dprobabilities, probabilities);
  const Value dscores = graph.pointwise(CUDNN_POINTWISE_MUL, dlogs, scale);
  graph.matmul_to(shapes.qkv(graph, kDk), graph.transpose(dscores, kBf16), q);
  return {dscores, graph.transpose(keys, kBf16)};
}

}  // namespace

Graph backward_graph(const Functions& functions, const AttentionSizes& sizes) {
  Graph graph(functions);
  const Shapes shapes(sizes);
  const auto [dscores, keys] = add_backward(shapes, graph);
  graph.matmul_to(shapes.qkv(graph, kDq), dscores, keys);
  return graph;
}

Graph unordered_backward_graph(const Functions& functions, const AttentionSizes& sizes) {
  Graph graph(functions);
  const Shapes shapes(sizes);
  const auto [dscores, keys] = add_backward(shapes, graph);
  const Value sums = graph.memory(kDqSums, kF32, shapes.heads, contiguous(shapes.heads));
  graph.matmul_to(sums, dscores, keys);
  graph.pointwise_to(shapes.qkv(graph, kDq), CUDNN_POINTWISE_IDENTITY, sums);
  return graph;
}

}  // namespace shoal::cuda::cudnn
