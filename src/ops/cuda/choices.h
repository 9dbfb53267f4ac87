// The choice of an algorithm for a product: measured once and then kept, since another algorithm adds in
// another order. Ranks that are threads share a table of the process; processes share a file, if there is a
// folder for it. A file belongs to one version of cuBLASLt and one kind of GPU.
#pragma once

#include <filesystem>
#include <functional>
#include <string>

#include "core/shared_table.h"
#include "ops/cuda/product.h"

namespace shoal::cuda {

class Choices {
 public:
  // Without a folder, choices are kept for the process only.
  Choices(const std::filesystem::path& folder, const std::string& gpu);

  using CanUse = std::function<bool(const Algorithm&)>;
  // The choice, if there is one; does not wait for another process that measures.
  std::optional<Algorithm> find(const ProductKey& key, const CanUse& can_use) const;
  // The choice, or else the result of `measure`, which runs in one process at a time.
  Algorithm find_or_measure(const ProductKey& key, const CanUse& can_use,
                            const std::function<Algorithm()>& measure) const;
  // Sets the choice for this process, if there is none.
  Algorithm keep(const ProductKey& key, const Algorithm& algorithm) const;

 private:
  std::string name_;
  SharedTable shared_;
};

}  // namespace shoal::cuda
