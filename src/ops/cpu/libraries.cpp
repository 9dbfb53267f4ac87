#include "ops/libraries.h"

#include <fmt/format.h>
#include <omp.h>

#include <dnnl.hpp>

namespace shoal {

std::vector<Library> ops_libraries() {
  const auto* onednn = dnnl_version();
  // OpenMP names its versions by date.
  return {{"oneDNN", fmt::format("{}.{}.{}", onednn->major, onednn->minor, onednn->patch),
           "matrix products on the CPU"},
          {"OpenMP", std::to_string(_OPENMP), "threads of the CPU's kernels"}};
}

}  // namespace shoal
