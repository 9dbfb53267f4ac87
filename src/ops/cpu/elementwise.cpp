// Copies, sums, and GELU.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <span>
#include <vector>

#include "ops/cpu/cpu_backend.h"
#include "ops/cpu/gelu.h"
#include "ops/cpu/threads.h"

namespace shoal::cpu {
namespace {

constexpr std::int64_t kBlock = 16384;  // elements handed to a thread at a time; fixes the order of sums

template <bool kSquares, typename T>
double block_sum(const T* x, std::int64_t n) {
  // Two double accumulators of eight lanes each would do; the compiler vectorizes this form, and its order is
  // fixed.
  constexpr int kSums = 16;
  double lanes[kSums] = {};
  std::int64_t i = 0;
  for (; i + kSums <= n; i += kSums) {
    for (int lane = 0; lane < kSums; ++lane) {
      const double value = to_float(x[i + lane]);
      lanes[lane] += kSquares ? value * value : value;
    }
  }
  for (int lane = 0; i < n; ++i, ++lane) {
    const double value = to_float(x[i]);
    lanes[lane] += kSquares ? value * value : value;
  }
  double total = 0;
  for (double lane : lanes) total += lane;
  return total;
}

// Sums of the equal pieces of x, each of which is cut into blocks of its own.
template <bool kSquares, typename T>
void add_sums(ThreadTeam& team, const Tensor& totals, const Tensor& x) {
  const std::int64_t pieces = totals.count();
  if (x.count() == 0) return;
  const std::int64_t length = x.count() / pieces, blocks = (length + kBlock - 1) / kBlock;
  std::vector<double> parts(static_cast<std::size_t>(pieces * blocks));
  for_blocks(team, pieces * blocks, std::max<std::int64_t>(1, kBlock / length),
             [&](std::int64_t begin, std::int64_t end) {
               for (std::int64_t i = begin; i < end; ++i) {
                 const std::int64_t at = i % blocks * kBlock;
                 parts[static_cast<std::size_t>(i)] =
                     block_sum<kSquares>(x.as<T>() + i / blocks * length + at, std::min(kBlock, length - at));
               }
             });
  for (std::int64_t piece = 0; piece < pieces; ++piece) {
    double sum = 0;
    for (std::int64_t i = 0; i < blocks; ++i) sum += parts[static_cast<std::size_t>(piece * blocks + i)];
    totals.as<double>()[piece] += sum;
  }
}

}  // namespace

void CpuBackend::zero(const Tensor& x) {
  auto* bytes = x.as<std::byte>();
  for_blocks(team_, static_cast<std::int64_t>(x.bytes()), 4 * kBlock,
             [&](std::int64_t begin, std::int64_t end) {
               std::memset(bytes + begin, 0, static_cast<std::size_t>(end - begin));
             });
}

void CpuBackend::fill(const Tensor& out, float value) {
  for_blocks(team_, out.count(), kBlock, [&](std::int64_t begin, std::int64_t end) {
    std::fill(out.as<float>() + begin, out.as<float>() + end, value);
  });
}

void CpuBackend::fill_normal(const Tensor& out, std::uint64_t seed, std::uint64_t name, std::int64_t first,
                             double stddev) {
  const auto key = philox_key(seed, PhiloxStream::init);
  for_blocks(team_, out.count(), 1024, [&](std::int64_t begin, std::int64_t end) {
    const auto stop = static_cast<std::uint64_t>(first + end);
    for (auto at = static_cast<std::uint64_t>(first + begin); at < stop;) {
      const std::uint64_t pair = at / 2;
      const auto normals =
          to_normals(philox(key, {static_cast<std::uint32_t>(pair), static_cast<std::uint32_t>(pair >> 32),
                                  static_cast<std::uint32_t>(name), static_cast<std::uint32_t>(name >> 32)}));
      for (; at < stop && at / 2 == pair; ++at) {
        out.as<float>()[at - static_cast<std::uint64_t>(first)] =
            static_cast<float>(stddev * normals[at % 2]);
      }
    }
  });
}

void CpuBackend::convert(const Tensor& out, const Tensor& x) {
  with_type(out.dtype, [&]<typename Out>() {
    with_type(x.dtype, [&]<typename In>() {
      for_blocks(team_, x.count(), kBlock, [&](std::int64_t begin, std::int64_t end) {
        for_lanes(end - begin, [&](std::int64_t i, std::int64_t live) {
          store_n(out.as<Out>() + begin + i, load_n(x.as<In>() + begin + i, live), live);
        });
      });
    });
  });
}

void CpuBackend::add(const Tensor& out, const Tensor& x) {
  with_type(out.dtype, [&]<typename Out>() {
    with_type(x.dtype, [&]<typename T>() {
      for_blocks(team_, x.count(), kBlock, [&](std::int64_t begin, std::int64_t end) {
        for_lanes(end - begin, [&](std::int64_t i, std::int64_t live) {
          Out* p = out.as<Out>() + begin + i;
          store_n(p, load_n(p, live) + load_n(x.as<T>() + begin + i, live), live);
        });
      });
    });
  });
}

void CpuBackend::scale(const Tensor& out, const Tensor& x, float factor) {
  for_blocks(team_, x.count(), kBlock, [&](std::int64_t begin, std::int64_t end) {
    for_lanes(end - begin, [&](std::int64_t i, std::int64_t live) {
      store_n(out.as<float>() + begin + i, splat(factor) * load_n(x.as<float>() + begin + i, live), live);
    });
  });
}

void CpuBackend::sum(const Tensor& total, const Tensor& x) { add_sums<false, float>(team_, total, x); }
void CpuBackend::sum_squares(const Tensor& totals, const Tensor& x) {
  with_type(x.dtype, [&]<typename T>() { add_sums<true, T>(team_, totals, x); });
}

void CpuBackend::sum_rows(const Tensor& total, const Tensor& x, std::int64_t n) {
  double& sum = *total.as<double>();
  for (std::int64_t row = 0; row < x.rows(); ++row) {
    const double* from = x.as<double>() + row * x.columns();
    for (std::int64_t i = 0; i < n; ++i) sum += from[i];
  }
}

void CpuBackend::clip_scale(const Tensor& scale, const Tensor& squares, double max_norm,
                            const Tensor& losses) {
  const double norm = std::sqrt(*squares.as<double>());
  const std::span known(losses.as<double>(), losses ? static_cast<std::size_t>(losses.count()) : 0);
  const bool finite =
      std::isfinite(norm) && std::ranges::all_of(known, [](double x) { return std::isfinite(x); });
  const double factor = max_norm > 0 ? std::min(1.0, max_norm / (norm + 1e-6)) : 1.0;
  *scale.as<float>() = finite ? static_cast<float>(factor) : std::numeric_limits<float>::quiet_NaN();
}

namespace {

template <Gelu kind, typename T>
void gelu_forward_blocks(ThreadTeam& team, const Tensor& y, const Tensor& x) {
  for_blocks(team, x.count(), kBlock, [&](std::int64_t begin, std::int64_t end) {
    for_lanes(end - begin, [&](std::int64_t i, std::int64_t live) {
      store_n(y.as<T>() + begin + i, gelu<kind>(load_n(x.as<T>() + begin + i, live)).y, live);
    });
  });
}

template <Gelu kind, typename T>
void gelu_backward_blocks(ThreadTeam& team, const Tensor& dx, const Tensor& dy, const Tensor& x) {
  for_blocks(team, x.count(), kBlock, [&](std::int64_t begin, std::int64_t end) {
    for_lanes(end - begin, [&](std::int64_t i, std::int64_t live) {
      const Vec slope = gelu<kind>(load_n(x.as<T>() + begin + i, live)).dy;
      store_n(dx.as<T>() + begin + i, slope * load_n(dy.as<T>() + begin + i, live), live);
    });
  });
}

}  // namespace

void CpuBackend::gelu_forward(const Tensor& y, const Tensor& x, Gelu kind) {
  with_type(x.dtype, [&]<typename T>() {
    kind == Gelu::tanh ? gelu_forward_blocks<Gelu::tanh, T>(team_, y, x)
                       : gelu_forward_blocks<Gelu::erf, T>(team_, y, x);
  });
}

void CpuBackend::gelu_backward(const Tensor& dx, const Tensor& dy, const Tensor& x, Gelu kind) {
  with_type(x.dtype, [&]<typename T>() {
    kind == Gelu::tanh ? gelu_backward_blocks<Gelu::tanh, T>(team_, dx, dy, x)
                       : gelu_backward_blocks<Gelu::erf, T>(team_, dx, dy, x);
  });
}

}  // namespace shoal::cpu
