#include "ops/backend.h"

namespace shoal {

LogitsPlan logits_plan(std::string_view backend, DType compute) {
  if (backend != "cuda") return {};
  // A GPU spends on logits what moving them takes, and has the memory for larger pieces.
  return {compute, std::int64_t{512} << 20};
}

}  // namespace shoal
