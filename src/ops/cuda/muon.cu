// Muon's parts beside its products: element-wise ops, and transposed copies.
#include "ops/cuda/cuda_backend.h"
#include "ops/cuda/elementwise.cuh"

namespace shoal::cuda {
namespace {

struct Direction {
  float* direction;
  float* momentum;
  const float* grad_scale;
  float beta, rest;
  bool nesterov;

  template <int kCount>
  __device__ void at(std::int64_t i) const {
    const float scale = grad_scale ? *grad_scale : 1.0f;
    if (isnan(scale)) return;
    auto g = load<kCount>(direction + i), m = load<kCount>(momentum + i);
#pragma unroll
    for (int j = 0; j < kCount; ++j) {
      g.at[j] *= scale;
      m.at[j] = fmaf(beta, m.at[j], rest * g.at[j]);
      g.at[j] = nesterov ? fmaf(beta, m.at[j], rest * g.at[j]) : m.at[j];
    }
    store(momentum + i, m);
    store(direction + i, g);
  }
};

struct MatrixUpdate {
  float* weights;
  bfloat16* compute;
  const float* direction;
  const float* lr;
  const float* grad_scale;
  float decay;

  template <int kCount>
  __device__ void at(std::int64_t i) const {
    auto w = load<kCount>(weights + i);
    if (!grad_scale || !isnan(*grad_scale)) {
      const float rate = *lr, keep = 1.0f - rate * decay;
      const auto step = load<kCount>(direction + i);
#pragma unroll
      for (int j = 0; j < kCount; ++j) w.at[j] = fmaf(w.at[j], keep, -(rate * step.at[j]));
      store(weights + i, w);
    }
    if (compute) store(compute + i, w);
  }
};

template <typename T>
struct Normalize {
  T* out;
  const float* x;
  const double* squares;
  template <int kCount>
  __device__ void at(std::int64_t i) const {
    const auto factor = static_cast<float>(1 / fmax(sqrt(*squares), kMuonEps));
    auto value = load<kCount>(x + i);
#pragma unroll
    for (int j = 0; j < kCount; ++j) value.at[j] *= factor;
    store(out + i, value);
  }
};

template <typename T>
struct ScaleAndAdd {
  T* x;
  const float* y;
  float factor, y_factor;
  template <int kCount>
  __device__ void at(std::int64_t i) const {
    auto value = load<kCount>(x + i);
    const auto term = load<kCount>(y + i);
#pragma unroll
    for (int j = 0; j < kCount; ++j) value.at[j] = fmaf(factor, value.at[j], y_factor * term.at[j]);
    store(x + i, value);
  }
};

// A square of the matrix goes through shared memory, so that rows are read and columns written in one piece.
constexpr int kSquare = 32, kSquareRows = 8;

template <typename Out, typename In>
__global__ void transpose_kernel(Out* out, const In* x, std::int64_t rows, std::int64_t columns) {
  __shared__ float square[kSquare][kSquare + 1];
  const std::int64_t row = static_cast<std::int64_t>(blockIdx.y) * kSquare,
                     column = static_cast<std::int64_t>(blockIdx.x) * kSquare;
  const int lane = static_cast<int>(threadIdx.x) % kSquare, first = static_cast<int>(threadIdx.x) / kSquare;
  for (int i = first; i < kSquare; i += kSquareRows) {
    if (row + i < rows && column + lane < columns)
      square[i][lane] = widen(x[(row + i) * columns + column + lane]);
  }
  __syncthreads();
  for (int i = first; i < kSquare; i += kSquareRows) {
    if (column + i < columns && row + lane < rows)
      out[(column + i) * rows + row + lane] = narrow<Out>(square[lane][i]);
  }
}

template <typename T>
__global__ void symmetric_kernel(T* out, std::int64_t size, std::int64_t first, const float* rows,
                                 std::int64_t stride, float factor, const T* base, float base_factor) {
  __shared__ float square[kSquare][kSquare + 1];
  const std::int64_t row = first + static_cast<std::int64_t>(blockIdx.y) * kSquare,
                     column = static_cast<std::int64_t>(blockIdx.x) * kSquare;
  const int lane = static_cast<int>(threadIdx.x) % kSquare, top = static_cast<int>(threadIdx.x) / kSquare;
  for (int i = top; i < kSquare; i += kSquareRows) {
    const std::int64_t r = row + i, c = column + lane;
    if (r >= stride || c > r) continue;
    float value = factor * rows[(r - first) * stride + c];
    if (base) value = fmaf(base_factor, widen(base[r * size + c]), value);
    square[i][lane] = value;
    out[r * size + c] = narrow<T>(value);
  }
  __syncthreads();
  for (int i = top; i < kSquare; i += kSquareRows) {
    const std::int64_t r = row + lane, c = column + i;
    if (r < stride && c < r) out[c * size + r] = narrow<T>(square[lane][i]);
  }
}

dim3 square_grid(std::int64_t rows, std::int64_t columns) {
  return {static_cast<unsigned>(ceil_div(columns, kSquare)), static_cast<unsigned>(ceil_div(rows, kSquare))};
}

}  // namespace

void CudaBackend::muon_direction(const Tensor& direction, const Tensor& momentum,
                                 const MuonSettings& settings) {
  for_elements<4>(direction.count(), aligned(direction.data, momentum.data),
                  Direction{direction.as<float>(), momentum.as<float>(), settings.grad_scale,
                            settings.momentum, 1.0f - settings.momentum, settings.nesterov},
                  stream_.get());
}

void CudaBackend::muon_update(const MuonTensors& args, const MuonSettings& settings) {
  for_elements<4>(
      args.weights.count(), aligned(args.weights.data, args.compute.data, args.direction.data),
      MatrixUpdate{args.weights.as<float>(), args.compute.as<bfloat16>(), args.direction.as<float>(),
                   settings.lr, settings.grad_scale, settings.weight_decay},
      stream_.get());
}

void CudaBackend::normalize(const Tensor& out, const Tensor& x, const Tensor& squares) {
  with_type(out.dtype, [&]<typename T>() {
    for_elements<4>(x.count(), aligned(out.data, x.data),
                    Normalize<T>{out.as<T>(), x.as<float>(), squares.as<double>()}, stream_.get());
  });
}

void CudaBackend::transpose(const Tensor& out, const Tensor& x) {
  with_type(out.dtype, [&]<typename Out>() {
    with_type(x.dtype, [&]<typename In>() {
      launch(transpose_kernel<Out, In>, square_grid(x.rows(), x.columns()), kSquare * kSquareRows, 0,
             stream_.get(), out.as<Out>(), x.as<In>(), x.rows(), x.columns());
    });
  });
}

void CudaBackend::scale_and_add(const Tensor& x, float factor, const Tensor& y, float y_factor) {
  with_type(x.dtype, [&]<typename T>() {
    for_elements<4>(x.count(), aligned(x.data, y.data),
                    ScaleAndAdd<T>{x.as<T>(), y.as<float>(), factor, y_factor}, stream_.get());
  });
}

void CudaBackend::set_symmetric_rows(const SymmetricRows& args) {
  with_type(args.out.dtype, [&]<typename T>() {
    launch(symmetric_kernel<T>, square_grid(args.rows.rows(), args.rows.columns()), kSquare * kSquareRows, 0,
           stream_.get(), args.out.as<T>(), args.out.columns(), args.first, args.rows.as<float>(),
           args.rows.columns(), args.factor, args.base.as<T>(), args.base_factor);
  });
}

}  // namespace shoal::cuda
