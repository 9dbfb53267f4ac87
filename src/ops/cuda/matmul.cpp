#include "ops/cuda/matmul.h"

#include <algorithm>
#include <array>
#include <compare>
#include <map>
#include <mutex>
#include <optional>
#include <span>
#include <utility>

#include "core/error.h"
#include "ops/cuda/check.h"

namespace shoal::cuda {

// All that an algorithm's fitness depends on.
struct ProductKey {
  std::int64_t m, n, k;
  DType in, out;
  bool transpose_a, transpose_b, accumulate, bias, tf32;
  std::uint32_t align_a, align_b, align_c;
  auto operator<=>(const ProductKey&) const = default;
};

namespace {

constexpr std::size_t kWorkspace = std::size_t{64} << 20;
constexpr int kCandidates = 16;

cudaDataType_t type_of(DType dtype) { return dtype == DType::bf16 ? CUDA_R_16BF : CUDA_R_32F; }

std::uint32_t alignment(const void* pointer) {
  constexpr std::uintptr_t kMost = 256;
  const auto address = reinterpret_cast<std::uintptr_t>(pointer) | kMost;
  return static_cast<std::uint32_t>(address & (~address + 1));
}

ProductKey key_of(const Product& product, bool tf32) {
  const auto& [c, a, b, bias, transpose_a, transpose_b, accumulate] = product;
  return {.m = c.rows(),
          .n = c.columns(),
          .k = transpose_a ? a.rows() : a.columns(),
          .in = a.dtype,
          .out = c.dtype,
          .transpose_a = transpose_a,
          .transpose_b = transpose_b,
          .accumulate = accumulate,
          // The library's epilogue wants a bias of the result's type.
          .bias = bias && bias.dtype == c.dtype,
          .tf32 = tf32 && a.dtype == DType::f32,
          .align_a = alignment(a.data),
          .align_b = alignment(b.data),
          .align_c = alignment(c.data)};
}

struct OperationDeleter {
  void operator()(cublasLtMatmulDescOpaque_t* x) const { cublasLtMatmulDescDestroy(x); }
};
struct LayoutDeleter {
  void operator()(cublasLtMatrixLayoutOpaque_t* x) const { cublasLtMatrixLayoutDestroy(x); }
};
struct PreferenceDeleter {
  void operator()(cublasLtMatmulPreferenceOpaque_t* x) const { cublasLtMatmulPreferenceDestroy(x); }
};
using Operation = std::unique_ptr<cublasLtMatmulDescOpaque_t, OperationDeleter>;
using Layout = std::unique_ptr<cublasLtMatrixLayoutOpaque_t, LayoutDeleter>;
using Preference = std::unique_ptr<cublasLtMatmulPreferenceOpaque_t, PreferenceDeleter>;

template <typename T>
void set(const Operation& operation, cublasLtMatmulDescAttributes_t attribute, T value) {
  check(cublasLtMatmulDescSetAttribute(operation.get(), attribute, &value, sizeof value));
}
template <typename T>
void set(const Preference& preference, cublasLtMatmulPreferenceAttributes_t attribute, T value) {
  check(cublasLtMatmulPreferenceSetAttribute(preference.get(), attribute, &value, sizeof value));
}

// Of a matrix whose columns are contiguous.
Layout layout(DType dtype, std::int64_t rows, std::int64_t columns) {
  cublasLtMatrixLayout_t made = nullptr;
  check(cublasLtMatrixLayoutCreate(&made, type_of(dtype), static_cast<std::uint64_t>(rows),
                                   static_cast<std::uint64_t>(columns), rows));
  return Layout(made);
}

// The library's matrices are column-major, so ours are their own transposes there, and c^T = b^T a^T: our b
// is its first operand and our a its second.
struct Description {
  Operation operation;
  Layout first, second, result;

  explicit Description(const ProductKey& key) {
    cublasLtMatmulDesc_t made = nullptr;
    check(cublasLtMatmulDescCreate(&made, key.tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F,
                                   CUDA_R_32F));
    operation.reset(made);
    set(operation, CUBLASLT_MATMUL_DESC_TRANSA,
        static_cast<std::int32_t>(key.transpose_b ? CUBLAS_OP_T : CUBLAS_OP_N));
    set(operation, CUBLASLT_MATMUL_DESC_TRANSB,
        static_cast<std::int32_t>(key.transpose_a ? CUBLAS_OP_T : CUBLAS_OP_N));
    if (key.bias) {
      set(operation, CUBLASLT_MATMUL_DESC_EPILOGUE, static_cast<std::uint32_t>(CUBLASLT_EPILOGUE_BIAS));
    }
    first = key.transpose_b ? layout(key.in, key.k, key.n) : layout(key.in, key.n, key.k);
    second = key.transpose_a ? layout(key.in, key.m, key.k) : layout(key.in, key.k, key.m);
    result = layout(key.out, key.n, key.m);
  }
};

using Candidates = std::array<cublasLtMatmulHeuristicResult_t, kCandidates>;

int ask(cublasLtHandle_t handle, const Description& description, const ProductKey& key,
        Candidates& candidates) {
  cublasLtMatmulPreference_t made = nullptr;
  check(cublasLtMatmulPreferenceCreate(&made));
  const Preference preference(made);
  set(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, std::uint64_t{kWorkspace});
  set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, key.align_b);
  set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, key.align_a);
  set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, key.align_c);
  set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, key.align_c);
  int found = 0;
  const auto status = cublasLtMatmulAlgoGetHeuristic(
      handle, description.operation.get(), description.first.get(), description.second.get(),
      description.result.get(), description.result.get(), preference.get(), kCandidates, candidates.data(),
      &found);
  if (status == CUBLAS_STATUS_NOT_SUPPORTED || status == CUBLAS_STATUS_INVALID_VALUE) return 0;
  check(status);
  return found;
}

// Ranks that are threads must choose alike, since another algorithm adds in another order: one table for the
// process. A shape that no algorithm does is there without one.
struct Choices {
  std::mutex mutex;
  std::map<ProductKey, std::optional<cublasLtMatmulAlgo_t>> known;

  static Choices& all() {
    static Choices choices;
    return choices;
  }
};

bool capturing(cudaStream_t stream) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  check(cudaStreamIsCapturing(stream, &status));
  return status != cudaStreamCaptureStatusNone;
}

}  // namespace

struct Matmul::Plan {
  std::optional<cublasLtMatmulAlgo_t> algorithm;
  std::optional<Description> description;
};

Matmul::Matmul(cudaStream_t stream, const Options& options) : stream_(stream), options_(options) {
  cublasLtHandle_t handle = nullptr;
  check(cublasLtCreate(&handle));
  handle_.reset(handle);
  workspace_ = take_memory(kWorkspace);
}

Matmul::~Matmul() = default;

namespace {

// One product with an algorithm; false where it cannot do it after all.
struct Runner {
  cublasLtHandle_t handle;
  void* workspace;
  cudaStream_t stream;

  bool operator()(const Product& product, void* c, const Description& description,
                  const cublasLtMatmulAlgo_t& algorithm) const {
    const float alpha = 1, beta = product.accumulate ? 1.0f : 0.0f;
    const auto status =
        cublasLtMatmul(handle, description.operation.get(), &alpha, product.b.data, description.first.get(),
                       product.a.data, description.second.get(), &beta, c, description.result.get(), c,
                       description.result.get(), &algorithm, workspace, kWorkspace, stream);
    if (status == CUBLAS_STATUS_NOT_SUPPORTED || status == CUBLAS_STATUS_INVALID_VALUE) return false;
    check(status);
    return true;
  }

  // Milliseconds of a product, after one that does not count; nothing where the algorithm cannot do it.
  std::optional<float> time(const Product& product, void* c, const Description& description,
                            const cublasLtMatmulAlgo_t& algorithm) const {
    constexpr int kRuns = 5;
    const Event begin = make_event(), end = make_event();
    for (int run = 0; run <= kRuns; ++run) {
      if (run == 1) check(cudaEventRecord(begin.get(), stream));
      if (!(*this)(product, c, description, algorithm)) return std::nullopt;
    }
    check(cudaEventRecord(end.get(), stream));
    check(cudaEventSynchronize(end.get()));
    float milliseconds = 0;
    check(cudaEventElapsedTime(&milliseconds, begin.get(), end.get()));
    return milliseconds / kRuns;
  }
};

// The first candidate that works, or the fastest. A later one has to be faster by more than the timing
// wavers, so that the choice is mostly the same from run to run.
std::optional<cublasLtMatmulAlgo_t> best(const Runner& run, const Product& product,
                                         const Description& description,
                                         std::span<const cublasLtMatmulHeuristicResult_t> candidates,
                                         bool tune) {
  constexpr float kWavers = 0.98f;
  std::optional<cublasLtMatmulAlgo_t> found;
  float least = 0;
  // What has been added to must not be added to again for the timing's sake. Without memory for that, the
  // library's own choice has to do.
  Memory copy;
  try {
    if (tune && product.accumulate) copy = take_memory(product.c.bytes());
  } catch (const Error&) {
    tune = false;
  }
  for (const auto& candidate : candidates) {
    if (candidate.state != CUBLAS_STATUS_SUCCESS || candidate.workspaceSize > kWorkspace) continue;
    if (!tune) return candidate.algo;
    const auto time = run.time(product, copy ? copy.get() : product.c.data, description, candidate.algo);
    if (!time || (found && *time > least * kWavers)) continue;
    found = candidate.algo;
    least = *time;
  }
  return found;
}

}  // namespace

const Matmul::Plan& Matmul::plan(const Product& product) {
  const ProductKey key = key_of(product, options_.tf32);
  if (const auto known = plans_.find(key); known != plans_.end()) return *known->second;

  const bool tune = options_.tune && !capturing(stream_);
  const Runner run{handle_.get(), workspace_.get(), stream_};
  auto& choices = Choices::all();
  const std::lock_guard lock(choices.mutex);
  auto known = choices.known.find(key);
  if (known == choices.known.end()) {
    const Description description(key);
    if (key.bias) set(description.operation, CUBLASLT_MATMUL_DESC_BIAS_POINTER, product.bias.data);
    Candidates candidates;
    const auto found = static_cast<std::size_t>(ask(handle_.get(), description, key, candidates));
    known =
        choices.known.emplace(key, best(run, product, description, {candidates.data(), found}, tune)).first;
  }
  auto made = std::make_unique<Plan>(Plan{known->second, std::nullopt});
  if (made->algorithm) made->description.emplace(key);
  return *plans_.emplace(key, std::move(made)).first->second;
}

void Matmul::operator()(const Product& product) {
  if (product.c.count() == 0) return;
  const Plan& chosen = plan(product);
  if (!chosen.algorithm) return plain_product(product, stream_);
  const auto& description = *chosen.description;
  const bool bias_inside = product.bias && product.bias.dtype == product.c.dtype;
  if (bias_inside) set(description.operation, CUBLASLT_MATMUL_DESC_BIAS_POINTER, product.bias.data);
  const Runner run{handle_.get(), workspace_.get(), stream_};
  if (!run(product, product.c.data, description, *chosen.algorithm)) {
    fail("cuBLASLt refused a product of {} and {} that it offered to do", product.a.shape.to_string(),
         product.b.shape.to_string());
  }
  if (product.bias && !bias_inside) add_bias(product.c, product.bias, stream_);
}

}  // namespace shoal::cuda
