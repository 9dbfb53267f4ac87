// Matrix products by cuBLASLt: one plan per shape, made when it is first needed and kept.
#pragma once

#include <functional>
#include <map>
#include <memory>

#include "ops/cuda/product.h"

namespace shoal::cuda {

class Choices;

class Matmul {
 public:
  struct Options {
    bool tf32 = false;
    bool tune = true;          // see CudaOptions
    std::string choices = {};  // likewise
  };
  Matmul(cudaStream_t stream, const std::string& gpu, const Options& options);
  ~Matmul();

  // Chooses the algorithm of a shape when it first comes, which takes time; nothing is timed during a
  // capture.
  void operator()(const Product& product);
  // A product with an epilogue by the library, or by `parts`, which computes the same in steps: whichever is
  // faster, `parts` if nothing is timed. Both run for the timing; results that are added to have other memory
  // then. `after` makes the product's sums when the library computed the rest.
  using Parts = std::function<void(const Product&)>;
  void operator()(const Product& product, const Parts& parts, const Parts& after = {});

 private:
  struct Plan;
  struct HandleDeleter {
    void operator()(cublasLtContext* handle) const { cublasLtDestroy(handle); }
  };

  Plan& plan(const Product& product, const Parts* parts, const Parts& after);
  Algorithm choose(const ProductKey& key, const Product& product, const ProductDescription& description,
                   const Parts* parts, const Parts& after);
  Algorithm untimed(const ProductDescription& description, const Parts* parts) const;
  Algorithm timed(const Product& product, const ProductDescription& description, const Parts* parts,
                  const Parts& after);
  bool run(const Product& product, const ProductDescription& description,
           const cublasLtMatmulAlgo_t& algorithm, const Parts& after);

  cudaStream_t stream_;
  Options options_;
  std::unique_ptr<Choices> choices_;
  std::unique_ptr<cublasLtContext, HandleDeleter> handle_;
  Memory workspace_;
  KernelScratch sums_;
  std::map<ProductKey, std::unique_ptr<Plan>> plans_;
};

}  // namespace shoal::cuda
