#include "ops/make_backend.h"

#include "core/error.h"
#include "ops/cuda/cuda.h"

namespace shoal {

std::unique_ptr<Backend> make_backend(std::string_view name, const BackendOptions& options) {
  if (name == "cpu") return make_cpu_backend(options.threads);
  if (name == "reference") return make_reference_backend();
  if (name == "cuda") {
    return make_cuda_backend({.device = options.local_rank,
                              .tf32 = options.tf32,
                              .tune = options.tune,
                              .choices = options.tune ? cuda_choices_folder() : ""});
  }
  fail_user("there is no backend \"{}\"; there are \"cpu\", \"cuda\" and \"reference\"", name);
}

}  // namespace shoal
