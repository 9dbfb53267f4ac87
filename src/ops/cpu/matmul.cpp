#include "ops/cpu/matmul.h"

#include <omp.h>

#include <exception>
#include <map>
#include <tuple>
#include <unordered_map>
#include <vector>

#include "core/error.h"
#include "ops/cpu/onednn.h"
#include "ops/cpu/product_pieces.h"
#include "ops/cpu/threads.h"

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
  const MatmulCall& whole;
  std::int64_t m, n, k;
  std::int64_t a_stride, b_stride, c_stride;
  void *a, *b, *c, *bias;

  PieceCall(const MatmulCall& call, const ProductPiece& piece)
      : whole(call),
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

// AVX-512 without AMX: with AMX, matmul takes other kernels, which are not tested here.
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

// Backward products: no bias, and the right operand is not transposed.
bool suits_sgemm(const MatmulCall& call) {
  return call.a.dtype == DType::f32 && call.c.dtype == DType::f32 && !call.bias && !call.transpose_b;
}

void sgemm(const PieceCall& call) {
  const auto status = dnnl_sgemm(
      call.whole.transpose_a ? 'T' : 'N', 'N', call.m, call.n, call.k, 1.0f,
      static_cast<const float*>(call.a), call.a_stride, static_cast<const float*>(call.b), call.b_stride,
      call.whole.accumulate ? 1.0f : 0.0f, static_cast<float*>(call.c), call.c_stride);
  if (status != dnnl_success) throw dnnl::error(status, "sgemm failed");
}

// oneDNN reads the calling thread's number of threads when a primitive is made, and outside parallel regions.
class OneThread {
 public:
  OneThread() : before_(omp_get_max_threads()) { omp_set_num_threads(1); }
  ~OneThread() { omp_set_num_threads(before_); }
  OneThread(const OneThread&) = delete;
  OneThread& operator=(const OneThread&) = delete;

 private:
  int before_;
};

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
    dnnl::stream stream;
  };

  explicit Impl(int thread_count) : threads(thread_count) {
    for (int i = 0; i < thread_count; ++i) of_thread.push_back({{}, dnnl::stream(engine)});
  }

  const Entry& entry(const PieceCall& call);
  void run(const Entry& entry, const PieceCall& call, Thread& thread);
  void product(const MatmulCall& call, const ProductPieces& pieces);

  int threads;
  bool avx512 = plain_avx512();
  dnnl::engine engine{dnnl::engine::kind::cpu, 0};
  std::map<Key, Entry> entries;
  std::vector<const Entry*> of_piece;  // of the current product
  std::vector<Thread> of_thread;
};

const Matmul::Impl::Entry& Matmul::Impl::entry(const PieceCall& call) {
  const MatmulCall& whole = call.whole;
  const int flags = (whole.transpose_a ? 1 : 0) | (whole.transpose_b ? 2 : 0) | (whole.accumulate ? 4 : 0) |
                    (whole.bias ? 8 : 0) | (whole.a.dtype == DType::bf16 ? 16 : 0) |
                    (whole.c.dtype == DType::bf16 ? 32 : 0);
  auto [it, missing] =
      entries.try_emplace(Key{call.m, call.n, call.k, call.a_stride, call.b_stride, call.c_stride, flags});
  if (!missing) return it->second;
  Entry& made = it->second;
  made.a = matrix(call.m, call.k, whole.a.dtype, call.a_stride, whole.transpose_a);
  made.b = matrix(call.k, call.n, whole.b.dtype, call.b_stride, whole.transpose_b);
  made.c = matrix(call.m, call.n, whole.c.dtype, call.c_stride, false);
  dnnl::primitive_attr attributes;
  attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  if (whole.accumulate) {
    dnnl::post_ops post;
    post.append_sum(1.0f);
    attributes.set_post_ops(post);
  }
  if (whole.bias) made.bias = matrix(1, call.n, whole.bias.dtype, call.n, false);
  const auto chosen = matmul_primitive(engine, made.a, made.b, made.bias, made.c, attributes);
  made.scratch = chosen.scratchpad_desc();
  made.primitive = dnnl::matmul(chosen);
  return made;
}

void Matmul::Impl::run(const Entry& entry, const PieceCall& call, Thread& thread) {
  std::unordered_map<int, memory> arguments{
      {DNNL_ARG_SRC, memory(entry.a, engine, call.a)},
      {DNNL_ARG_WEIGHTS, memory(entry.b, engine, call.b)},
      {DNNL_ARG_DST, memory(entry.c, engine, call.c)},
      {DNNL_ARG_SCRATCHPAD, memory(entry.scratch, engine, thread.scratch.data())},
  };
  if (call.bias) arguments.emplace(DNNL_ARG_BIAS, memory(entry.bias, engine, call.bias));
  entry.primitive.execute(thread.stream, arguments);
  thread.stream.wait();
}

void Matmul::Impl::product(const MatmulCall& call, const ProductPieces& pieces) {
  const bool by_sgemm = suits_sgemm(call);
  if (!by_sgemm) {
    of_piece.clear();
    std::size_t scratch = 0;
    for (std::int64_t i = 0; i < pieces.count(); ++i) {
      of_piece.push_back(&entry({call, pieces[i]}));
      scratch = std::max(scratch, of_piece.back()->scratch.get_size());
    }
    for (auto& thread : of_thread) {
      if (thread.scratch.size() < scratch) thread.scratch.resize(scratch);
    }
  }
  std::exception_ptr failure;  // an exception must not leave a parallel region
  for_tasks(threads, pieces.count(), [&](std::int64_t i) {
    const PieceCall piece(call, pieces[i]);
    try {
      if (by_sgemm) return sgemm(piece);
      run(*of_piece[static_cast<std::size_t>(i)], piece,
          of_thread[static_cast<std::size_t>(omp_get_thread_num())]);
    } catch (...) {
#pragma omp critical
      failure = std::current_exception();
    }
  });
  if (failure) std::rethrow_exception(failure);
}

Matmul::Matmul(int threads) : impl_(std::make_unique<Impl>(threads)) {}
Matmul::~Matmul() = default;

void Matmul::operator()(const MatmulCall& call) {
  const std::int64_t m = call.c.rows(), n = call.c.columns();
  const std::int64_t k = call.transpose_a ? call.a.rows() : call.a.columns();
  const OneThread setting;
  try {
    impl_->product(call, ProductPieces(m, n, k, impl_->threads, impl_->avx512));
  } catch (const dnnl::error& error) {
    fail("oneDNN refused a [{}, {}] x [{}, {}] {} product: {} (status {})", m, k, k, n, name_of(call.a.dtype),
         error.what(), static_cast<int>(error.status));
  }
}

}  // namespace shoal::cpu
