#include "ops/backend.h"

#include "core/error.h"

namespace shoal {

std::unique_ptr<Backend> make_backend(std::string_view name, int threads) {
  if (name == "cpu") return make_cpu_backend(threads);
  if (name == "reference") return make_reference_backend();
  fail_user("this build has no backend \"{}\"; it has \"cpu\" and \"reference\"", name);
}

}  // namespace shoal
