#include "ops/cuda/hopper/tensor_map.h"

#include "core/error.h"
#include "ops/cuda/check.h"

namespace shoal::cuda {
namespace {

// Null if the driver has no such function.
decltype(&cuTensorMapEncodeTiled) map_maker() {
  void* found = nullptr;
  cudaDriverEntryPointQueryResult result{};
#if CUDART_VERSION >= 12050
  constexpr unsigned kSince = 12000;
  check(
      cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &found, kSince, cudaEnableDefault, &result));
#else
  check(cudaGetDriverEntryPoint("cuTensorMapEncodeTiled", &found, cudaEnableDefault, &result));
#endif
  return result == cudaDriverEntryPointSuccess ? reinterpret_cast<decltype(&cuTensorMapEncodeTiled)>(found)
                                               : nullptr;
}

}  // namespace

CUtensorMap make_tensor_map(const Tensor& matrix, int columns, int rows) {
  static const auto make = map_maker();
  if (!make) fail("the driver has no cuTensorMapEncodeTiled; one for CUDA 12.0 or newer has");
  const cuuint64_t sizes[] = {static_cast<cuuint64_t>(matrix.columns()),
                              static_cast<cuuint64_t>(matrix.rows())},
                   pitch[] = {sizes[0] * sizeof(bfloat16)};
  const cuuint32_t tile[] = {static_cast<cuuint32_t>(columns), static_cast<cuuint32_t>(rows)},
                   every[] = {1, 1};
  CUtensorMap map{};
  const CUresult result = make(&map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 2, matrix.data, sizes, pitch, tile,
                               every, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                               CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (result != CUDA_SUCCESS) {
    fail("cuTensorMapEncodeTiled refused a matrix of {} with error {}", matrix.shape.to_string(),
         static_cast<int>(result));
  }
  return map;
}

}  // namespace shoal::cuda
