// Matrix products by cuBLASLt: one plan per shape, made when it is first needed and kept.
#pragma once

#include <functional>
#include <map>

#include "ops/cuda/choices.h"

namespace shoal::cuda {

class Matmul {
 public:
  struct Options {
    bool tf32 = false;
    bool tune = true;          // as CudaOptions has it, and so
    std::string choices = {};  // is this folder
  };
  Matmul(cudaStream_t stream, const std::string& gpu, const Options& options);
  ~Matmul();

  // A shape's algorithm is chosen when it is first asked for, which takes time; while a graph is captured
  // nothing is timed.
  void operator()(const Product& product);
  // A product with an epilogue, by the library, or by `parts`, which does the same in steps: whichever is
  // faster, and by `parts` where nothing is timed. Both are run for that, on other results where results are
  // added to.
  using Parts = std::function<void(const Product&)>;
  void operator()(const Product& product, const Parts& parts);

 private:
  struct Plan;
  struct HandleDeleter {
    void operator()(cublasLtContext* handle) const { cublasLtDestroy(handle); }
  };

  Plan& plan(const Product& product, const Parts* parts);
  Algorithm choose(const ProductKey& key, const Product& product, const ProductDescription& description,
                   const Parts* parts);
  Algorithm untimed(const ProductDescription& description, const Parts* parts) const;
  Algorithm timed(const Product& product, const ProductDescription& description, const Parts* parts);
  bool run(const Product& product, const ProductDescription& description,
           const cublasLtMatmulAlgo_t& algorithm);

  cudaStream_t stream_;
  Options options_;
  Choices choices_;
  std::unique_ptr<cublasLtContext, HandleDeleter> handle_;
  Memory workspace_;
  Scratch sums_;
  std::map<ProductKey, std::unique_ptr<Plan>> plans_;
};

}  // namespace shoal::cuda
