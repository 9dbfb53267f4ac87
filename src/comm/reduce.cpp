#include "comm/reduce.h"

#include <algorithm>
#include <cstring>

#include "comm/arguments.h"

namespace shoal {
namespace {

// Elements per block. Their sums stay in the L1 cache, so each input is read and each output written once.
constexpr std::int64_t kBlock = 512;

float widen(bfloat16 value) { return to_float(value); }
float widen(float value) { return value; }
double widen(double value) { return value; }
std::int32_t widen(std::int32_t value) { return value; }

void narrow(bfloat16& to, float value) { to = to_bfloat16(value); }
template <typename T>
void narrow(T& to, T value) {
  to = value;
}

struct Sum {
  template <typename T>
  T operator()(T a, T b) const {
    return a + b;
  }
  std::int32_t operator()(std::int32_t a, std::int32_t b) const {  // wraps around
    return static_cast<std::int32_t>(static_cast<std::uint32_t>(a) + static_cast<std::uint32_t>(b));
  }
};

struct Max {
  template <typename T>
  T operator()(T a, T b) const {
    return a > b || a != a ? a : b;
  }
};

struct Min {
  template <typename T>
  T operator()(T a, T b) const {
    return a < b || a != a ? a : b;
  }
};

// Not inlined: the compiler would interchange the loops over ranks and elements, and use gather instructions.
template <typename T, typename Wide, typename Op>
[[gnu::noinline]] void add_to(Wide* sums, const T* x, std::int64_t n, Op op) {
  for (std::int64_t i = 0; i < n; ++i) sums[i] = op(sums[i], widen(x[i]));
}

template <typename T, typename Op>
void reduce_typed(std::span<std::byte* const> outs, std::int64_t first_out,
                  std::span<const std::byte* const> xs, std::int64_t first_x, std::int64_t count, Op op) {
  using Wide = decltype(widen(T{}));
  alignas(64) Wide sums[kBlock];
  for (std::int64_t done = 0; done < count; done += kBlock) {
    const std::int64_t n = std::min(kBlock, count - done);
    const auto x = [&](std::size_t r) { return reinterpret_cast<const T*>(xs[r]) + first_x + done; };
    for (std::int64_t i = 0; i < n; ++i) sums[i] = op(widen(x(0)[i]), widen(x(1)[i]));
    for (std::size_t r = 2; r < xs.size(); ++r) add_to(sums, x(r), n, op);
    auto* to = reinterpret_cast<T*>(outs[0]) + first_out + done;
    for (std::int64_t i = 0; i < n; ++i) narrow(to[i], sums[i]);
    for (auto* out : outs.subspan(1)) {
      std::memcpy(reinterpret_cast<T*>(out) + first_out + done, to, static_cast<std::size_t>(n) * sizeof(T));
    }
  }
}

template <typename T>
void reduce_with(std::span<std::byte* const> outs, std::int64_t first_out,
                 std::span<const std::byte* const> xs, std::int64_t first_x, std::int64_t count,
                 ReduceOp op) {
  switch (op) {
    case ReduceOp::sum:
      return reduce_typed<T>(outs, first_out, xs, first_x, count, Sum());
    case ReduceOp::max:
      return reduce_typed<T>(outs, first_out, xs, first_x, count, Max());
    case ReduceOp::min:
      return reduce_typed<T>(outs, first_out, xs, first_x, count, Min());
  }
}

}  // namespace

void reduce(std::span<std::byte* const> outs, std::int64_t first_out, std::span<const std::byte* const> xs,
            std::int64_t first_x, std::int64_t count, DType dtype, ReduceOp op) {
  switch (dtype) {
    case DType::f32:
      return reduce_with<float>(outs, first_out, xs, first_x, count, op);
    case DType::bf16:
      return reduce_with<bfloat16>(outs, first_out, xs, first_x, count, op);
    case DType::f64:
      return reduce_with<double>(outs, first_out, xs, first_x, count, op);
    case DType::i32:
      return reduce_with<std::int32_t>(outs, first_out, xs, first_x, count, op);
    case DType::f16:
    case DType::i8:
      check_reducible(dtype);
  }
}

}  // namespace shoal
