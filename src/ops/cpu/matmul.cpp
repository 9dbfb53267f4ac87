#include "ops/cpu/matmul.h"

#include <dnnl.h>
#include <omp.h>

#include "core/error.h"
#include "core/signal_mask.h"
#include "ops/cpu/growing_memory.h"
#include "ops/cpu/packed_product.h"
#include "ops/cpu/product_pieces.h"
#include "ops/cpu/simd.h"

namespace shoal::cpu {
namespace {

// oneDNN takes the calling thread's number of OpenMP threads.
void on_one_thread() { omp_set_num_threads(1); }

void sgemm(const MatmulCall& call, const ProductPiece& piece, const Tensor& beside) {
  const auto at = [](const Tensor& tensor, std::int64_t row, std::int64_t column) {
    return tensor.as<float>() + row * tensor.columns() + column;
  };
  const float* a = call.transpose_a ? at(call.a, piece.from, piece.row) : at(call.a, piece.row, piece.from);
  const bool add = call.accumulate && !piece.beside;
  // oneDNN's kernels for AVX and AVX-512 may hold an address on the heap in the stack pointer, below which a
  // signal's handler would write (github.com/uxlfoundation/oneDNN, issue 4845, mended in 2026).
  const BlockedSignals none;
  const auto status =
      dnnl_sgemm(call.transpose_a ? 'T' : 'N', 'N', piece.rows, piece.columns, piece.terms, 1.0f, a,
                 call.a.columns(), at(call.b, piece.from, piece.column), call.b.columns(), add ? 1.0f : 0.0f,
                 at(piece.beside ? beside : call.c, piece.row, piece.column), call.c.columns());
  if (status != dnnl_success) {
    fail("oneDNN refused a [{}, {}] x [{}, {}] product (status {})", piece.rows, piece.terms, piece.terms,
         piece.columns, static_cast<int>(status));
  }
}

}  // namespace

struct Matmul::Impl {
  Impl(ThreadTeam& shared, CpuLevel level) : team(shared), own(shared, level == CpuLevel::amx) {}

  void product(const MatmulCall& call, const ProductPieces& pieces);

  ThreadTeam& team;
  PackedProduct own;
  GrowingMemory halves;  // of sums, beside the result
};

void Matmul::Impl::product(const MatmulCall& call, const ProductPieces& pieces) {
  Tensor beside;
  if (pieces.split()) beside = {halves.take<float>(call.c.count()), DType::f32, call.c.shape};
  team.run(pieces.count(), [&](std::int64_t i, int) {
    on_one_thread();
    sgemm(call, pieces[i], beside);
  });
  if (!pieces.split()) return;
  team.run(pieces.places(), [&](std::int64_t place, int) {
    const auto piece = pieces[place];
    for (std::int64_t row = piece.row; row < piece.row + piece.rows; ++row) {
      const auto first = row * call.c.columns() + piece.column;
      auto* sums = call.c.as<float>() + first;
      const auto* half = beside.as<float>() + first;
      for_lanes(piece.columns, [&](std::int64_t j, std::int64_t live) {
        store_n(sums + j, load_n(sums + j, live) + load_n(half + j, live), live);
      });
    }
  });
}

Matmul::Matmul(ThreadTeam& team, CpuLevel level) : impl_(std::make_unique<Impl>(team, level)) {}
Matmul::~Matmul() = default;

void Matmul::operator()(const MatmulCall& call) {
  if (impl_->own.suits(call)) return impl_->own(call);
  constexpr bool kAvx512 = kLanes == 16;
  impl_->product(call, ProductPieces(call.c.rows(), call.c.columns(), call.k(), call.transpose_a,
                                     impl_->team.size(), kAvx512));
}

}  // namespace shoal::cpu
