#include "ops/backend.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "core/error.h"
#include "core/text.h"
#include "ops/cuda/cuda.h"

namespace shoal {

LogitsPlan logits_plan(std::string_view backend, DType compute) {
  if (backend != "cuda") return {};
  // A GPU spends on logits what moving them takes, and has the memory for larger pieces.
  return {compute, std::int64_t{512} << 20};
}

void* Backend::allocate_host(std::size_t bytes) {
  const std::size_t rounded = (std::max<std::size_t>(bytes, 1) + 63) / 64 * 64;
  void* data = std::aligned_alloc(64, rounded);
  if (!data) fail_user("{} of memory cannot be had", format_bytes(static_cast<double>(bytes)));
  return std::memset(data, 0, rounded);
}

void Backend::release_host(void* data, std::size_t) { std::free(data); }

std::unique_ptr<Backend> make_backend(std::string_view name, const BackendOptions& options) {
  if (name == "cpu") return make_cpu_backend(options.threads);
  if (name == "reference") return make_reference_backend();
  if (name == "cuda") return make_cuda_backend({.device = options.local_rank, .tf32 = options.tf32});
  fail_user("there is no backend \"{}\"; there are \"cpu\", \"cuda\" and \"reference\"", name);
}

}  // namespace shoal
