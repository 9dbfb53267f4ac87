#include "ops/cuda/product.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <iterator>
#include <type_traits>

#include "ops/cuda/check.h"

namespace shoal::cuda {
namespace {

constexpr int kCandidates = 16;
constexpr std::string_view kOurs = "ours";

cudaDataType_t type_of(DType dtype) { return dtype == DType::bf16 ? CUDA_R_16BF : CUDA_R_32F; }

// The alignment, up to 16 bytes: no kernel needs more, and a tensor's further alignment depends on the layout
// of ranks, which must not change the choice.
std::uint32_t alignment(const Tensor& tensor) {
  constexpr std::uintptr_t kMost = 16;
  const auto address = reinterpret_cast<std::uintptr_t>(tensor.data) | kMost;
  return static_cast<std::uint32_t>(address & (~address + 1));
}

bool refused(cublasStatus_t status) {
  if (status == CUBLAS_STATUS_NOT_SUPPORTED || status == CUBLAS_STATUS_INVALID_VALUE ||
      status == CUBLAS_STATUS_ARCH_MISMATCH) {
    return true;
  }
  check(status);
  return false;
}

cublasLtEpilogue_t epilogue_of(const ProductKey& key) {
  switch (key.epilogue) {
    case Epilogue::gelu:
      return key.bias ? CUBLASLT_EPILOGUE_GELU_AUX_BIAS : CUBLASLT_EPILOGUE_GELU_AUX;
    case Epilogue::gelu_slope:
      return CUBLASLT_EPILOGUE_DGELU;
    case Epilogue::column_sums:  // sums of our a, which is the library's second operand
      return CUBLASLT_EPILOGUE_BGRADB;
    case Epilogue::none:
      break;
  }
  return key.bias ? CUBLASLT_EPILOGUE_BIAS : CUBLASLT_EPILOGUE_DEFAULT;
}

struct PreferenceDeleter {
  void operator()(cublasLtMatmulPreferenceOpaque_t* x) const { cublasLtMatmulPreferenceDestroy(x); }
};
using Preference = std::unique_ptr<cublasLtMatmulPreferenceOpaque_t, PreferenceDeleter>;

template <typename T>
void set(const Preference& preference, cublasLtMatmulPreferenceAttributes_t attribute, T value) {
  check(cublasLtMatmulPreferenceSetAttribute(preference.get(), attribute, &value, sizeof value));
}

Preference preference_for(const ProductKey& key) {
  cublasLtMatmulPreference_t made = nullptr;
  check(cublasLtMatmulPreferenceCreate(&made));
  Preference preference(made);
  set(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, std::uint64_t{kProductWorkspace});
  // Split sums stay float32 until they are complete.
  if (key.out == DType::bf16) {
    set(preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
        static_cast<std::uint32_t>(CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE));
  }
  set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, key.align_b);
  set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, key.align_a);
  set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, key.align_c);
  set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, key.align_c);
  return preference;
}

}  // namespace

ProductKey::ProductKey(const Product& product, bool allow_tf32)
    : m(product.c.rows()),
      n(product.c.columns()),
      k(product.transpose_a ? product.a.rows() : product.a.columns()),
      in(product.a.dtype),
      out(product.c.dtype),
      epilogue(product.epilogue),
      transpose_a(product.transpose_a),
      transpose_b(product.transpose_b),
      accumulate(product.accumulate),
      // The library's epilogue wants a bias of the result's type.
      bias(product.bias && product.bias.dtype == product.c.dtype),
      sums(product.sums),
      tf32(allow_tf32 && product.a.dtype == DType::f32),
      align_a(alignment(product.a)),
      align_b(alignment(product.b)),
      align_c(alignment(product.c)),
      align_bias(bias ? alignment(product.bias) : 0),
      align_aux(product.aux ? alignment(product.aux) : 0) {}

std::string ProductKey::text() const {
  constexpr std::array kEpilogues = {"", " gelu", " gelu_slope", " column_sums"};
  return fmt::format("{}x{}x{} {}{} {} to {}{}{}{}{}{} at {} {} {} {} {}", m, n, k, transpose_a ? 'T' : 'N',
                     transpose_b ? 'T' : 'N', name_of(in), name_of(out), accumulate ? " added" : "",
                     bias ? " bias" : "", sums ? " sums" : "", tf32 ? " tf32" : "",
                     kEpilogues[static_cast<std::size_t>(epilogue)], align_a, align_b, align_c, align_bias,
                     align_aux);
}

std::string text_of(const Algorithm& algorithm) {
  return algorithm ? fmt::format("{:016x}", fmt::join(algorithm->data, " ")) : std::string(kOurs);
}

std::optional<Algorithm> algorithm_of(std::string_view text) {
  if (text == kOurs) return Algorithm();
  cublasLtMatmulAlgo_t algorithm{};
  static_assert(std::size(decltype(algorithm.data){}) == 8 && sizeof algorithm == 64);
  auto& to = algorithm.data;
  constexpr const char* kFormat = "%16lx %16lx %16lx %16lx %16lx %16lx %16lx %16lx";
  const int read = std::sscanf(std::string(text).c_str(), kFormat, to, to + 1, to + 2, to + 3, to + 4, to + 5,
                               to + 6, to + 7);
  if (read != 8) return std::nullopt;
  return Algorithm(algorithm);
}

template <typename T>
void ProductDescription::set(cublasLtMatmulDescAttributes_t attribute, T value) const {
  check(cublasLtMatmulDescSetAttribute(operation_.get(), attribute, &value, sizeof value));
}

// The layout of a matrix with contiguous columns.
ProductDescription::Layout ProductDescription::layout(DType dtype, std::int64_t rows, std::int64_t columns) {
  cublasLtMatrixLayout_t made = nullptr;
  check(cublasLtMatrixLayoutCreate(&made, type_of(dtype), static_cast<std::uint64_t>(rows),
                                   static_cast<std::uint64_t>(columns), rows));
  return Layout(made);
}

// The library's matrices are column-major, so ours are their own transposes there, and c^T = b^T a^T: our b
// is its first operand and our a its second.
ProductDescription::ProductDescription(const ProductKey& key) : key_(key) {
  cublasLtMatmulDesc_t made = nullptr;
  check(cublasLtMatmulDescCreate(&made, key.tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F,
                                 CUDA_R_32F));
  operation_.reset(made);
  set(CUBLASLT_MATMUL_DESC_TRANSA, static_cast<std::int32_t>(key.transpose_b ? CUBLAS_OP_T : CUBLAS_OP_N));
  set(CUBLASLT_MATMUL_DESC_TRANSB, static_cast<std::int32_t>(key.transpose_a ? CUBLAS_OP_T : CUBLAS_OP_N));
  set(CUBLASLT_MATMUL_DESC_EPILOGUE, static_cast<std::uint32_t>(epilogue_of(key)));
  if (key.epilogue == Epilogue::gelu || key.epilogue == Epilogue::gelu_slope) {
    set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, key.n);
  }
  first_ = key.transpose_b ? layout(key.in, key.k, key.n) : layout(key.in, key.n, key.k);
  second_ = key.transpose_a ? layout(key.in, key.m, key.k) : layout(key.in, key.k, key.m);
  result_ = layout(key.out, key.n, key.m);
}

void ProductDescription::point(const void* bias, const void* aux) const {
  if (key_.bias || key_.epilogue == Epilogue::column_sums) set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, bias);
  if (key_.epilogue == Epilogue::gelu || key_.epilogue == Epilogue::gelu_slope) {
    set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, aux);
  }
}

// Before it runs, the library reads only the alignment of these pointers.
void ProductDescription::point_anywhere() const {
  const auto like = [](std::uint32_t alignment) {
    return reinterpret_cast<const void*>(std::uintptr_t{alignment});
  };
  constexpr std::uint32_t kSums = 256;  // memory of its own
  point(like(key_.epilogue == Epilogue::column_sums ? kSums : key_.align_bias), like(key_.align_aux));
}

std::vector<cublasLtMatmulAlgo_t> ProductDescription::candidates(cublasLtHandle_t handle) const {
  point_anywhere();
  std::array<cublasLtMatmulHeuristicResult_t, kCandidates> results{};
  int found = 0;
  if (refused(cublasLtMatmulAlgoGetHeuristic(handle, operation_.get(), first_.get(), second_.get(),
                                             result_.get(), result_.get(), preference_for(key_).get(),
                                             kCandidates, results.data(), &found))) {
    return {};
  }
  std::vector<cublasLtMatmulAlgo_t> algorithms;
  for (int i = 0; i < found; ++i) {
    const auto& result = results[static_cast<std::size_t>(i)];
    if (result.state == CUBLAS_STATUS_SUCCESS && result.workspaceSize <= kProductWorkspace)
      algorithms.push_back(result.algo);
  }
  return algorithms;
}

bool ProductDescription::can_use(cublasLtHandle_t handle, const cublasLtMatmulAlgo_t& algorithm) const {
  point_anywhere();
  cublasLtMatmulHeuristicResult_t result{};
  const auto status = cublasLtMatmulAlgoCheck(handle, operation_.get(), first_.get(), second_.get(),
                                              result_.get(), result_.get(), &algorithm, &result);
  return status == CUBLAS_STATUS_SUCCESS && result.workspaceSize <= kProductWorkspace;
}

bool ProductDescription::run(const Product& product, const cublasLtMatmulAlgo_t& algorithm,
                             cublasLtHandle_t handle, void* workspace, float* sums,
                             cudaStream_t stream) const {
  const bool sum = key_.epilogue == Epilogue::column_sums;
  point(sum ? sums : product.bias.data, product.aux.data);
  const float alpha = 1, beta = key_.accumulate ? 1.0f : 0.0f;
  if (refused(cublasLtMatmul(handle, operation_.get(), &alpha, product.b.data, first_.get(), product.a.data,
                             second_.get(), &beta, product.c.data, result_.get(), product.c.data,
                             result_.get(), &algorithm, workspace, kProductWorkspace, stream))) {
    return false;
  }
  // The library sets the sums; a bias of another type is not its epilogue's.
  if (sum) add_bias(product.aux.reshaped({1, key_.m}), {sums, DType::f32, {key_.m}}, stream);
  if (product.bias && !key_.bias) add_bias(product.c, product.bias, stream);
  return true;
}

}  // namespace shoal::cuda
