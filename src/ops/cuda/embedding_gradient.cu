// The embedding's gradient. Rows are sorted by class, those of a class in their order. The rows of a
// class, a run, are added up in pieces: a warp adds up to 32 rows, counted from the run's first row, one
// after the other. The first piece is added to the gradient, and the others, from a second kernel, after it.
// So the sum of a class depends on its own rows alone, not on where they are sorted to.
#include <algorithm>
#include <bit>

#include "ops/cuda/cuda_backend.h"
#include "ops/cuda/device.cuh"
#include "ops/cuda/sort.h"

namespace shoal::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kPiece = kWarp;             // rows; the warp compares as many keys at once
constexpr int kAhead = 2;                 // rows whose loads are in flight
constexpr int kPair = 2 * kMaskColumns;   // columns of a warp, eight for a lane
constexpr int kGroups = 4;                // warps of a block that share one sum
constexpr std::int64_t kAlignment = 256;  // of arrays in scratch memory, in bytes

using Sums = Floats<kMaskEach>;

// The columns of a lane, of the 256 from 256 * pair on: groups of kWidth neighbouring ones.
template <int kWidth>
struct Lane {
  std::int64_t columns;  // of a row
  std::uint32_t pair;

  // Visits the groups that exist: (first column, first element of the lane's sums).
  template <typename Visit>
  __device__ void for_groups(const Visit& visit) const {
    const int lane = static_cast<int>(threadIdx.x) % kWarp;
    const std::int64_t first =
        std::int64_t{pair} * kPair +
        (kWidth == 4 ? lane * kWidth : lane / kMaskLanes * kMaskColumns + lane % kMaskLanes);
#pragma unroll
    for (int i = 0; i < kMaskEach / kWidth; ++i) {
      const std::int64_t column = first + i * (kWidth == 4 ? kMaskColumns : kMaskLanes);
      if (column < columns) visit(column, i * kWidth);
    }
  }
  template <typename S>
  __device__ Sums read(const S* row) const {
    Sums x{};
    for_groups([&](std::int64_t column, int at) {
      const auto group = load<kWidth>(row + column);
#pragma unroll
      for (int j = 0; j < kWidth; ++j) x.at[at + j] = group.at[j];
    });
    return x;
  }
  template <typename G>
  __device__ void write(G* row, const Sums& x) const {
    for_groups([&](std::int64_t column, int at) {
      Floats<kWidth> group;
#pragma unroll
      for (int j = 0; j < kWidth; ++j) group.at[j] = x.at[at + j];
      store(row + column, group);
    });
  }
  // All lanes of the warp take part.
  __device__ Sums factors(const Mask& mask, std::uint32_t global_row) const {
    Sums x;
    if constexpr (kWidth == 4) {
      const std::uint32_t kept = kept_columns(mask, global_row, pair);
#pragma unroll
      for (int i = 0; i < kMaskEach; ++i) x.at[i] = (kept >> i & 1u) != 0 ? mask.scale : 0.0f;
    } else {
      const std::uint32_t lane = threadIdx.x % kWarp;
      const Factors factors =
          dropout_factors(mask, mask.site, global_row, 2 * pair + lane / kMaskLanes, lane % kMaskLanes);
#pragma unroll
      for (int i = 0; i < kMaskEach; ++i) x.at[i] = factors.at[i];
    }
    return x;
  }
};

__device__ inline void add(Sums& sums, const Sums& x) {
#pragma unroll
  for (int i = 0; i < kMaskEach; ++i) sums.at[i] += x.at[i];
}

// The rows that are summed: of the gradient of the output, masked, or of sums.
template <typename S, bool kMasked>
struct Source {
  const S* x;
  std::int64_t positions;
  Mask mask;
};

// Adds the rows row_of(i), for i below count, one after the other.
template <int kWidth, typename S, bool kMasked, typename RowOf>
__device__ Sums sum_rows(const Source<S, kMasked>& source, const Lane<kWidth>& mine, int count,
                         const RowOf& row_of) {
  Sums sums{};
  for (int begin = 0; begin < count; begin += kAhead) {
    std::int32_t rows[kAhead] = {};
    Sums values[kAhead] = {};
#pragma unroll
    for (int k = 0; k < kAhead; ++k) {
      if (begin + k < count) rows[k] = static_cast<std::int32_t>(row_of(begin + k));
    }
#pragma unroll
    for (int k = 0; k < kAhead; ++k) {
      if (begin + k < count) values[k] = mine.read(source.x + rows[k] * mine.columns);
    }
#pragma unroll
    for (int k = 0; k < kAhead; ++k) {
      if (begin + k >= count) break;
      if constexpr (kMasked) {
        const auto row = static_cast<std::uint32_t>(rows[k]),
                   positions = static_cast<std::uint32_t>(source.positions);
        const Sums factors = mine.factors(source.mask, source.mask.row(row / positions, row % positions));
#pragma unroll
        for (int i = 0; i < kMaskEach; ++i) sums.at[i] = fmaf(factors.at[i], values[k].at[i], sums.at[i]);
      } else {
        add(sums, values[k]);
      }
    }
  }
  return sums;
}

// Adds rows to `to` as a block of kGroups warps: each adds up every fourth row, then the first adds their
// sums.
template <int kWidth, typename G, typename S, bool kMasked, typename RowOf>
__device__ void add_rows(G* to, const Source<S, kMasked>& source, const Lane<kWidth>& mine, int count,
                         const RowOf& row_of) {
  __shared__ Sums sums[kGroups][kWarp];
  const int group = static_cast<int>(threadIdx.x) / kWarp, lane = static_cast<int>(threadIdx.x) % kWarp;
  Sums total{};
  if (group == 0) total = mine.read(to);
  sums[group][lane] = sum_rows(source, mine, (count - group + kGroups - 1) / kGroups,
                               [&](int i) { return row_of(i * kGroups + group); });
  __syncthreads();
  if (group > 0) return;
  Sums added = sums[0][lane];
  for (int other = 1; other < kGroups; ++other) add(added, sums[other][lane]);
  add(total, added);
  mine.write(to, total);
}

// keys [row]: the class of its token, or `classes` for a class of other ranks.
__global__ void keys_kernel(std::uint32_t* keys, std::int32_t* order, const std::int32_t* tokens,
                            std::int64_t rows, std::int64_t first_class, std::int64_t classes) {
  const std::int64_t row = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (row >= rows) return;
  const std::int64_t token = tokens[row] - first_class;
  keys[row] = static_cast<std::uint32_t>(token >= 0 && token < classes ? token : classes);
  order[row] = static_cast<std::int32_t>(row);
}

struct Sorted {
  const std::uint32_t* keys;
  const std::int32_t* order;  // the rows with these keys
  std::int64_t rows;
  std::uint32_t classes;

  // Whether the row is the first of its class.
  __device__ bool begins_run(std::int64_t at) const { return at == 0 || keys[at - 1] != keys[at]; }

  // The first of [begin, end) with a key that is not less, or `end`. All lanes of the warp take part.
  __device__ std::int64_t find(std::int64_t begin, std::int64_t end, std::uint32_t key) const {
    const int lane = static_cast<int>(threadIdx.x) % kWarp;
    while (begin < end) {
      // Each lane has a part and looks at its last key.
      const std::int64_t part = (end - begin + kWarp - 1) / kWarp, last = begin + (lane + 1) * part - 1;
      const int less = count_bits(ballot(keys[last < end ? last : end - 1] < key));
      const std::int64_t next = begin + less * part;
      if (next >= end) return end;
      begin = next;
      end = (begin + part < end ? begin + part : end) - 1;
    }
    return begin;
  }
};

// A warp for 256 columns of the pieces that begin within 32 sorted rows.
template <int kWidth, bool kMasked, typename S, typename G>
__global__ void __launch_bounds__(kThreads, kMasked ? 3 : 4)
    pieces_kernel(G* dwte, float* parts, Sorted sorted, Source<S, kMasked> source, std::int64_t columns) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const std::int64_t warp = (static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x) / kWarp,
                     pairs = (columns + kPair - 1) / kPair, window = warp / pairs * kPiece;
  if (window >= sorted.rows) return;
  const std::uint32_t first_key = sorted.keys[window];
  if (first_key == sorted.classes) return;  // rows of other ranks, which are last
  const Lane<kWidth> mine{columns, static_cast<std::uint32_t>(warp % pairs)};
  std::uint32_t starts = ballot(window + lane < sorted.rows && sorted.begins_run(window + lane));
  if ((starts & 1u) == 0) {
    // The pieces of an earlier run begin at the place in a window where the run does.
    const std::int64_t place = sorted.find(0, window, first_key) % kPiece;
    if (window + place < sorted.rows && sorted.keys[window + place] == first_key) starts |= 1u << place;
  }
  for (; starts != 0; starts &= starts - 1) {
    const std::int64_t start = window + lowest_bit(starts), at = start + lane;
    const std::uint32_t key = sorted.keys[start];
    if (key == sorted.classes) return;
    const int count = count_bits(ballot(at < sorted.rows && sorted.keys[at] == key));
    // At most one later piece begins in a window: those of one run are 32 rows apart, and between those of
    // two runs are the 32 rows of the second run's first piece.
    const bool first = sorted.begins_run(start);
    G* to = dwte + std::int64_t{key} * columns;
    Sums total{};
    if (first) total = mine.read(to);
    add(total, sum_rows(source, mine, count, [&](int i) { return sorted.order[start + i]; }));
    first ? mine.write(to, total) : mine.write(parts + window / kPiece * columns, total);
  }
}

// Adds a run's later pieces. A block for 256 columns of the run of more than 32 rows that begins within 32
// sorted rows; there is at most one.
template <int kWidth, typename G>
__global__ void __launch_bounds__(kGroups* kWarp)
    runs_kernel(G* dwte, Sorted sorted, Source<float, false> parts, std::int64_t columns) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const std::int64_t pairs = (columns + kPair - 1) / kPair, window = blockIdx.x / pairs * kPiece,
                     at = window + lane;
  const std::uint32_t found = ballot(at + kPiece < sorted.rows &&
                                     sorted.keys[at + kPiece] == sorted.keys[at] && sorted.begins_run(at));
  if (found == 0) return;
  const std::int64_t start = window + lowest_bit(found);
  const std::uint32_t key = sorted.keys[start];
  if (key == sorted.classes) return;
  const std::int64_t end = sorted.find(start, sorted.rows, key + 1);
  // One in each of the next windows.
  const auto later = static_cast<int>((end - start - 1) / kPiece);
  add_rows(dwte + std::int64_t{key} * columns, parts,
           Lane<kWidth>{columns, static_cast<std::uint32_t>(blockIdx.x % pairs)}, later,
           [&](int i) { return window / kPiece + 1 + i; });
}

// A block for 256 columns of a position.
template <int kWidth, bool kMasked, typename S, typename G>
__global__ void __launch_bounds__(kGroups* kWarp, kMasked ? 6 : 8)
    positions_kernel(G* dwpe, Source<S, kMasked> source, int samples, std::int64_t columns) {
  const std::int64_t pairs = (columns + kPair - 1) / kPair, t = blockIdx.x / pairs;
  add_rows(dwpe + t * columns, source, Lane<kWidth>{columns, static_cast<std::uint32_t>(blockIdx.x % pairs)},
           samples, [&](int b) { return b * source.positions + t; });
}

}  // namespace

void CudaBackend::embedding_backward(const Tensor& dwte, const Tensor& dwpe, const Tensor& dout,
                                     const Tensor& tokens, std::int64_t first_class, const Dropout& dropout) {
  const std::int64_t rows = tokens.count(), positions = tokens.dim(1), columns = dout.columns(),
                     classes = dwte.rows(), windows = ceil_div(rows, kPiece),
                     pairs = ceil_div(columns, kPair);
  SortPairs by_class{};
  by_class.count = static_cast<std::uint32_t>(rows);
  by_class.bits = static_cast<int>(std::bit_width(static_cast<std::uint64_t>(classes)));
  // Parts of sums, then four arrays of a word for each row, then the sort's own memory.
  const std::int64_t of_parts = ceil_div(windows * columns * 4, kAlignment) * kAlignment,
                     of_rows = ceil_div(rows * 4, kAlignment) * kAlignment;
  auto* memory =
      scratch_.take<std::byte>(of_parts + 4 * of_rows + static_cast<std::int64_t>(sort_room(by_class)));
  const auto array = [&](int i) { return memory + of_parts + i * of_rows; };
  auto* parts = reinterpret_cast<float*>(memory);
  auto* keys = reinterpret_cast<std::uint32_t*>(array(0));
  auto* order = reinterpret_cast<std::int32_t*>(array(1));
  by_class.keys = keys;
  by_class.values = order;
  by_class.sorted_keys = reinterpret_cast<std::uint32_t*>(array(2));
  by_class.sorted_values = reinterpret_cast<std::int32_t*>(array(3));
  cudaStream_t stream = stream_.get();
  launch(keys_kernel, blocks(ceil_div(rows, kThreads)), kThreads, 0, stream, keys, order,
         tokens.as<std::int32_t>(), rows, first_class, classes);
  sort_pairs(by_class, array(4), stream);

  const Sorted sorted{by_class.sorted_keys, by_class.sorted_values, rows,
                      static_cast<std::uint32_t>(classes)};
  const Tensor places = dwpe.row_range(dropout.window.first_position, positions);
  const auto add_up_types = [&]<int kWidth, bool kMasked, typename S, typename G>() {
    const Source<S, kMasked> source{dout.as<S>(), positions, Mask(dropout)};
    const Source<float, false> of_pieces{parts, 1, Mask(Dropout{})};
    launch(pieces_kernel<kWidth, kMasked, S, G>, blocks(ceil_div(windows * pairs, kThreads / kWarp)),
           kThreads, 0, stream, dwte.as<G>(), parts, sorted, source, columns);
    launch(runs_kernel<kWidth, G>, blocks(windows * pairs), kGroups * kWarp, 0, stream, dwte.as<G>(), sorted,
           of_pieces, columns);
    launch(positions_kernel<kWidth, kMasked, S, G>, blocks(positions * pairs), kGroups * kWarp, 0, stream,
           places.as<G>(), source, static_cast<int>(rows / positions), columns);
  };
  const auto add_up = [&]<int kWidth, bool kMasked>() {
    with_type(dout.dtype, [&]<typename S>() {
      with_type(dwte.dtype, [&]<typename G>() { add_up_types.template operator()<kWidth, kMasked, S, G>(); });
    });
  };
  const bool masked = dropout.active();
  if (aligned(dwte.data, places.data, dout.data) && columns % 4 == 0) {
    masked ? add_up.template operator()<4, true>() : add_up.template operator()<4, false>();
  } else {
    masked ? add_up.template operator()<1, true>() : add_up.template operator()<1, false>();
  }
}

}  // namespace shoal::cuda
