#include "ops/cpu/matmul.h"

#include <omp.h>

#include <cstring>
#include <map>
#include <tuple>
#include <unordered_map>
#include <vector>

#include "core/error.h"
#include "ops/cpu/growing_memory.h"
#include "ops/cpu/onednn.h"
#include "ops/cpu/packed_product.h"
#include "ops/cpu/product_pieces.h"
#include "ops/cpu/simd.h"

namespace shoal::cpu {
namespace {

using dnnl::memory;

memory::data_type to_dnnl(DType dtype) {
  return dtype == DType::bf16 ? memory::data_type::bf16 : memory::data_type::f32;
}

void* at(const Tensor& tensor, std::int64_t element) {
  return tensor.as<std::byte>() + static_cast<std::size_t>(element) * size_of(tensor.dtype);
}

// An operand of a piece, which starts at the piece and keeps its stride.
struct Operand {
  void* data;
  DType type;
  std::int64_t rows, columns, stride;
};

Operand part(const Tensor& tensor, std::int64_t row, std::int64_t column, std::int64_t rows,
             std::int64_t columns) {
  const std::int64_t stride = tensor.columns();
  return {at(tensor, row * stride + column), tensor.dtype, rows, columns, stride};
}

memory::desc matrix(std::int64_t rows, std::int64_t columns, const Operand& operand, bool transposed) {
  return {{rows, columns},
          to_dnnl(operand.type),
          transposed ? memory::dims{1, operand.stride} : memory::dims{operand.stride, 1}};
}

// Copies rows to another stride.
void copy(const Operand& to, const Operand& from) {
  const auto size = static_cast<std::int64_t>(size_of(to.type));
  for (std::int64_t row = 0; row < to.rows; ++row) {
    std::memcpy(static_cast<std::byte*>(to.data) + row * to.stride * size,
                static_cast<const std::byte*>(from.data) + row * from.stride * size,
                static_cast<std::size_t>(to.columns * size));
  }
}

// The product for one piece of a result.
struct PieceCall {
  bool transpose_a, transpose_b, accumulate;
  std::int64_t m, n, k;
  Operand a, b, c, bias;  // without a bias, its data is null

  PieceCall(const MatmulCall& call, const ProductPiece& piece, const Tensor& beside)
      : transpose_a(call.transpose_a),
        transpose_b(call.transpose_b),
        accumulate(call.accumulate && !piece.beside),
        m(piece.rows),
        n(piece.columns),
        k(piece.terms),
        a(transpose_a ? part(call.a, piece.from, piece.row, k, m)
                      : part(call.a, piece.row, piece.from, m, k)),
        b(transpose_b ? part(call.b, piece.column, piece.from, n, k)
                      : part(call.b, piece.from, piece.column, k, n)),
        c(part(piece.beside ? beside : call.c, piece.row, piece.column, m, n)),
        bias(call.bias ? part(call.bias, 0, piece.column, 1, n) : Operand{}) {
    if (m == 1) c.stride = n;
  }
};

// A piece that is computed on copies of some operands, which lie in `memory`. Without memory it has the
// shapes alone.
class CopiedPiece {
 public:
  CopiedPiece(const PieceCall& piece, float* memory) : piece_(piece), call_(piece), memory_(memory) {}

  // Copies the right operand and the result, so that their rows lie one behind the other.
  void make_dense() {
    if (!call_.transpose_b) take(call_.b);
    take(call_.c);
  }
  const PieceCall& call() const { return call_; }
  std::int64_t floats() const { return floats_; }  // of memory

  void read() const {
    if (copied(&PieceCall::b)) copy(call_.b, piece_.b);
    if (call_.accumulate && copied(&PieceCall::c)) copy(call_.c, piece_.c);
  }
  void write() const {
    if (copied(&PieceCall::c)) copy(piece_.c, call_.c);
  }

 private:
  void take(Operand& operand) {
    operand.stride = operand.columns;
    if (memory_) operand.data = memory_ + floats_;
    const auto bytes = operand.rows * operand.columns * static_cast<std::int64_t>(size_of(operand.type));
    floats_ += (bytes + 3) / 4;
  }
  bool copied(Operand PieceCall::*operand) const { return (call_.*operand).data != (piece_.*operand).data; }

  PieceCall piece_, call_;
  float* memory_;
  std::int64_t floats_ = 0;
};

// AVX-512 without AMX, which has other kernels.
bool plain_avx512() {
  switch (dnnl::get_effective_cpu_isa()) {
    case dnnl::cpu_isa::avx512_core:
    case dnnl::cpu_isa::avx512_core_vnni:
    case dnnl::cpu_isa::avx512_core_bf16:
      return true;
    default:
      return false;
  }
}

bool has_amx() {
  constexpr auto kLeast = static_cast<unsigned>(dnnl::cpu_isa::avx512_core_amx);  // a bit for each set
  return (static_cast<unsigned>(dnnl::get_effective_cpu_isa()) & kLeast) == kLeast;
}

// Backward products: no bias, and the right operand is not transposed.
bool suits_sgemm(const PieceCall& call) {
  return call.a.type == DType::f32 && !call.bias.data && !call.transpose_b;
}

// oneDNN takes the calling thread's number of OpenMP threads, when a primitive is made and when it runs.
void on_one_thread() { omp_set_num_threads(1); }

void sgemm(const PieceCall& call) {
  const auto floats = [](const Operand& operand) { return static_cast<float*>(operand.data); };
  const auto status = dnnl_sgemm(call.transpose_a ? 'T' : 'N', 'N', call.m, call.n, call.k, 1.0f,
                                 floats(call.a), call.a.stride, floats(call.b), call.b.stride,
                                 call.accumulate ? 1.0f : 0.0f, floats(call.c), call.c.stride);
  if (status != dnnl_success) throw dnnl::error(status, "sgemm failed");
}

}  // namespace

struct Matmul::Impl {
  // A primitive for one thread; several threads may run it at once, since the caller gives the scratch
  // memory.
  struct Entry {
    dnnl::matmul primitive;
    memory::desc a, b, c, bias, scratch;
  };
  using Key =
      std::tuple<std::int64_t, std::int64_t, std::int64_t, std::int64_t, std::int64_t, std::int64_t, int>;
  struct Thread {
    std::vector<std::byte> scratch;
    std::vector<float> copies;
    dnnl::stream stream;
  };

  explicit Impl(ThreadTeam& shared) : team(shared), own(shared) {
    for (int i = 0; i < team.size(); ++i) of_thread.push_back({{}, {}, dnnl::stream(engine)});
  }

  const Entry* entry(const PieceCall& call);
  void run(const Entry* entry, const PieceCall& call, Thread& thread);
  void product(const MatmulCall& call, const ProductPieces& pieces);

  ThreadTeam& team;
  bool avx512 = plain_avx512(), amx = has_amx();
  PackedProduct own;
  dnnl::engine engine{dnnl::engine::kind::cpu, 0};
  std::map<Key, Entry> entries;
  std::vector<const Entry*> of_piece;  // of the current product
  GrowingMemory halves;                // of sums, beside the result
  std::vector<Thread> of_thread;
};

// The primitive of a piece; null where sgemm computes it.
const Matmul::Impl::Entry* Matmul::Impl::entry(const PieceCall& call) {
  if (suits_sgemm(call)) return nullptr;
  const int flags = (call.transpose_a ? 1 : 0) | (call.transpose_b ? 2 : 0) | (call.accumulate ? 4 : 0) |
                    (call.bias.data ? 8 : 0) | (call.a.type == DType::bf16 ? 16 : 0) |
                    (call.c.type == DType::bf16 ? 32 : 0);
  auto [it, missing] =
      entries.try_emplace(Key{call.m, call.n, call.k, call.a.stride, call.b.stride, call.c.stride, flags});
  Entry& made = it->second;
  if (!missing) return &made;
  made.a = matrix(call.m, call.k, call.a, call.transpose_a);
  made.b = matrix(call.k, call.n, call.b, call.transpose_b);
  made.c = matrix(call.m, call.n, call.c, false);
  dnnl::primitive_attr attributes;
  attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  if (call.accumulate) {
    dnnl::post_ops post;
    post.append_sum(1.0f);
    attributes.set_post_ops(post);
  }
  if (call.bias.data) made.bias = matrix(1, call.n, call.bias, false);
  const auto chosen = matmul_primitive(engine, made.a, made.b, made.bias, made.c, attributes);
  made.scratch = chosen.scratchpad_desc();
  made.primitive = dnnl::matmul(chosen);
  return &made;
}

void Matmul::Impl::run(const Entry* entry, const PieceCall& call, Thread& thread) {
  if (!entry) return sgemm(call);
  std::unordered_map<int, memory> arguments{
      {DNNL_ARG_SRC, memory(entry->a, engine, call.a.data)},
      {DNNL_ARG_WEIGHTS, memory(entry->b, engine, call.b.data)},
      {DNNL_ARG_DST, memory(entry->c, engine, call.c.data)},
      {DNNL_ARG_SCRATCHPAD, memory(entry->scratch, engine, thread.scratch.data())},
  };
  if (call.bias.data) arguments.emplace(DNNL_ARG_BIAS, memory(entry->bias, engine, call.bias.data));
  entry->primitive.execute(thread.stream, arguments);
  thread.stream.wait();
}

void Matmul::Impl::product(const MatmulCall& call, const ProductPieces& pieces) {
  Tensor beside;
  if (pieces.split()) beside = {halves.take<float>(call.c.count()), DType::f32, call.c.shape};
  const auto on_copies = [&](std::int64_t i, float* memory) {
    const PieceCall piece(call, pieces[i], beside);
    CopiedPiece result(piece, memory);
    if (pieces.parts_of_rows() && !suits_sgemm(piece)) result.make_dense();
    return result;
  };
  of_piece.clear();
  std::size_t scratch = 0, copies = 0;
  for (std::int64_t i = 0; i < pieces.count(); ++i) {
    const auto shapes = on_copies(i, nullptr);
    copies = std::max(copies, static_cast<std::size_t>(shapes.floats()));
    of_piece.push_back(entry(shapes.call()));
    if (of_piece.back()) scratch = std::max(scratch, of_piece.back()->scratch.get_size());
  }
  for (auto& thread : of_thread) {
    if (thread.scratch.size() < scratch) thread.scratch.resize(scratch);
    if (thread.copies.size() < copies) thread.copies.resize(copies);
  }
  team.run(pieces.count(), [&](std::int64_t i, int member) {
    on_one_thread();
    auto& thread = of_thread[static_cast<std::size_t>(member)];
    const auto piece = on_copies(i, thread.copies.data());
    piece.read();
    run(of_piece[static_cast<std::size_t>(i)], piece.call(), thread);
    piece.write();
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

Matmul::Matmul(ThreadTeam& team) : impl_(std::make_unique<Impl>(team)) {}
Matmul::~Matmul() = default;

void Matmul::operator()(const MatmulCall& call) {
  if (PackedProduct::suits(call, impl_->amx)) return impl_->own(call);
  const std::int64_t m = call.c.rows(), n = call.c.columns(), k = call.k();
  const bool over_rows = call.transpose_a && call.c.dtype == DType::f32;
  on_one_thread();
  try {
    impl_->product(call, ProductPieces(m, n, k, over_rows, impl_->team.size(), impl_->avx512));
  } catch (const dnnl::error& error) {
    fail("oneDNN refused a [{}, {}] x [{}, {}] {} product: {} (status {})", m, k, k, n, name_of(call.a.dtype),
         error.what(), static_cast<int>(error.status));
  }
}

}  // namespace shoal::cpu
