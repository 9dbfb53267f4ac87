// Weights in 8 bits.
#include "ops/int8.h"

#include <cstring>

#include "ops/cpu/cpu_backend.h"
#include "ops/cpu/simd.h"
#include "ops/cpu/threads.h"

namespace shoal::cpu {

void CpuBackend::to_int8(const Tensor& out, const Tensor& w) {
  const std::int64_t columns = w.columns();
  // Beside w, whose memory `out` may be.
  const Tensor beside{widened_.take<std::int8_t>(out.count()), DType::i8, out.shape};
  const Int8Rows packed(beside);
  with_type(w.dtype, [&]<typename T>() {
    for_blocks(team_, packed.rows(), rows_per_block(columns), [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t n = begin; n < end; ++n) packed.set(n, w.as<T>() + n * columns);
    });
  });
  std::memcpy(out.data, beside.data, out.bytes());
}

Tensor CpuBackend::widened(const Tensor& packed, DType type) {
  const Int8Rows from(packed);
  const std::int64_t columns = from.columns();
  const Tensor to{widened_.take<float>(from.rows() * columns), type, {from.rows(), columns}};
  with_type(type, [&]<typename T>() {
    for_blocks(team_, from.rows(), rows_per_block(columns), [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t n = begin; n < end; ++n) {
        for_lanes(columns, [&](std::int64_t k, std::int64_t live) {
          store_n(to.as<T>() + n * columns + k, load_n(from.row(n) + k, live) * from.step(n), live);
        });
      }
    });
  });
  return to;
}

}  // namespace shoal::cpu
