// A file of named tensors, mapped into memory.
#pragma once

#include <cstddef>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/tensor.h"

namespace shoal {

// A tensor of a file, row-major. Types that Shoal does not compute with (I64, U8, BOOL, ...) have no `dtype`.
struct StoredTensor {
  std::string name;
  std::string type;  // as safetensors names it: "F32", "BF16", ...
  std::optional<DType> dtype;
  Shape shape;
  std::span<const std::byte> data;  // valid as long as the file; not aligned
};

class TensorFile {
 public:
  virtual ~TensorFile() = default;
  virtual const std::filesystem::path& path() const = 0;
  virtual const std::vector<StoredTensor>& tensors() const = 0;
};

}  // namespace shoal
