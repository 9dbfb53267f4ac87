// Matrix products as cuBLASLt describes them, and its algorithms.
#pragma once

#include <cublasLt.h>

#include <compare>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/tensor.h"
#include "ops/cuda/cuda.h"
#include "ops/cuda/memory.h"

namespace shoal::cuda {

// Further work on a product or its operands, in the same kernel.
enum class Epilogue : std::uint8_t {
  none,
  gelu,         // aux [m, n] = a . b + bias, of the type of c; c = gelu_tanh(aux), or of what aux was rounded
                // from
  gelu_slope,   // c = gelu_tanh'(aux [m, n]) * (a . b)
  column_sums,  // aux f32 [m] += the sums of a over k
};

// c [m, n] = a . b + bias, or += without a bias, all row-major. a is stored [m, k], or [k, m] with
// transpose_a; b is stored [k, n], or [n, k] with transpose_b. a and b have one type, c that or f32; bias [n]
// has the type of a and may be empty. sums f32 [n], which may be empty, += the sums of c's columns; the
// library does not add them.
struct Product {
  Tensor c, a, b, bias = {}, aux = {}, sums = {};
  Epilogue epilogue = Epilogue::none;
  bool transpose_a = false, transpose_b = false, accumulate = false;
};

// Everything that the choice of an algorithm depends on.
struct ProductKey {
  std::int64_t m, n, k;
  DType in, out;
  Epilogue epilogue;
  bool transpose_a, transpose_b, accumulate, bias, sums, tf32;
  std::uint32_t align_a, align_b, align_c, align_bias, align_aux;

  ProductKey(const Product& product, bool tf32);
  std::string text() const;
  auto operator<=>(const ProductKey&) const = default;
};

// The algorithm of a product; nullopt: own kernels.
using Algorithm = std::optional<cublasLtMatmulAlgo_t>;
std::string text_of(const Algorithm& algorithm);
// nullopt for an invalid text.
std::optional<Algorithm> algorithm_of(std::string_view text);

// The library's descriptors of a product, for all operands of the same key.
class ProductDescription {
 public:
  explicit ProductDescription(const ProductKey& key);

  // The algorithms that the library offers, the likely best first.
  std::vector<cublasLtMatmulAlgo_t> candidates(cublasLtHandle_t handle) const;
  bool can_use(cublasLtHandle_t handle, const cublasLtMatmulAlgo_t& algorithm) const;
  // False if the algorithm cannot run. `sums` f32 [m] is for Epilogue::column_sums.
  bool run(const Product& product, const cublasLtMatmulAlgo_t& algorithm, cublasLtHandle_t handle,
           void* workspace, float* sums, cudaStream_t stream) const;

 private:
  struct OperationDeleter {
    void operator()(cublasLtMatmulDescOpaque_t* x) const { cublasLtMatmulDescDestroy(x); }
  };
  struct LayoutDeleter {
    void operator()(cublasLtMatrixLayoutOpaque_t* x) const { cublasLtMatrixLayoutDestroy(x); }
  };
  using Layout = std::unique_ptr<cublasLtMatrixLayoutOpaque_t, LayoutDeleter>;

  static Layout layout(DType dtype, std::int64_t rows, std::int64_t columns);
  template <typename T>
  void set(cublasLtMatmulDescAttributes_t attribute, T value) const;
  void point(const void* bias, const void* aux) const;
  void point_anywhere() const;

  ProductKey key_;
  std::unique_ptr<cublasLtMatmulDescOpaque_t, OperationDeleter> operation_;
  Layout first_, second_, result_;
};

// A product by an own kernel, for operands that cuBLASLt does not take; without epilogues.
void plain_product(const Product& product, cudaStream_t stream);
// c [m, n] += bias [n] for every row
void add_bias(const Tensor& c, const Tensor& bias, cudaStream_t stream);

}  // namespace shoal::cuda
