// The nearest matrix with orthonormal rows or columns, about: the iteration of Newton and Schulz with the
// coefficients of Muon (Jordan et al. 2024), which brings singular values into about [0.7, 1.2].
#pragma once

#include <functional>

#include "ops/kernels.h"

namespace shoal {

// A matrix, or the rows or columns of it that this tensor rank has.
struct WholeMatrix {
  Tensor direction;  // f32 [rows, columns] of this rank
  Shape shape;       // of the whole matrix
  // The products of the iteration are of columns, not of rows. Ranks share the other side.
  bool by_columns = false;
  // Sums a tensor over the ranks that share the matrix; empty where this rank has all of it.
  std::function<void(const Tensor&)> add_over_ranks;
};

// Memory for matrices of at most `elements`, whose products are [side, side]. x is the compute type.
struct MatrixWorkspace {
  Tensor matrix;        // x [elements]
  Tensor gram, square;  // x [side * side]
  Tensor rows;          // f32 [rows_at_once(side) * side]
  Tensor squares;       // f64 [1]

  // The rows of a product of `side` that are computed at once: of a symmetric matrix, half is enough.
  static std::int64_t rows_at_once(std::int64_t side);
};

// `matrix.direction` becomes the orthogonal matrix, after so many steps.
void orthogonalize(Backend& backend, const WholeMatrix& matrix, const MatrixWorkspace& workspace, int steps);

}  // namespace shoal
