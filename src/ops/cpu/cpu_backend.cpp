#include "ops/cpu/cpu_backend.h"

#include <sys/mman.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <new>

#include "core/cores.h"
#include "ops/cpu/few_rows.h"
#include "ops/cpu/simd.h"
#include "ops/cpu/threads.h"

namespace shoal::cpu {
namespace {

constexpr std::size_t kAlignment = 64;
constexpr std::size_t kHugePage = std::size_t{2} << 20;

}  // namespace

void* aligned_memory(std::size_t bytes) {
  const std::size_t alignment = bytes >= kHugePage ? kHugePage : kAlignment;
  void* data = std::aligned_alloc(alignment, (bytes + alignment - 1) / alignment * alignment);
  if (!data) throw std::bad_alloc();
  // Huge pages: products of large matrices miss the TLB less and are up to a tenth faster. It is a hint; a
  // failure changes nothing.
  if (alignment == kHugePage) madvise(data, bytes, MADV_HUGEPAGE);
  return data;
}

CpuBackend::CpuBackend(int threads, CpuLevel level)
    : level_(level), team_(threads > 0 ? threads : usable_cores()), product_(team_, level == CpuLevel::amx) {}

void* CpuBackend::allocate(std::size_t bytes) {
  auto* data = static_cast<std::byte*>(aligned_memory(std::max<std::size_t>(bytes, 1)));
  for_blocks(team_, static_cast<std::int64_t>(bytes), static_cast<std::int64_t>(kHugePage),
             [&](std::int64_t begin, std::int64_t end) {
               std::memset(data + begin, 0, static_cast<std::size_t>(end - begin));
             });
  return data;
}

void CpuBackend::release(void* data, std::size_t) {
  synchronize();  // updates may still be under way in it
  std::free(data);
}

// An empty tensor's memory may be none at all, which memcpy must not be given.
void CpuBackend::copy_to_host(void* host, const Tensor& from) {
  if (from.count() > 0) std::memcpy(host, from.data, from.bytes());
}
void CpuBackend::copy_from_host(const Tensor& to, const void* host) {
  if (to.count() > 0) std::memcpy(to.data, host, to.bytes());
}

void CpuBackend::linear_forward(const Tensor& y, const Tensor& x, const Tensor& w, const Tensor& bias) {
  if (x.rows() <= kFewRows) return few_rows_product(y, x, w, bias, team_, scratch(x.count()));
  const Tensor whole = w.dtype == DType::i8 ? widened(w, x.dtype) : w;
  product_({.c = y, .a = x, .b = whole, .bias = bias, .transpose_b = true});
}

void CpuBackend::linear_backward_input(const Tensor& dx, const Tensor& dy, const Tensor& w) {
  product_({.c = dx, .a = dy, .b = w, .bias = {}});
}

void CpuBackend::linear_backward_weight(const Tensor& dw, const Tensor& dbias, const Tensor& dy,
                                        const Tensor& x, bool overwrite) {
  product_({.c = dw, .a = dy, .b = x, .bias = {}, .transpose_a = true, .accumulate = !overwrite});
  if (dbias) add_column_sums(dbias, dy);
}

}  // namespace shoal::cpu
