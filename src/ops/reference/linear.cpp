// Matrix products.
#include "ops/reference/reference_backend.h"
#include "ops/reference/values.h"

namespace shoal {

using reference::read;
using reference::Values;
using reference::write;

void ReferenceBackend::linear_forward(const Tensor& y, const Tensor& x, const Tensor& w, const Tensor& bias) {
  const auto rows = x.rows(), inputs = x.columns(), outputs = w.rows();
  const auto xs = read(x), ws = read(w), biases = read(bias);
  Values ys(rows * outputs);
  for (std::int64_t r = 0; r < rows; ++r) {
    for (std::int64_t n = 0; n < outputs; ++n) {
      double sum = biases.empty() ? 0 : biases[n];
      for (std::int64_t k = 0; k < inputs; ++k) sum += xs[r * inputs + k] * ws[n * inputs + k];
      ys[r * outputs + n] = sum;
    }
  }
  write(y, ys);
}

void ReferenceBackend::linear_backward_input(const Tensor& dx, const Tensor& dy, const Tensor& w) {
  const auto rows = dy.rows(), outputs = w.rows(), inputs = w.columns();
  const auto dys = read(dy), ws = read(w);
  Values dxs(rows * inputs);
  for (std::int64_t r = 0; r < rows; ++r) {
    for (std::int64_t n = 0; n < outputs; ++n) {
      for (std::int64_t k = 0; k < inputs; ++k)
        dxs[r * inputs + k] += dys[r * outputs + n] * ws[n * inputs + k];
    }
  }
  write(dx, dxs);
}

void ReferenceBackend::linear_backward_weight(const Tensor& dw, const Tensor& dbias, const Tensor& dy,
                                              const Tensor& x, bool overwrite) {
  if (overwrite) zero(dw);
  const auto rows = x.rows(), inputs = x.columns(), outputs = dy.columns();
  const auto dys = read(dy), xs = read(x);
  auto dws = read(dw), dbiases = read(dbias);
  for (std::int64_t r = 0; r < rows; ++r) {
    for (std::int64_t n = 0; n < outputs; ++n) {
      const double gradient = dys[r * outputs + n];
      for (std::int64_t k = 0; k < inputs; ++k) dws[n * inputs + k] += gradient * xs[r * inputs + k];
      if (dbias) dbiases[n] += gradient;
    }
  }
  write(dw, dws);
  if (dbias) write(dbias, dbiases);
}

}  // namespace shoal
