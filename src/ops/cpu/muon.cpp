// The element-wise parts of Muon, and transposed copies.
#include <algorithm>
#include <cmath>

#include "ops/cpu/cpu_backend.h"
#include "ops/cpu/simd.h"
#include "ops/cpu/threads.h"
#include "ops/with_type.h"

namespace shoal::cpu {
namespace {

constexpr std::int64_t kPart = 65536;  // elements of a block
constexpr std::int64_t kSquare = 64;   // rows and columns of a part of a matrix that stays in the first cache

}  // namespace

void CpuBackend::muon_direction(const Tensor& direction, const Tensor& momentum,
                                const MuonSettings& settings) {
  const float scale = settings.grad_scale ? *settings.grad_scale : 1.0f;
  if (std::isnan(scale)) return;
  const float beta = settings.momentum, rest = 1.0f - beta;
  for_blocks(team_, direction.count(), kPart, [&](std::int64_t begin, std::int64_t end) {
    for_lanes(end - begin, [&](std::int64_t i, std::int64_t live) {
      float *to = direction.as<float>() + begin + i, *m = momentum.as<float>() + begin + i;
      const Vec g = load_n(to, live) * scale, mixed = beta * load_n(m, live) + rest * g;
      store_n(m, mixed, live);
      store_n(to, settings.nesterov ? beta * mixed + rest * g : mixed, live);
    });
  });
}

void CpuBackend::muon_update(const MuonTensors& args, const MuonSettings& settings) {
  const auto& [weights, compute, direction] = args;
  if (settings.grad_scale && std::isnan(*settings.grad_scale)) {
    if (compute) convert(compute, weights);
    return;
  }
  const float lr = *settings.lr, keep = 1.0f - lr * settings.weight_decay;
  for_blocks(team_, weights.count(), kPart, [&](std::int64_t begin, std::int64_t end) {
    for_lanes(end - begin, [&](std::int64_t i, std::int64_t live) {
      float* at = weights.as<float>() + begin + i;
      const Vec w = load_n(at, live) * keep - lr * load_n(direction.as<float>() + begin + i, live);
      store_n(at, w, live);
      if (compute) store_n(compute.as<bfloat16>() + begin + i, w, live);
    });
  });
}

void CpuBackend::normalize(const Tensor& out, const Tensor& x, const Tensor& squares) {
  const auto factor = static_cast<float>(1 / std::max(std::sqrt(*squares.as<double>()), kMuonEps));
  with_type(out.dtype, [&]<typename T>() {
    for_blocks(team_, x.count(), kPart, [&](std::int64_t begin, std::int64_t end) {
      for_lanes(end - begin, [&](std::int64_t i, std::int64_t live) {
        store_n(out.as<T>() + begin + i, factor * load_n(x.as<float>() + begin + i, live), live);
      });
    });
  });
}

void CpuBackend::transpose(const Tensor& out, const Tensor& x) {
  const std::int64_t rows = x.rows(), columns = x.columns();
  with_type(out.dtype, [&]<typename Out>() {
    with_type(x.dtype, [&]<typename In>() {
      for_blocks(team_, columns, kSquare, [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t first = 0; first < rows; first += kSquare) {
          const std::int64_t last = std::min(rows, first + kSquare);
          for (std::int64_t column = begin; column < end; ++column) {
            Out* to = out.as<Out>() + column * rows;
            const In* from = x.as<In>() + column;
            for (std::int64_t row = first; row < last; ++row)
              to[row] = from_float<Out>(to_float(from[row * columns]));
          }
        }
      });
    });
  });
}

void CpuBackend::scale_and_add(const Tensor& x, float factor, const Tensor& y, float y_factor) {
  with_type(x.dtype, [&]<typename T>() {
    for_blocks(team_, x.count(), kPart, [&](std::int64_t begin, std::int64_t end) {
      for_lanes(end - begin, [&](std::int64_t i, std::int64_t live) {
        T* at = x.as<T>() + begin + i;
        store_n(at, factor * load_n(at, live) + y_factor * load_n(y.as<float>() + begin + i, live), live);
      });
    });
  });
}

void CpuBackend::set_symmetric_rows(const SymmetricRows& args) {
  const auto& [out, first, rows, factor, base, base_factor] = args;
  const std::int64_t size = out.columns(), stride = rows.columns();
  with_type(out.dtype, [&]<typename T>() {
    // By columns of `rows`, so that what mirrors them is written in one piece.
    for_blocks(
        team_, stride, kSquare,
        [&, first = first, factor = factor, base_factor = base_factor](std::int64_t begin, std::int64_t end) {
          for (std::int64_t row = 0; row < rows.rows(); ++row) {
            const std::int64_t i = first + row;
            const float* from = rows.as<float>() + row * stride;
            for (std::int64_t j = begin; j < std::min(end, i + 1); ++j) {
              float value = factor * from[j];
              if (base) value += base_factor * to_float(base.as<T>()[i * size + j]);
              out.as<T>()[i * size + j] = out.as<T>()[j * size + i] = from_float<T>(value);
            }
          }
        });
  });
}

}  // namespace shoal::cpu
