#include "optim/newton_schulz.h"

#include <algorithm>

namespace shoal {
namespace {

// X becomes a X + (b G + c G^2) X with G = X X^T.
constexpr float kA = 3.4445f, kB = -4.7750f, kC = 2.0315f;

Tensor first_of(const Tensor& memory, Shape shape) { return {memory.data, memory.dtype, shape}; }

class Iteration {
 public:
  Iteration(Backend& backend, const WholeMatrix& matrix, const MatrixWorkspace& workspace)
      : ops_(backend), matrix_(matrix), work_(workspace) {
    const auto& g = matrix.direction;
    Shape shape = g.shape;
    if (matrix.by_columns) std::swap(shape[0], shape[1]);
    x_ = first_of(workspace.matrix, shape);
    product_ = g.reshaped(shape);
    gram_ = first_of(workspace.gram, {shape[0], shape[0]});
    square_ = first_of(workspace.square, {shape[0], shape[0]});
  }

  // X = direction / its norm.
  void begin() {
    const auto& g = matrix_.direction;
    ops_.zero(work_.squares);
    ops_.sum_squares(work_.squares, g);
    add_over_ranks(work_.squares);
    ops_.normalize(matrix_.by_columns ? g : x_, g, work_.squares);
    if (matrix_.by_columns) ops_.transpose(x_, g);
  }
  void step() {
    symmetric_product(gram_, x_, true, 1, {}, 0);
    symmetric_product(square_, gram_, false, kC, gram_, kB);
    ops_.linear_backward_input(product_, square_, x_);
    ops_.scale_and_add(x_, kA, product_);
  }
  void end() {
    const auto& g = matrix_.direction;
    matrix_.by_columns ? ops_.transpose(g, x_) : ops_.convert(g, x_);
  }

 private:
  void add_over_ranks(const Tensor& x) const {
    if (matrix_.add_over_ranks) matrix_.add_over_ranks(x);
  }
  // out = factor * x x^T + base_factor * base, of which the lower half is computed. `shared`: ranks have
  // other columns of x.
  void symmetric_product(const Tensor& out, const Tensor& x, bool shared, float factor, const Tensor& base,
                         float base_factor) {
    const std::int64_t size = x.rows(), at_once = MatrixWorkspace::rows_at_once(size);
    for (std::int64_t first = 0; first < size; first += at_once) {
      const std::int64_t count = std::min(at_once, size - first);
      const Tensor rows = first_of(work_.rows, {count, first + count});
      ops_.linear_forward(rows, x.row_range(first, count), x.row_range(0, first + count), {});
      if (shared) add_over_ranks(rows);
      ops_.set_symmetric_rows({.out = out,
                               .first = first,
                               .rows = rows,
                               .factor = factor,
                               .base = base,
                               .base_factor = base_factor});
    }
  }

  Backend& ops_;
  const WholeMatrix& matrix_;
  const MatrixWorkspace& work_;
  Tensor x_, product_, gram_, square_;
};

}  // namespace

std::int64_t MatrixWorkspace::rows_at_once(std::int64_t side) {
  constexpr std::int64_t kParts = 6, kLeast = 64;  // 7 / 12 of the work
  return std::max<std::int64_t>(1, (side / kParts + kLeast - 1) / kLeast) * kLeast;
}

void orthogonalize(Backend& backend, const WholeMatrix& matrix, const MatrixWorkspace& workspace, int steps) {
  Iteration iteration(backend, matrix, workspace);
  iteration.begin();
  for (int step = 0; step < steps; ++step) iteration.step();
  iteration.end();
}

}  // namespace shoal
