// Which algorithm does a product: measured once, and the same from then on, since another one adds in another
// order. Ranks that are threads share a table of the process; processes share a file, where there is a folder
// for it. The file is of one version of cuBLASLt and one kind of GPU.
#pragma once

#include <filesystem>
#include <functional>
#include <string>

#include "core/shared_table.h"
#include "ops/cuda/product.h"

namespace shoal::cuda {

class Choices {
 public:
  // Without a folder choices hold for the process.
  Choices(const std::filesystem::path& folder, const std::string& gpu);

  using CanUse = std::function<bool(const Algorithm&)>;
  // What has been chosen; waits for nobody who measures in another process.
  std::optional<Algorithm> find(const ProductKey& key, const CanUse& can_use) const;
  // The same, or what `measure` returns. Only one process does that at a time.
  Algorithm find_or_measure(const ProductKey& key, const CanUse& can_use,
                            const std::function<Algorithm()>& measure) const;
  // For this process, where nothing was chosen before.
  Algorithm keep(const ProductKey& key, const Algorithm& algorithm) const;

 private:
  std::string name_;
  SharedTable shared_;
};

}  // namespace shoal::cuda
