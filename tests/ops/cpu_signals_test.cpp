// No signal interrupts oneDNN's products, whose kernels use the stack pointer for the heap.
#include <dlfcn.h>
#include <dnnl.h>
#include <gtest/gtest.h>

#include <atomic>
#include <csignal>

#include "core/cpu.h"
#include "ops/conformance.h"
#include "ops/cpu/cpu.h"

namespace {

std::atomic<int> products = 0, open_to_signals = 0;

}  // namespace

extern "C" dnnl_status_t dnnl_sgemm(char transa, char transb, dnnl_dim_t m, dnnl_dim_t n, dnnl_dim_t k,
                                    float alpha, const float* a, dnnl_dim_t lda, const float* b,
                                    dnnl_dim_t ldb, float beta, float* c, dnnl_dim_t ldc) {
  static const auto real = reinterpret_cast<decltype(&dnnl_sgemm)>(::dlsym(RTLD_NEXT, "dnnl_sgemm"));
  sigset_t blocked;
  pthread_sigmask(SIG_SETMASK, nullptr, &blocked);
  ++products;
  for (const int signal : {SIGINT, SIGTERM, SIGUSR1, SIGALRM, SIGCHLD, SIGPROF})
    if (sigismember(&blocked, signal) == 0) ++open_to_signals;
  return real(transa, transb, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc);
}

namespace shoal::test {
namespace {

TEST(CpuSignals, NoneInterruptsAProductOfOneDnn) {
  if (cpu_level() == CpuLevel::avx2 || cpu_level() == CpuLevel::amx) GTEST_SKIP() << "products are our own";
  const auto backend = make_cpu_backend(2);
  const Side side{*backend, DType::f32};
  const std::int64_t rows = 512, width = 128;
  const Buffer dy = side.full({rows, width}, normal_values(rows * width, 1)),
               weight = side.full({width, width}, normal_values(width * width, 2)),
               dx = side.full({rows, width});
  products = open_to_signals = 0;
  backend->linear_backward_input(dx, dy, weight);
  EXPECT_GT(products, 1) << "both threads' parts";
  EXPECT_EQ(open_to_signals, 0);
}

}  // namespace
}  // namespace shoal::test
