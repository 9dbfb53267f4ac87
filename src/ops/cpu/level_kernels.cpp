#include "ops/cpu/level_kernels.h"

#include <fmt/format.h>

#include <algorithm>

#include "ops/cpu/bfloat16_product.h"
#include "ops/cpu/cpu_backend.h"
#include "ops/cpu/onednn.h"
#include "ops/cpu/product_pieces.h"

namespace shoal::cpu {
namespace {

// oneDNN chooses its instructions itself, up to this level. It takes the choice before its first product
// alone, and a process has one level.
void limit_onednn(CpuLevel level) {
#ifdef __x86_64__
  constexpr dnnl::cpu_isa kIsas[] = {dnnl::cpu_isa::sse41, dnnl::cpu_isa::avx2, dnnl::cpu_isa::avx512_core,
                                     dnnl::cpu_isa::avx512_core_bf16, kAnyIsa};
  dnnl::set_max_cpu_isa(kIsas[static_cast<std::size_t>(level)]);
#else
  static_cast<void>(level);
#endif
}

std::unique_ptr<Backend> make_backend(int threads, CpuLevel level) {
  limit_onednn(level);
  return std::make_unique<CpuBackend>(threads);
}

// Copies in float32 of the operands of a product in bfloat16, by each thread of its piece (CopiedPiece in
// matmul.cpp).
std::int64_t widened_scratch(int threads, std::int64_t rows, std::int64_t columns, std::int64_t sum_length) {
  const auto piece = ProductPieces(rows, columns, sum_length, threads, false)[0];
  return threads * ((piece.rows + piece.columns) * sum_length + piece.rows * piece.columns);
}

std::size_t scratch_bytes(int threads, const KernelSizes& sizes, CpuLevel level) {
  const std::int64_t attention = attention_scratch(threads, sizes.positions, sizes.head_size, sizes.compute),
                     rows = sizes.batch * sizes.positions;
  const bool bfloat16 = sizes.compute == DType::bf16, own_product = level == CpuLevel::avx512_bf16;
  const std::int64_t widened =
      bfloat16 && level < CpuLevel::avx512
          ? std::max({widened_scratch(threads, sizes.logit_rows, sizes.channels, sizes.classes),
                      widened_scratch(threads, rows, sizes.channels, sizes.columns),
                      widened_scratch(threads, sizes.columns, sizes.channels, rows)})
          : 0;
  return sizeof(float) * static_cast<std::size_t>(
                             std::max(attention, column_sum_scratch(rows, sizes.columns)) + widened) +
         (bfloat16 && own_product ? Bfloat16Product::scratch_bytes(rows, sizes.columns) : 0);
}

std::vector<Library> libraries() {
  const auto* onednn = dnnl_version();
  return {{"oneDNN", fmt::format("{}.{}.{}", onednn->major, onednn->minor, onednn->patch),
           "matrix products on the CPU"}};
}

constexpr LevelKernels kKernels = {make_backend, scratch_bytes, libraries};

}  // namespace
}  // namespace shoal::cpu

// The build gives each level another name.
extern "C" [[gnu::visibility("default")]] const shoal::cpu::LevelKernels& SHOAL_CPU_LEVEL() {
  return shoal::cpu::kKernels;
}
