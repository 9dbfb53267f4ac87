#include "ops/cuda/matmul.h"

#include <fmt/format.h>

#include <cstdio>
#include <utility>

#include "core/error.h"
#include "ops/cuda/check.h"
#include "ops/cuda/choices.h"

namespace shoal::cuda {
namespace {

bool capturing(cudaStream_t stream) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  check(cudaStreamIsCapturing(stream, &status));
  return status != cudaStreamCaptureStatusNone;
}

// Milliseconds of the kernels that `work` launches, after a warm-up; nullopt if it returns false.
std::optional<float> time(cudaStream_t stream, const std::function<bool()>& work) {
  constexpr int kRuns = 5;
  const GpuEvent begin = make_gpu_event(), end = make_gpu_event();
  for (int run = 0; run <= kRuns; ++run) {
    if (run == 1) check(cudaEventRecord(begin.get(), stream));
    if (!work()) return std::nullopt;
  }
  check(cudaEventRecord(end.get(), stream));
  check(cudaEventSynchronize(end.get()));
  float milliseconds = 0;
  check(cudaEventElapsedTime(&milliseconds, begin.get(), end.get()));
  return milliseconds / kRuns;
}

// A product for timing, with other memory for results that are added to. Allocating and freeing it does not
// wait for other ranks.
class Trial {
 public:
  Trial(const Product& product, cudaStream_t stream) : product_(product), stream_(stream) {
    if (product.accumulate) product_.c.data = take(product.c.bytes());
    if (product.epilogue == Epilogue::column_sums) product_.aux.data = take(product.aux.bytes());
    if (product.sums) product_.sums.data = take(product.sums.bytes());
  }
  ~Trial() {
    for (void* memory : taken_) cudaFreeAsync(memory, stream_);
  }
  Trial(const Trial&) = delete;
  Trial& operator=(const Trial&) = delete;
  // Whether there was memory.
  explicit operator bool() const { return possible_; }
  const Product& product() const { return product_; }

 private:
  void* take(std::size_t bytes) {
    void* memory = nullptr;
    if (!possible_ || cudaMallocAsync(&memory, bytes, stream_) != cudaSuccess) {
      cudaGetLastError();  // clears the error, or the next launch would report it
      possible_ = false;
      return nullptr;
    }
    taken_.push_back(memory);
    check(cudaMemsetAsync(memory, 0, bytes, stream_));
    return memory;
  }

  Product product_;
  cudaStream_t stream_;
  std::vector<void*> taken_;
  bool possible_ = true;
};

// Our own kernel is there for small products of shapes that the library does not take.
void report_without_algorithm(const ProductKey& key) {
  constexpr double kLarge = 1e9;
  const double flops = 2.0 * static_cast<double>(key.m) * static_cast<double>(key.n * key.k);
  const auto text =
      fmt::format("cuBLASLt {} has no algorithm for the product {}", cublasLtGetVersion(), key.text());
  if (flops > kLarge) {
    fail(
        "{}, and without one it is about 100 times slower: another version of the library may have one, and "
        "so may sizes that are multiples of 8",
        text);
  }
  fmt::print(stderr, "{}; it is computed by a slow kernel\n", text);
}

}  // namespace

struct Matmul::Plan {
  Algorithm algorithm;
  ProductDescription description;
};

Matmul::Matmul(cudaStream_t stream, const std::string& gpu, const Options& options)
    : stream_(stream), options_(options), choices_(std::make_unique<Choices>(options.choices, gpu)) {
  cublasLtHandle_t handle = nullptr;
  check(cublasLtCreate(&handle));
  handle_.reset(handle);
  workspace_ = take_memory(kProductWorkspace);
}

Matmul::~Matmul() = default;

bool Matmul::run(const Product& product, const ProductDescription& description,
                 const cublasLtMatmulAlgo_t& algorithm, const Parts& after) {
  float* sums = product.epilogue == Epilogue::column_sums ? sums_.take<float>(product.c.rows()) : nullptr;
  if (!description.run(product, algorithm, handle_.get(), workspace_.get(), sums, stream_)) return false;
  if (product.sums) after(product);
  return true;
}

Algorithm Matmul::untimed(const ProductDescription& description, const Parts* parts) const {
  if (parts) return std::nullopt;
  const auto candidates = description.candidates(handle_.get());
  return candidates.empty() ? Algorithm() : candidates.front();
}

// The first that works, or the fastest. A later one must be faster by more than the noise of timing.
Algorithm Matmul::timed(const Product& product, const ProductDescription& description, const Parts* parts,
                        const Parts& after) {
  constexpr float kWavers = 0.98f;
  std::optional<float> least;
  if (parts) {
    least = time(stream_, [&] {
      (*parts)(product);
      return true;
    });
  }
  Algorithm found;
  for (const auto& candidate : description.candidates(handle_.get())) {
    const auto taken = time(stream_, [&] { return run(product, description, candidate, after); });
    if (!taken || (least && *taken > *least * kWavers)) continue;
    found = candidate;
    least = taken;
  }
  return found;
}

Algorithm Matmul::choose(const ProductKey& key, const Product& product, const ProductDescription& description,
                         const Parts* parts, const Parts& after) {
  if (!options_.tune) return untimed(description, parts);
  const auto can_use = [&](const Algorithm& algorithm) {
    return !algorithm || description.can_use(handle_.get(), *algorithm);
  };
  if (const auto known = choices_->find(key, can_use)) return *known;
  if (capturing(stream_)) return choices_->keep(key, untimed(description, parts));
  const Trial trial(product, stream_);
  if (!trial) {
    fmt::print(stderr,
               "the GPU has no memory left to time the product {}: it gets an algorithm that a run with more "
               "memory may not choose, so bits may differ between the two\n",
               key.text());
    return choices_->keep(key, untimed(description, parts));
  }
  // Makes the parts' own choices first, and waits for this GPU's kernels: they may wait for another rank,
  // which may come to wait for this choice.
  if (parts) (*parts)(trial.product());
  check(cudaStreamSynchronize(stream_));
  return choices_->find_or_measure(key, can_use,
                                   [&] { return timed(trial.product(), description, parts, after); });
}

Matmul::Plan& Matmul::plan(const Product& product, const Parts* parts, const Parts& after) {
  const ProductKey key(product, options_.tf32);
  if (const auto known = plans_.find(key); known != plans_.end()) return *known->second;
  auto made = std::make_unique<Plan>(Plan{std::nullopt, ProductDescription(key)});
  made->algorithm = choose(key, product, made->description, parts, after);
  if (!made->algorithm && !parts) report_without_algorithm(key);
  return *plans_.emplace(key, std::move(made)).first->second;
}

void Matmul::operator()(const Product& product) {
  if (product.c.count() == 0) return;
  const Plan& chosen = plan(product, nullptr, {});
  if (!chosen.algorithm) return plain_product(product, stream_);
  if (!run(product, chosen.description, *chosen.algorithm, {})) {
    fail("cuBLASLt refused a product of {} and {} that it offered to do", product.a.shape.to_string(),
         product.b.shape.to_string());
  }
}

void Matmul::operator()(const Product& product, const Parts& parts, const Parts& after) {
  if (product.c.count() == 0) return parts(product);
  Plan& chosen = plan(product, &parts, after);
  if (chosen.algorithm && run(product, chosen.description, *chosen.algorithm, after)) return;
  chosen.algorithm = std::nullopt;  // the library may have refused it
  parts(product);
}

}  // namespace shoal::cuda
