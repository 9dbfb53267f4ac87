#include "parallel/data/matrix_dealer.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

namespace shoal {
namespace {

struct Matrix {
  int unit;
  const ParameterSpec* parameter;
  ElementRange range() const { return parameter->slice().range(); }
  // Multiply-adds of a step of the iteration, about; the same on all tensor ranks.
  double cost() const {
    const auto rows = static_cast<double>(parameter->shape[0]),
               columns = static_cast<double>(parameter->shape[1]);
    const double side = std::min(rows, columns);
    return side * (1.5 * rows * columns + 0.5 * side * side);
  }
  // Tensor ranks share the other side.
  bool by_columns(int tensor_ranks) const {
    return tensor_ranks > 1 ? parameter->placement.dim == 0 : parameter->shape[0] > parameter->shape[1];
  }
};

// One matrix for each rank; null where there is none left for it.
struct Round {
  std::vector<const Matrix*> of_rank;
  std::int64_t part = 0;  // the most elements of one rank's piece in one matrix
};

ElementRange piece(const ShardPlan& plan, int unit, int of) {
  const std::int64_t size = plan.piece_size(unit);
  return {of * size, (of + 1) * size};
}

std::vector<Matrix> matrices_of(const ShardPlan& plan, const Bucket& bucket) {
  std::vector<Matrix> matrices;
  for (int u = bucket.first; u <= bucket.last; ++u) {
    if (plan.padded(u) == 0) continue;
    for (const auto& parameter : plan.unit(u).parameters)
      if (parameter.matrix) matrices.push_back({u, &parameter});
  }
  return matrices;
}

// The most expensive matrix left goes to the rank that has the least to do.
std::vector<Round> deal(const ShardPlan& plan, const std::vector<Matrix>& matrices) {
  std::vector<const Matrix*> order;
  for (const auto& matrix : matrices) order.push_back(&matrix);
  std::ranges::stable_sort(order, std::greater(), &Matrix::cost);
  const auto ranks = static_cast<std::size_t>(plan.ranks());
  std::vector<double> load(ranks, 0);
  std::vector<std::size_t> count(ranks, 0);
  std::vector<Round> rounds;
  for (const auto* matrix : order) {
    const auto rank = static_cast<std::size_t>(std::ranges::min_element(load) - load.begin());
    load[rank] += matrix->cost();
    if (count[rank] == rounds.size()) rounds.push_back({.of_rank = std::vector<const Matrix*>(ranks)});
    auto& round = rounds[count[rank]++];
    round.of_rank[rank] = matrix;
    for (int r = 0; r < plan.ranks(); ++r)
      round.part = std::max(round.part, (matrix->range() & piece(plan, matrix->unit, r)).count());
  }
  return rounds;
}

}  // namespace

MatrixBuffers MatrixBuffers::take(Arena& arena, const ShardPlan& plan, const std::vector<Bucket>& buckets,
                                  const EngineOptions& options, bool in_place) {
  std::int64_t part = 0, elements = 0, side = 0;
  for (const auto& bucket : buckets) {
    const auto matrices = matrices_of(plan, bucket);
    for (const auto& round : deal(plan, matrices)) part = std::max(part, round.part);
    for (const auto& matrix : matrices) {
      elements = std::max(elements, matrix.range().count());
      side = std::max(side, matrix.parameter->shape[matrix.by_columns(options.part.tensor.size) ? 1 : 0]);
    }
  }
  MatrixBuffers b;
  if (elements == 0) return b;
  if (plan.ranks() > 1) {
    b.sent = arena.take(DType::f32, {plan.ranks() * part});
    b.received = arena.take(DType::f32, {plan.ranks() * part});
  }
  if (plan.ranks() > 1 || !in_place) b.whole = arena.take(DType::f32, {elements});
  b.workspace = {.matrix = arena.take(options.compute, {elements}),
                 .gram = arena.take(options.compute, {side * side}),
                 .square = arena.take(options.compute, {side * side}),
                 .rows = arena.take(DType::f32, {MatrixWorkspace::rows_at_once(side) * side}),
                 .squares = arena.take(DType::f64, {1})};
  return b;
}

MatrixDealer::MatrixDealer(Backend& backend, Optimizer& optimizer, const DataGroups& groups,
                           Communicator& tensor, const ShardPlan& plan, const MatrixBuffers& buffers,
                           StateStream& stream)
    : backend_(backend),
      optimizer_(optimizer),
      groups_(groups),
      tensor_(tensor),
      plan_(plan),
      buffers_(buffers),
      stream_(stream) {}

void MatrixDealer::transform(const Bucket& bucket, std::int64_t step,
                             const std::function<Tensor(int unit)>& direction) {
  const auto matrices = matrices_of(plan_, bucket);
  const auto transform_whole = [&](const Matrix& matrix, const Tensor& x) {
    WholeMatrix whole{.direction = x.reshaped(matrix.parameter->local_shape),
                      .shape = matrix.parameter->shape,
                      .by_columns = matrix.by_columns(tensor_.size()),
                      .add_over_ranks = {}};
    if (tensor_.size() > 1) whole.add_over_ranks = [&](const Tensor& sum) { tensor_.all_reduce(sum).wait(); };
    optimizer_.transform(backend_, whole, buffers_.workspace);
  };
  tensor_.set_purpose(fmt::format("step {}, products of hidden matrices", step + 1));

  if (plan_.ranks() == 1) {
    for (const auto& matrix : matrices) {
      const auto range = matrix.range();
      const Tensor here = part_of(direction(matrix.unit), range.begin, range.count());
      const Tensor x = buffers_.whole ? part_of(buffers_.whole, 0, range.count()) : here;
      if (buffers_.whole) stream_.convert(x, here);
      transform_whole(matrix, x);
      if (buffers_.whole) stream_.convert(here, x);
    }
    return;
  }

  auto& pieces = *groups_.pieces;
  pieces.set_purpose(fmt::format("step {}, hidden matrices", step + 1));
  const auto own = static_cast<std::size_t>(plan_.piece());
  for (const auto& round : deal(plan_, matrices)) {
    const auto part = [&](const Tensor& buffer, int rank, std::int64_t count) {
      return part_of(buffer, rank * round.part, count);
    };
    const std::int64_t all = plan_.ranks() * round.part;
    const Tensor sent = part_of(buffers_.sent, 0, all), received = part_of(buffers_.received, 0, all);
    // This rank's piece of each rank's matrix, and where it is sent from or received.
    const auto for_pieces = [&](const Tensor& buffer, auto&& f) {
      for (int rank = 0; rank < plan_.ranks(); ++rank) {
        const auto* matrix = round.of_rank[static_cast<std::size_t>(rank)];
        if (!matrix) continue;
        const auto here = matrix->range() & plan_.my_piece(matrix->unit);
        if (here.count() == 0) continue;
        const Tensor shard = direction(matrix->unit);
        f(part_of(shard, here.begin - plan_.my_shard(matrix->unit).begin, here.count()),
          part(buffer, rank, here.count()));
      }
    };
    // Each rank's piece of this one's matrix, likewise.
    const auto* mine = round.of_rank[own];
    const auto for_ranks = [&](const Tensor& buffer, auto&& f) {
      for (int rank = 0; mine && rank < plan_.ranks(); ++rank) {
        const auto here = mine->range() & piece(plan_, mine->unit, rank);
        if (here.count() == 0) continue;
        f(part_of(buffers_.whole, here.begin - mine->range().begin, here.count()),
          part(buffer, rank, here.count()));
      }
    };

    for_pieces(sent, [&](const Tensor& state, const Tensor& buffer) { stream_.convert(buffer, state); });
    pieces.all_to_all(received, sent).wait();
    for_ranks(received, [&](const Tensor& whole, const Tensor& buffer) { backend_.convert(whole, buffer); });
    if (mine) transform_whole(*mine, part_of(buffers_.whole, 0, mine->range().count()));
    for_ranks(sent, [&](const Tensor& whole, const Tensor& buffer) { backend_.convert(buffer, whole); });
    pieces.all_to_all(received, sent).wait();
    for_pieces(received, [&](const Tensor& state, const Tensor& buffer) { stream_.convert(state, buffer); });
  }
  if (plan_.replicas() == 1) return;
  auto& replicas = *groups_.replicas;
  replicas.set_purpose(pieces.purpose());
  for (int u = bucket.first; u <= bucket.last; ++u) {
    if (plan_.padded(u) == 0 || plan_.unit(u).matrices == 0) continue;
    const Tensor shard = stream_.settled(direction(u));
    const std::int64_t size = plan_.piece_size(u);
    replicas.all_gather(shard, part_of(shard, plan_.replica() * size, size)).wait();
  }
}

}  // namespace shoal
