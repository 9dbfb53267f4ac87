#include "ops/make_backend.h"

#include "core/error.h"
#include "ops/cuda/cuda.h"

namespace shoal {

std::optional<BackendKind> backend_kind(std::string_view name) {
  if (name == "cpu") return BackendKind::cpu;
  if (name == "cuda") return BackendKind::cuda;
  if (name == "reference") return BackendKind::reference;
  return std::nullopt;
}

std::size_t scratch_bytes(BackendKind kind, const KernelSizes& sizes, int threads) {
  switch (kind) {
    case BackendKind::cpu:
      return cpu_scratch_bytes(threads, sizes);
    case BackendKind::cuda:
      return cuda_scratch_bytes(sizes);
    case BackendKind::reference:
      return 0;
  }
  fail("no such backend");
}

LogitsPlan logits_plan(BackendKind backend, DType compute) {
  if (backend != BackendKind::cuda) return {};
  // A GPU is bound by moving the logits, and has the memory for larger chunks.
  return {compute, std::int64_t{512} << 20};
}

std::unique_ptr<Backend> make_backend(BackendKind kind, const BackendOptions& options) {
  switch (kind) {
    case BackendKind::cpu:
      return make_cpu_backend(options.threads, options.cpu_level.value_or(cpu_level()));
    case BackendKind::reference:
      return make_reference_backend();
    case BackendKind::cuda:
      return make_cuda_backend({.device = options.local_rank,
                                .tf32 = options.tf32,
                                .tune = options.tune,
                                .choices = options.tune ? cuda_choices_folder() : "",
                                .ordered = options.ordered});
  }
  fail("no such backend");
}

}  // namespace shoal
