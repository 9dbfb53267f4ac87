// Matrix products by cuBLASLt: one plan per shape, made when it is first needed and kept.
#pragma once

#include <cublasLt.h>

#include <cstdint>
#include <map>
#include <memory>

#include "core/tensor.h"
#include "ops/cuda/memory.h"

namespace shoal::cuda {

// c [m, n] = a . b + bias, or += without a bias, all row-major. a is stored [m, k], or [k, m] with
// transpose_a; b is stored [k, n], or [n, k] with transpose_b. a and b have one type, c that or f32; bias [n]
// has the type of a and may be empty.
struct Product {
  Tensor c, a, b, bias;
  bool transpose_a = false, transpose_b = false, accumulate = false;
};

struct ProductKey;

class Matmul {
 public:
  struct Options {
    bool tf32 = false, tune = true;
  };
  Matmul(cudaStream_t stream, const Options& options);
  ~Matmul();

  // A shape's algorithm is chosen when it is first asked for, which takes time; not while a graph is
  // captured.
  void operator()(const Product& product);

 private:
  struct Plan;
  struct HandleDeleter {
    void operator()(cublasLtContext* handle) const { cublasLtDestroy(handle); }
  };

  const Plan& plan(const Product& product);

  cudaStream_t stream_;
  Options options_;
  std::unique_ptr<cublasLtContext, HandleDeleter> handle_;
  Memory workspace_;
  std::map<ProductKey, std::unique_ptr<Plan>> plans_;
};

// The same by a kernel of ours, for what cuBLASLt does not take.
void plain_product(const Product& product, cudaStream_t stream);
// c [m, n] += bias [n] for every row
void add_bias(const Tensor& c, const Tensor& bias, cudaStream_t stream);

}  // namespace shoal::cuda
