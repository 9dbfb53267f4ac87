#include "checkpoint/slice.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace shoal {

namespace {

// The rows that two boxes of one tensor share: `rows` runs of `length` elements that are contiguous in both.
class SharedRows {
 public:
  SharedRows(const TensorSlice& a, const TensorSlice& b) {
    const int rank = a.shape.rank();
    int dim = rank - 1;
    // Dimensions that are cut alike join the run.
    for (; dim > 0 && a.offset[dim] == b.offset[dim] && a.shape[dim] == b.shape[dim]; --dim) {
      length_ *= a.shape[dim];
    }
    std::int64_t stride_a = length_, stride_b = length_;
    for (int i = dim; i >= 0; --i) {
      const std::int64_t low = std::max(a.offset[i], b.offset[i]);
      const std::int64_t high = std::min(a.offset[i] + a.shape[i], b.offset[i] + b.shape[i]);
      const std::int64_t extent = std::max<std::int64_t>(0, high - low);
      start_a_ += (low - a.offset[i]) * stride_a;
      start_b_ += (low - b.offset[i]) * stride_b;
      if (i == dim) {
        length_ *= extent;
      } else {
        outer_.push_back({extent, stride_a, stride_b});
        rows_ *= extent;
      }
      stride_a *= a.shape[i];
      stride_b *= b.shape[i];
    }
    if (length_ == 0) rows_ = 0;
  }

  std::int64_t rows() const { return rows_; }
  std::int64_t length() const { return length_; }

  // The positions of a row's start in the flattened boxes of a and b. Both grow with `row`.
  std::pair<std::int64_t, std::int64_t> start(std::int64_t row) const {
    std::int64_t at_a = start_a_, at_b = start_b_;
    for (const auto& dim : outer_) {
      at_a += row % dim.extent * dim.stride_a;
      at_b += row % dim.extent * dim.stride_b;
      row /= dim.extent;
    }
    return {at_a, at_b};
  }

 private:
  struct Dim {
    std::int64_t extent, stride_a, stride_b;
  };
  std::vector<Dim> outer_;  // innermost first
  std::int64_t rows_ = 1, length_ = 1, start_a_ = 0, start_b_ = 0;
};

void append_runs(const TensorSlice& target, const TensorSlice& from, std::size_t source,
                 std::vector<CopyRun>& runs) {
  const SharedRows shared(target, from);
  const std::int64_t length = shared.length();
  // The first row that ends inside both flat ranges or past them; what lies before it is not visited.
  std::int64_t low = 0, high = shared.rows();
  while (low < high) {
    const std::int64_t middle = low + (high - low) / 2;
    const auto [t, f] = shared.start(middle);
    if (t + length > target.flat_begin && f + length > from.flat_begin) {
      high = middle;
    } else {
      low = middle + 1;
    }
  }
  for (std::int64_t row = low; row < shared.rows(); ++row) {
    const auto [t, f] = shared.start(row);
    if (t >= target.flat_end || f >= from.flat_end) break;
    const std::int64_t begin = std::max({std::int64_t{0}, target.flat_begin - t, from.flat_begin - f});
    const std::int64_t end = std::min({length, target.flat_end - t, from.flat_end - f});
    if (begin >= end) continue;
    const CopyRun run{t + begin - target.flat_begin, f + begin - from.flat_begin, end - begin, source};
    CopyRun* last = runs.empty() ? nullptr : &runs.back();
    if (last && last->source == source && last->to + last->count == run.to &&
        last->from + last->count == run.from) {
      last->count += run.count;
    } else {
      runs.push_back(run);
    }
  }
}

}  // namespace

TensorSlice whole_slice(std::string name, DType dtype, const Shape& global_shape) {
  return box_slice(std::move(name), dtype, global_shape, 0, 0, global_shape.rank() ? global_shape[0] : 1);
}

TensorSlice box_slice(std::string name, DType dtype, const Shape& global_shape, int dim, std::int64_t begin,
                      std::int64_t size) {
  TensorSlice slice{std::move(name), dtype, global_shape, {}, global_shape, 0, 0};
  for (int i = 0; i < global_shape.rank(); ++i) slice.offset.push_back(0);
  if (global_shape.rank() > 0) {
    slice.offset[dim] = begin;
    slice.shape[dim] = size;
  }
  slice.flat_end = slice.shape.count();
  return slice;
}

std::string to_string(const TensorSlice& slice) {
  return fmt::format("{} from {}, elements {} to {}", slice.shape.to_string(), slice.offset.to_string(),
                     slice.flat_begin, slice.flat_end);
}

std::int64_t checked_bytes(const Shape& shape, std::size_t element_bytes) {
  // A dimension of zero does not excuse the others: strides are their products.
  auto bytes = static_cast<std::int64_t>(element_bytes);
  bool empty = false;
  for (int i = 0; i < shape.rank(); ++i) {
    empty |= shape[i] == 0;
    if (shape[i] < 0 || __builtin_mul_overflow(bytes, std::max<std::int64_t>(1, shape[i]), &bytes)) return -1;
  }
  return empty ? 0 : bytes;
}

std::string fault_of(const TensorSlice& slice) {
  const int rank = slice.global_shape.rank();
  if (slice.name.empty()) return "it has no name";
  if (slice.offset.rank() != rank || slice.shape.rank() != rank) {
    return fmt::format("the slice ({}) has another number of dimensions than the tensor, {}",
                       to_string(slice), slice.global_shape.to_string());
  }
  if (checked_bytes(slice.global_shape, size_of(slice.dtype)) < 0) {
    return fmt::format("its size {} is impossible", slice.global_shape.to_string());
  }
  for (int i = 0; i < rank; ++i) {
    const std::int64_t offset = slice.offset[i], size = slice.shape[i], global = slice.global_shape[i];
    if (offset < 0 || size < 0 || size > global || offset > global - size) {
      return fmt::format("the slice ({}) lies outside the tensor, {}", to_string(slice),
                         slice.global_shape.to_string());
    }
  }
  if (slice.flat_begin < 0 || slice.flat_begin > slice.flat_end || slice.flat_end > slice.shape.count()) {
    return fmt::format("the slice ({}) lies outside its box", to_string(slice));
  }
  return {};
}

CopyPlan plan_copy(const TensorSlice& target, std::span<const TensorSlice> sources) {
  std::vector<CopyRun> found;
  for (std::size_t i = 0; i < sources.size(); ++i) append_runs(target, sources[i], i, found);
  std::stable_sort(found.begin(), found.end(),
                   [](const CopyRun& a, const CopyRun& b) { return a.to < b.to; });

  CopyPlan plan;
  std::int64_t done = 0;
  const auto miss = [&](std::int64_t until) {
    if (until <= done) return;
    if (plan.missing == 0) plan.first_missing = done;
    plan.missing += until - done;
  };
  for (CopyRun run : found) {
    const std::int64_t end = run.to + run.count;
    if (end <= done) continue;
    miss(run.to);
    const std::int64_t known = std::max<std::int64_t>(0, done - run.to);
    plan.runs.push_back({run.to + known, run.from + known, run.count - known, run.source});
    done = end;
  }
  miss(target.count());
  return plan;
}

std::string coordinates(const TensorSlice& slice, std::int64_t i) {
  Shape at = slice.offset;
  std::int64_t rest = slice.flat_begin + i;
  for (int dim = slice.shape.rank() - 1; dim >= 0; --dim) {
    at[dim] += rest % slice.shape[dim];
    rest /= slice.shape[dim];
  }
  return at.to_string();
}

}  // namespace shoal
