#include "ops/cpu/matmul.h"

#include <omp.h>

#include <dnnl.hpp>
#include <map>
#include <tuple>
#include <unordered_map>

#include "core/error.h"

namespace shoal::cpu {
namespace {

using dnnl::memory;
using Key = std::tuple<std::int64_t, std::int64_t, std::int64_t, int>;

memory::data_type to_dnnl(DType dtype) {
  return dtype == DType::bf16 ? memory::data_type::bf16 : memory::data_type::f32;
}

memory::desc matrix(std::int64_t rows, std::int64_t columns, DType dtype, bool transposed) {
  return {{rows, columns}, to_dnnl(dtype), transposed ? memory::dims{1, rows} : memory::dims{columns, 1}};
}

// Backward products: no bias, and the right operand as it lies. A single row would be split along its sum,
// differently for every number of threads.
bool suits_sgemm(const MatmulCall& call, std::int64_t m, std::int64_t n) {
  return call.a.dtype == DType::f32 && call.c.dtype == DType::f32 && !call.bias && !call.transpose_b &&
         m > 1 && n > 1;
}

void sgemm(const MatmulCall& call, std::int64_t m, std::int64_t n, std::int64_t k) {
  const auto status = dnnl_sgemm(call.transpose_a ? 'T' : 'N', 'N', m, n, k, 1.0f, call.a.as<float>(),
                                 call.transpose_a ? m : k, call.b.as<float>(), n,
                                 call.accumulate ? 1.0f : 0.0f, call.c.as<float>(), n);
  if (status != dnnl_success) throw dnnl::error(status, "sgemm failed");
}

// A product whose result is smaller than the threads' share of work is split along its sum, differently for
// every number of threads: such a one runs on one thread.
class NarrowOnOneThread {
 public:
  NarrowOnOneThread(std::int64_t m, std::int64_t n, std::int64_t k) : threads_(omp_get_max_threads()) {
    if (k >= 1024 && m * n <= 128 * 128) omp_set_num_threads(1);
  }
  ~NarrowOnOneThread() { omp_set_num_threads(threads_); }
  NarrowOnOneThread(const NarrowOnOneThread&) = delete;
  NarrowOnOneThread& operator=(const NarrowOnOneThread&) = delete;

 private:
  int threads_;
};

}  // namespace

struct Matmul::Impl {
  dnnl::engine engine{dnnl::engine::kind::cpu, 0};
  dnnl::stream stream{engine};
  struct Entry {
    dnnl::matmul primitive;
    memory::desc a, b, c, bias;
  };
  std::map<Key, Entry> entries;

  const Entry& entry(const MatmulCall& call, std::int64_t m, std::int64_t n, std::int64_t k) {
    const int flags = (call.transpose_a ? 1 : 0) | (call.transpose_b ? 2 : 0) | (call.accumulate ? 4 : 0) |
                      (call.bias ? 8 : 0) | (call.a.dtype == DType::bf16 ? 16 : 0) |
                      (call.c.dtype == DType::bf16 ? 32 : 0);
    auto [it, missing] = entries.try_emplace(Key{m, n, k, flags});
    if (!missing) return it->second;
    Entry& made = it->second;
    made.a = matrix(m, k, call.a.dtype, call.transpose_a);
    made.b = matrix(k, n, call.b.dtype, call.transpose_b);
    made.c = matrix(m, n, call.c.dtype, false);
    dnnl::primitive_attr attributes;
    if (call.accumulate) {
      dnnl::post_ops post;
      post.append_sum(1.0f);
      attributes.set_post_ops(post);
    }
    if (call.bias) {
      made.bias = matrix(1, n, call.bias.dtype, false);
      made.primitive = dnnl::matmul({{made.a, made.b, made.bias, made.c}, attributes, engine});
    } else {
      made.primitive = dnnl::matmul({{made.a, made.b, made.c}, attributes, engine});
    }
    return made;
  }
};

Matmul::Matmul() : impl_(std::make_unique<Impl>()) {}
Matmul::~Matmul() = default;

void Matmul::operator()(const MatmulCall& call) {
  const std::int64_t m = call.c.rows(), n = call.c.columns();
  const std::int64_t k = call.transpose_a ? call.a.rows() : call.a.columns();
  const NarrowOnOneThread narrow(m, n, k);
  try {
    if (suits_sgemm(call, m, n)) return sgemm(call, m, n, k);
    const auto& entry = impl_->entry(call, m, n, k);
    std::unordered_map<int, memory> arguments{
        {DNNL_ARG_SRC, memory(entry.a, impl_->engine, call.a.data)},
        {DNNL_ARG_WEIGHTS, memory(entry.b, impl_->engine, call.b.data)},
        {DNNL_ARG_DST, memory(entry.c, impl_->engine, call.c.data)},
    };
    if (call.bias) arguments.emplace(DNNL_ARG_BIAS, memory(entry.bias, impl_->engine, call.bias.data));
    entry.primitive.execute(impl_->stream, arguments);
    impl_->stream.wait();
  } catch (const dnnl::error& error) {
    fail("oneDNN refused a [{}, {}] x [{}, {}] {} product: {} (status {})", m, k, k, n, name_of(call.a.dtype),
         error.what(), static_cast<int>(error.status));
  }
}

}  // namespace shoal::cpu
