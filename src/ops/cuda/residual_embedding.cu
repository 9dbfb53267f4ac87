// Residual stream and embedding: row by row, with or without dropout.
#include <algorithm>

#include "ops/cuda/cuda_backend.h"
#include "ops/cuda/device.cuh"

namespace shoal::cuda {
namespace {

constexpr int kRowThreads = 256;

// --- a block of threads has Op::kRows rows. The loads of all of them are queued before the first store:
// x = op.template read<kWidth>(row, column), then op.write(row, column, x, factors).
template <int kWidth, typename Op>
__global__ void row_kernel(std::int64_t rows, std::int64_t positions, std::int64_t columns, Mask mask,
                           Op op) {
  constexpr int kRows = Op::kRows;
  using Read = decltype(op.template read<kWidth>(0, 0));
  const std::int64_t first = static_cast<std::int64_t>(blockIdx.x) * kRows;
  // Beyond the last row, that one is read again.
  const auto row_of = [&](int r) { return first + r < rows ? first + r : rows - 1; };
  const auto global_row = [&](int r) { return mask.row(row_of(r) / positions, row_of(r) % positions); };
  // factors_of(r) of a row of the block
  const auto apply = [&](std::int64_t column, const auto& factors_of) {
    Read x[kRows];
#pragma unroll
    for (int r = 0; r < kRows; ++r) x[r] = op.template read<kWidth>(row_of(r), column);
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      if (first + r < rows) op.write(first + r, column, x[r], factors_of(r));
    }
  };
  if (!mask.active) {
    Floats<kWidth> ones;
#pragma unroll
    for (int i = 0; i < kWidth; ++i) ones.at[i] = 1;
    for (std::int64_t c = threadIdx.x * kWidth; c < columns; c += blockDim.x * kWidth) {
      apply(c, [&](int) { return ones; });
    }
    return;
  }
  if constexpr (kWidth == 4) {
    const int lane = static_cast<int>(threadIdx.x) % kWarp, warps = static_cast<int>(blockDim.x) / kWarp;
    const std::int64_t begin = mask.first_column / (2 * kMaskColumns), end = mask.first_column + columns;
    for (std::int64_t pair = begin + threadIdx.x / kWarp; pair * 2 * kMaskColumns < end; pair += warps) {
      std::uint32_t kept[kRows];
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        kept[r] = kept_columns(mask, global_row(r), static_cast<std::uint32_t>(pair));
      }
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const std::int64_t c = (pair * 2 + i) * kMaskColumns + lane * kWidth - mask.first_column;
        if (c >= 0 && c < columns) {
          apply(c, [&](int r) { return kept_factors(mask, kept[r] >> (kWidth * i)); });
        }
      }
    }
  } else {
    const int lane = static_cast<int>(threadIdx.x) % kMaskLanes,
              halves = static_cast<int>(blockDim.x) / kMaskLanes;
    const std::int64_t begin = mask.first_column / kMaskColumns, end = mask.first_column + columns;
    for (std::int64_t block = begin + threadIdx.x / kMaskLanes; block * kMaskColumns < end; block += halves) {
      Factors factors[kRows];
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        factors[r] = dropout_factors(mask, mask.site, global_row(r), static_cast<std::uint32_t>(block),
                                     static_cast<std::uint32_t>(lane));
      }
#pragma unroll
      for (int i = 0; i < kMaskEach; ++i) {
        const std::int64_t c = block * kMaskColumns + lane + i * kMaskLanes - mask.first_column;
        if (c >= 0 && c < columns) apply(c, [&](int r) { return Floats<1>{{factors[r].at[i]}}; });
      }
    }
  }
}

template <typename Op>
void for_rows(std::int64_t rows, std::int64_t positions, std::int64_t columns, const Dropout& dropout,
              bool is_aligned, const Op& op, cudaStream_t stream) {
  constexpr int kWidth = 4;
  const Mask mask(dropout);
  const bool wide = is_aligned && columns % kWidth == 0;
  // The threads that a row needs, in whole warps.
  const std::int64_t work =
      mask.active ? ceil_div(columns, kMaskColumns) * kMaskLanes : columns / (wide ? kWidth : 1);
  const auto threads = static_cast<unsigned>(
      std::min<std::int64_t>(kRowThreads, ceil_div(std::max<std::int64_t>(work, 1), kWarp) * kWarp));
  launch(wide ? row_kernel<kWidth, Op> : row_kernel<1, Op>, blocks(ceil_div(rows, Op::kRows)), threads, 0,
         stream, rows, positions, columns, mask, op);
}

template <typename T, typename S>
struct AddBranch {
  static constexpr int kRows = 1;
  S* out;
  const S* residual;
  const T* branch;
  std::int64_t columns;
  template <int kCount>
  struct Terms {
    Floats<kCount> sum, term;
  };
  template <int kCount>
  __device__ Terms<kCount> read(std::int64_t row, std::int64_t column) const {
    const std::int64_t i = row * columns + column;
    return {load<kCount>(residual + i), load<kCount>(branch + i)};
  }
  template <int kCount>
  __device__ void write(std::int64_t row, std::int64_t column, Terms<kCount> x,
                        const Floats<kCount>& factors) const {
#pragma unroll
    for (int j = 0; j < kCount; ++j) x.sum.at[j] = fmaf(factors.at[j], x.term.at[j], x.sum.at[j]);
    store(out + row * columns + column, x.sum);
  }
};

template <typename T, typename S>
struct MaskGradient {
  static constexpr int kRows = 1;
  T* dbranch;
  const S* dout;
  std::int64_t columns;
  template <int kCount>
  __device__ Floats<kCount> read(std::int64_t row, std::int64_t column) const {
    return load<kCount>(dout + row * columns + column);
  }
  template <int kCount>
  __device__ void write(std::int64_t row, std::int64_t column, Floats<kCount> value,
                        const Floats<kCount>& factors) const {
#pragma unroll
    for (int j = 0; j < kCount; ++j) value.at[j] *= factors.at[j];
    store(dbranch + row * columns + column, value);
  }
};

template <typename T, typename S>
struct Embed {
  static constexpr int kRows = 4;  // the address of a load is itself loaded, so one row would wait twice
  S* out;
  const std::int32_t* tokens;
  const T* wte;
  const T* wpe;  // from the window's first position on, or from 0 with `positions`
  const std::int32_t* positions;
  std::int64_t first_class, classes, length, columns;
  template <int kCount>
  struct Terms {
    Floats<kCount> place, word;
    bool here;  // the class is of this rank
  };
  template <int kCount>
  __device__ Terms<kCount> read(std::int64_t row, std::int64_t column) const {
    const std::int64_t token = tokens[row] - first_class;
    const bool here = token >= 0 && token < classes;
    const std::int64_t position =
        positions ? positions[row] : static_cast<std::uint32_t>(row) % static_cast<std::uint32_t>(length);
    const T* place = wpe + position * columns;
    // Without a branch, or each row would wait for the one before.
    const T* word = here ? wte + token * columns : place;
    return {load<kCount>(place + column), load<kCount>(word + column), here};
  }
  template <int kCount>
  __device__ void write(std::int64_t row, std::int64_t column, const Terms<kCount>& x,
                        const Floats<kCount>& factors) const {
    Floats<kCount> value;
#pragma unroll
    for (int j = 0; j < kCount; ++j) {
      value.at[j] = x.here ? (x.place.at[j] + x.word.at[j]) * factors.at[j] : 0.0f;
    }
    store(out + row * columns + column, value);
  }
};

}  // namespace

void CudaBackend::residual_forward(const Tensor& out, const Tensor& residual, const Tensor& branch,
                                   const Dropout& dropout) {
  with_types(branch.dtype, out.dtype, [&]<typename T, typename S>() {
    for_rows(out.rows(), out.dim(1), out.columns(), dropout, aligned(out.data, residual.data, branch.data),
             AddBranch<T, S>{out.as<S>(), residual.as<S>(), branch.as<T>(), out.columns()}, stream_.get());
  });
}

void CudaBackend::residual_backward(const Tensor& dbranch, const Tensor& dout, const Dropout& dropout) {
  if (!dropout.active()) return convert(dbranch, dout);
  with_types(dbranch.dtype, dout.dtype, [&]<typename T, typename S>() {
    for_rows(dout.rows(), dout.dim(1), dout.columns(), dropout, aligned(dbranch.data, dout.data),
             MaskGradient<T, S>{dbranch.as<T>(), dout.as<S>(), dout.columns()}, stream_.get());
  });
}

void CudaBackend::embedding_forward(const Tensor& out, const Tensor& tokens, const Tensor& wte,
                                    const Tensor& wpe, std::int64_t first_class, const Dropout& dropout,
                                    const Tensor& positions) {
  const std::int64_t columns = out.columns(), length = tokens.dim(1);
  const std::int64_t first_position = positions ? 0 : dropout.window.first_position;
  with_types(wte.dtype, out.dtype, [&]<typename T, typename S>() {
    for_rows(tokens.count(), length, columns, dropout, aligned(out.data, wte.data, wpe.data),
             Embed<T, S>{out.as<S>(), tokens.as<std::int32_t>(), wte.as<T>(),
                         wpe.as<T>() + first_position * columns, positions.as<std::int32_t>(), first_class,
                         wte.rows(), length, columns},
             stream_.get());
  });
}

}  // namespace shoal::cuda
