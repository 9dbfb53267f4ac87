#include "ops/cuda/emulated/tensor_map.h"

#include "ops/cuda/hopper/tensor_map.h"

namespace shoal::cuda {

CUtensorMap make_tensor_map(const Tensor& matrix, int columns, int rows) {
  const emulated::TensorMap says{matrix.as<std::uint16_t>(), matrix.rows(), matrix.columns(), rows, columns};
  CUtensorMap map{};
  std::memcpy(&map, &says, sizeof says);
  return map;
}

}  // namespace shoal::cuda
