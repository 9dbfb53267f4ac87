#include "ops/cpu/matmul.h"

#include <omp.h>

#include <map>
#include <tuple>
#include <unordered_map>
#include <vector>

#include "core/error.h"
#include "ops/cpu/onednn.h"
#include "ops/cpu/product_pieces.h"
#include "ops/cpu/simd.h"
#include "ops/with_type.h"

namespace shoal::cpu {
namespace {

using dnnl::memory;

memory::data_type to_dnnl(DType dtype) {
  return dtype == DType::bf16 ? memory::data_type::bf16 : memory::data_type::f32;
}

memory::desc matrix(std::int64_t rows, std::int64_t columns, DType dtype, std::int64_t stride,
                    bool transposed) {
  return {{rows, columns}, to_dnnl(dtype), transposed ? memory::dims{1, stride} : memory::dims{stride, 1}};
}

void* at(const Tensor& tensor, std::int64_t element) {
  return tensor.as<std::byte>() + static_cast<std::size_t>(element) * size_of(tensor.dtype);
}

// The product for one piece of a result: operands start at the piece and keep their strides.
struct PieceCall {
  bool transpose_a, transpose_b, accumulate;
  DType type, c_type;  // of a, b and bias; of c
  std::int64_t m, n, k;
  std::int64_t a_stride, b_stride, c_stride;
  void *a, *b, *c, *bias;

  PieceCall(const MatmulCall& call, const ProductPiece& piece)
      : transpose_a(call.transpose_a),
        transpose_b(call.transpose_b),
        accumulate(call.accumulate),
        type(call.a.dtype),
        c_type(call.c.dtype),
        m(piece.rows),
        n(piece.columns),
        k(call.transpose_a ? call.a.rows() : call.a.columns()),
        a_stride(call.a.columns()),
        b_stride(call.b.columns()),
        c_stride(m == 1 ? n : call.c.columns()),
        a(at(call.a, call.transpose_a ? piece.row : piece.row * a_stride)),
        b(at(call.b, call.transpose_b ? piece.column * b_stride : piece.column)),
        c(at(call.c, piece.row * call.c.columns() + piece.column)),
        bias(call.bias ? at(call.bias, piece.column) : nullptr) {}
};

template <typename To, typename From>
void copy_rows(To* to, std::int64_t to_stride, const From* from, std::int64_t from_stride, std::int64_t rows,
               std::int64_t columns) {
  for (std::int64_t row = 0; row < rows; ++row) {
    for_lanes(columns, [&](std::int64_t i, std::int64_t live) {
      store_n(to + row * to_stride + i, load_n(from + row * from_stride + i, live), live);
    });
  }
}

// A piece in bfloat16 as one in float32, whose operands are copied to `memory` and back: oneDNN has no
// product in bfloat16 below AVX-512. Without memory the piece has the shapes alone.
class WidePiece {
 public:
  WidePiece(const PieceCall& piece, float* memory) : narrow_(piece), wide_(piece) {
    const auto take = [&](void*& operand, std::int64_t count) {
      if (memory) operand = memory + floats_;
      floats_ += count;
    };
    wide_.type = wide_.c_type = DType::f32;
    take(wide_.a, piece.m * piece.k);
    wide_.a_stride = piece.transpose_a ? piece.m : piece.k;
    take(wide_.b, piece.k * piece.n);
    wide_.b_stride = piece.transpose_b ? piece.k : piece.n;
    if (piece.bias) take(wide_.bias, piece.n);
    if (piece.c_type == DType::f32) return;
    take(wide_.c, piece.m * piece.n);
    wide_.c_stride = piece.n;
  }
  const PieceCall& call() const { return wide_; }
  std::int64_t floats() const { return floats_; }

  void read() const {
    const auto copy = [](void* to, const void* from, std::int64_t from_stride, std::int64_t rows,
                         std::int64_t columns) {
      copy_rows(static_cast<float*>(to), columns, static_cast<const bfloat16*>(from), from_stride, rows,
                columns);
    };
    const auto& from = narrow_;
    copy(wide_.a, from.a, from.a_stride, from.transpose_a ? from.k : from.m, wide_.a_stride);
    copy(wide_.b, from.b, from.b_stride, from.transpose_b ? from.n : from.k, wide_.b_stride);
    if (from.bias) copy(wide_.bias, from.bias, 0, 1, from.n);
    if (from.accumulate && from.c_type != DType::f32) copy(wide_.c, from.c, from.c_stride, from.m, from.n);
  }
  void write() const {
    if (narrow_.c_type == DType::f32) return;
    copy_rows(static_cast<bfloat16*>(narrow_.c), narrow_.c_stride, static_cast<const float*>(wide_.c),
              wide_.c_stride, narrow_.m, narrow_.n);
  }

 private:
  PieceCall narrow_, wide_;
  std::int64_t floats_ = 0;
};

// A piece whose right operand and result are copied to `memory` and back, so that they have no strides.
class DensePiece {
 public:
  DensePiece(const PieceCall& piece, float* memory) : strided_(piece), dense_(piece) {
    const auto take = [&](void*& operand, std::int64_t count, DType type) {
      if (memory) operand = memory + floats_;
      floats_ += (count * static_cast<std::int64_t>(size_of(type)) + 3) / 4;
    };
    if (!piece.transpose_b) {
      take(dense_.b, piece.k * piece.n, piece.type);
      dense_.b_stride = piece.n;
    }
    take(dense_.c, piece.m * piece.n, piece.c_type);
    dense_.c_stride = piece.n;
  }
  const PieceCall& call() const { return dense_; }
  std::int64_t floats() const { return floats_; }

  void read() const {
    const auto& from = strided_;
    if (!from.transpose_b) copy(from.type, dense_.b, dense_.b_stride, from.b, from.b_stride, from.k);
    if (from.accumulate) copy(from.c_type, dense_.c, dense_.c_stride, from.c, from.c_stride, from.m);
  }
  void write() const {
    copy(strided_.c_type, strided_.c, strided_.c_stride, dense_.c, dense_.c_stride, strided_.m);
  }

 private:
  void copy(DType type, void* to, std::int64_t to_stride, const void* from, std::int64_t from_stride,
            std::int64_t rows) const {
    with_type(type, [&]<typename T>() {
      copy_rows(static_cast<T*>(to), to_stride, static_cast<const T*>(from), from_stride, rows, dense_.n);
    });
  }

  PieceCall strided_, dense_;
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

bool has_bfloat16() {
  constexpr auto kLeast = static_cast<unsigned>(dnnl::cpu_isa::avx512_core);  // a bit for each set
  return (static_cast<unsigned>(dnnl::get_effective_cpu_isa()) & kLeast) == kLeast;
}

// Backward products: no bias, and the right operand is not transposed.
bool suits_sgemm(const PieceCall& call) { return call.type == DType::f32 && !call.bias && !call.transpose_b; }

// oneDNN takes the calling thread's number of OpenMP threads, when a primitive is made and when it runs.
void on_one_thread() { omp_set_num_threads(1); }

void sgemm(const PieceCall& call) {
  const auto status =
      dnnl_sgemm(call.transpose_a ? 'T' : 'N', 'N', call.m, call.n, call.k, 1.0f,
                 static_cast<const float*>(call.a), call.a_stride, static_cast<const float*>(call.b),
                 call.b_stride, call.accumulate ? 1.0f : 0.0f, static_cast<float*>(call.c), call.c_stride);
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

  explicit Impl(ThreadTeam& shared) : team(shared) {
    for (int i = 0; i < team.size(); ++i) of_thread.push_back({{}, {}, dnnl::stream(engine)});
  }

  const Entry* entry(const PieceCall& call);
  void run(const Entry* entry, const PieceCall& call, Thread& thread);
  void product(const MatmulCall& call, const ProductPieces& pieces);

  ThreadTeam& team;
  bool avx512 = plain_avx512(), bfloat16_products = has_bfloat16();
  dnnl::engine engine{dnnl::engine::kind::cpu, 0};
  std::map<Key, Entry> entries;
  std::vector<const Entry*> of_piece;  // of the current product
  std::vector<Thread> of_thread;
};

// The primitive of a piece; null where sgemm computes it.
const Matmul::Impl::Entry* Matmul::Impl::entry(const PieceCall& call) {
  if (suits_sgemm(call)) return nullptr;
  const int flags = (call.transpose_a ? 1 : 0) | (call.transpose_b ? 2 : 0) | (call.accumulate ? 4 : 0) |
                    (call.bias ? 8 : 0) | (call.type == DType::bf16 ? 16 : 0) |
                    (call.c_type == DType::bf16 ? 32 : 0);
  auto [it, missing] =
      entries.try_emplace(Key{call.m, call.n, call.k, call.a_stride, call.b_stride, call.c_stride, flags});
  Entry& made = it->second;
  if (!missing) return &made;
  made.a = matrix(call.m, call.k, call.type, call.a_stride, call.transpose_a);
  made.b = matrix(call.k, call.n, call.type, call.b_stride, call.transpose_b);
  made.c = matrix(call.m, call.n, call.c_type, call.c_stride, false);
  dnnl::primitive_attr attributes;
  attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  if (call.accumulate) {
    dnnl::post_ops post;
    post.append_sum(1.0f);
    attributes.set_post_ops(post);
  }
  if (call.bias) made.bias = matrix(1, call.n, call.type, call.n, false);
  const auto chosen = matmul_primitive(engine, made.a, made.b, made.bias, made.c, attributes);
  made.scratch = chosen.scratchpad_desc();
  made.primitive = dnnl::matmul(chosen);
  return &made;
}

void Matmul::Impl::run(const Entry* entry, const PieceCall& call, Thread& thread) {
  if (!entry) return sgemm(call);
  std::unordered_map<int, memory> arguments{
      {DNNL_ARG_SRC, memory(entry->a, engine, call.a)},
      {DNNL_ARG_WEIGHTS, memory(entry->b, engine, call.b)},
      {DNNL_ARG_DST, memory(entry->c, engine, call.c)},
      {DNNL_ARG_SCRATCHPAD, memory(entry->scratch, engine, thread.scratch.data())},
  };
  if (call.bias) arguments.emplace(DNNL_ARG_BIAS, memory(entry->bias, engine, call.bias));
  entry->primitive.execute(thread.stream, arguments);
  thread.stream.wait();
}

void Matmul::Impl::product(const MatmulCall& call, const ProductPieces& pieces) {
  // Calls `copied` with the class of the copies that a piece is computed on, or `plain` where there are none.
  const auto with_copies = [&](const PieceCall& piece, auto&& plain, auto&& copied) {
    if (call.a.dtype == DType::bf16 && !bfloat16_products) return copied.template operator()<WidePiece>();
    if (pieces.parts_of_rows() && !suits_sgemm(piece)) return copied.template operator()<DensePiece>();
    plain();
  };
  of_piece.clear();
  std::size_t scratch = 0, copies = 0;
  for (std::int64_t i = 0; i < pieces.count(); ++i) {
    const PieceCall piece(call, pieces[i]);
    with_copies(
        piece, [&] { of_piece.push_back(entry(piece)); },
        [&]<typename Copies>() {
          const Copies shapes(piece, nullptr);
          copies = std::max(copies, static_cast<std::size_t>(shapes.floats()));
          of_piece.push_back(entry(shapes.call()));
        });
    if (of_piece.back()) scratch = std::max(scratch, of_piece.back()->scratch.get_size());
  }
  for (auto& thread : of_thread) {
    if (thread.scratch.size() < scratch) thread.scratch.resize(scratch);
    if (thread.copies.size() < copies) thread.copies.resize(copies);
  }
  team.run(pieces.count(), [&](std::int64_t i, int member) {
    on_one_thread();
    const PieceCall piece(call, pieces[i]);
    const Entry* entry = of_piece[static_cast<std::size_t>(i)];
    auto& thread = of_thread[static_cast<std::size_t>(member)];
    with_copies(
        piece, [&] { run(entry, piece, thread); },
        [&]<typename Copies>() {
          const Copies copied(piece, thread.copies.data());
          copied.read();
          run(entry, copied.call(), thread);
          copied.write();
        });
  });
}

Matmul::Matmul(ThreadTeam& team) : impl_(std::make_unique<Impl>(team)) {}
Matmul::~Matmul() = default;

void Matmul::operator()(const MatmulCall& call) {
  const std::int64_t m = call.c.rows(), n = call.c.columns();
  const std::int64_t k = call.transpose_a ? call.a.rows() : call.a.columns();
  on_one_thread();
  try {
    impl_->product(call, ProductPieces(m, n, k, impl_->team.size(), impl_->avx512));
  } catch (const dnnl::error& error) {
    fail("oneDNN refused a [{}, {}] x [{}, {}] {} product: {} (status {})", m, k, k, n, name_of(call.a.dtype),
         error.what(), static_cast<int>(error.status));
  }
}

}  // namespace shoal::cpu
