#include "ops/backend.h"

#include "core/error.h"
#ifdef SHOAL_HAVE_CUDA
#include "ops/cuda/cuda.h"
#endif

namespace shoal {

std::unique_ptr<Backend> make_backend(std::string_view name, int threads) {
  if (name == "cpu") return make_cpu_backend(threads);
  if (name == "reference") return make_reference_backend();
#ifdef SHOAL_HAVE_CUDA
  if (name == "cuda") return make_cuda_backend();
  fail_user("this build has no backend \"{}\"; it has \"cpu\", \"cuda\" and \"reference\"", name);
#else
  fail_user("this build has no backend \"{}\"; it has \"cpu\" and \"reference\"", name);
#endif
}

}  // namespace shoal
