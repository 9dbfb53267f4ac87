// Emulates the functions of CUDA's runtime and of cuBLASLt that the backend calls, on the CPU: memory is the
// host's (memory.h), streams are late (stream.h), and a product is a plain loop over the described layouts.
//
// Variables of the environment: SHOAL_EMULATED_GPUS and SHOAL_EMULATED_SHARED say what GPUs there are
// (below), SHOAL_EMULATED_ORDER in which order threads, blocks and streams run (block.h, stream.h),
// SHOAL_EMULATED_GUARD where memory is guarded (memory.h), SHOAL_EMULATED_RACES looks for races (races.h),
// and SHOAL_EMULATED_LOG names a file of launches (log.h).
#include <cublasLt.h>
#include <cuda_runtime_api.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <map>
#include <memory>
#include <mutex>
#include <numbers>
#include <sstream>
#include <utility>
#include <vector>

#include "core/dtype.h"
#include "ops/cuda/emulated/block.h"
#include "ops/cuda/emulated/failure.h"
#include "ops/cuda/emulated/log.h"
#include "ops/cuda/emulated/memory.h"
#include "ops/cuda/emulated/stream.h"

using namespace shoal::emulated;

namespace {

std::mutex launches;
// The status of a launch that a GPU would refuse.
thread_local cudaError_t last_error = cudaSuccess;

// Only products take time. The time of each offered algorithm in milliseconds. The results of all but the
// first are slightly wrong.
std::vector<float> algorithm_times() {
  const char* given = std::getenv("SHOAL_FAKE_ALGORITHMS");
  std::istringstream text(given ? given : "1");
  return {std::istream_iterator<float>(text), {}};
}
// The time of products whose epilogue is more than a bias.
float fused_time() {
  const char* given = std::getenv("SHOAL_FAKE_FUSED");
  return given ? std::strtof(given, nullptr) : 0.5f;
}

}  // namespace

extern "C" {

// The number of GPUs is SHOAL_EMULATED_GPUS.
cudaError_t cudaGetDeviceCount(int* count) {
  const char* asked = std::getenv("SHOAL_EMULATED_GPUS");
  return *count = asked ? std::atoi(asked) : 1, cudaSuccess;
}
cudaError_t cudaDeviceGetPCIBusId(char* place, int room, int device) {
  std::snprintf(place, static_cast<std::size_t>(room), "0000:%02x:00.0", device);
  return cudaSuccess;
}
cudaError_t cudaSetDevice(int) { return cudaSuccess; }
cudaError_t cudaGetDevice(int* device) { return *device = 0, cudaSuccess; }
// A block may have SHOAL_EMULATED_SHARED bytes of shared memory, by default as many as on an H100.
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int) {
  if (attribute == cudaDevAttrMultiProcessorCount) return *value = 1, cudaSuccess;
  if (attribute == cudaDevAttrComputeCapabilityMajor) return *value = 9, cudaSuccess;
  if (attribute == cudaDevAttrMaxSharedMemoryPerMultiprocessor) return *value = 228 << 10, cudaSuccess;
  if (attribute != cudaDevAttrMaxSharedMemoryPerBlockOptin) return cudaErrorInvalidValue;
  const char* given = std::getenv("SHOAL_EMULATED_SHARED");
  return *value = given ? std::atoi(given) : 227 << 10, cudaSuccess;
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int) {
  *properties = {};
  std::strcpy(properties->name, "emulated GPU");
  properties->major = 9;
  properties->totalGlobalMem = std::size_t{8} << 30;
  return cudaSuccess;
}
cudaError_t cudaDriverGetVersion(int* version) { return *version = 13000, cudaSuccess; }
cudaError_t cudaRuntimeGetVersion(int* version) { return *version = 13000, cudaSuccess; }
cudaError_t cudaGetLastError() {
  const cudaError_t last = std::exchange(last_error, cudaSuccess);
  return failure() != cudaSuccess ? failure() : last;
}
const char* cudaGetErrorString(cudaError_t status) {
  return status != cudaSuccess && status == failure() ? failure_message() : "emulated";
}
const char* cudaGetErrorName(cudaError_t status) {
  return status == cudaErrorIllegalAddress             ? "cudaErrorIllegalAddress"
         : status == cudaErrorLaunchFailure            ? "cudaErrorLaunchFailure"
         : status == cudaErrorInvalidValue             ? "cudaErrorInvalidValue"
         : status == cudaErrorInvalidConfiguration     ? "cudaErrorInvalidConfiguration"
         : status == cudaErrorStreamCaptureUnsupported ? "cudaErrorStreamCaptureUnsupported"
                                                       : "emulated";
}

cudaError_t cudaMalloc(void** memory, std::size_t bytes) {
  return *memory = take_memory(bytes, Kind::device), failure();
}
cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes, const void*) {
  return *attributes = {}, cudaSuccess;
}
cudaError_t cudaMallocAsync(void** memory, std::size_t bytes, cudaStream_t) {
  return cudaMalloc(memory, bytes);
}
cudaError_t cudaFreeAsync(void* memory, cudaStream_t stream) {
  return queue(stream, [=] { give_back(memory); }), failure();
}
// Waits for the work of all streams.
cudaError_t cudaFree(void* memory) { return finish_all(), give_back(memory), failure(); }
cudaError_t cudaMemGetInfo(std::size_t* free, std::size_t* total) { return *free = *total = 0, cudaSuccess; }
cudaError_t cudaHostAlloc(void** memory, std::size_t bytes, unsigned) {
  // A test can limit the number of successful calls.
  static std::atomic<int> before = 0;
  const char* most = std::getenv("SHOAL_TEST_PINNED_PIECES");
  if (most && before++ >= std::atoi(most)) return cudaErrorMemoryAllocation;
  return *memory = take_memory(bytes, Kind::pinned), failure();
}
cudaError_t cudaFreeHost(void* memory) { return give_back(memory), failure(); }

// Pageable memory of the host is read at once, and has been written when the call returns. Copies between
// host and device are refused during a capture: a replay would repeat them with stale data.
cudaError_t cudaMemcpyAsync(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t stream) {
  const bool from_host = kind == cudaMemcpyHostToDevice, to_host = kind == cudaMemcpyDeviceToHost;
  if ((from_host || to_host) && breaks_capture(stream)) return cudaErrorStreamCaptureUnsupported;
  std::shared_ptr<std::byte[]> staged;
  if (from_host && !is_pinned(from)) {
    staged = std::make_shared_for_overwrite<std::byte[]>(bytes);
    std::memcpy(staged.get(), from, bytes);
    from = staged.get();
  }
  const int number = to_host ? next_read() : -1;
  queue(stream, [=] {
    run_guarded("a copy", [&] {
      std::memmove(to, staged ? staged.get() : from, bytes);
      if (number >= 0) log_read(number, to, bytes);
    });
  });
  if (to_host && !is_pinned(to)) return cudaStreamSynchronize(stream);
  return failure();
}
cudaError_t cudaMemcpy(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind) {
  if (breaks_captures()) return cudaErrorStreamCaptureUnsupported;
  cudaMemcpyAsync(to, from, bytes, kind, nullptr);
  return cudaStreamSynchronize(nullptr);
}
cudaError_t cudaMemsetAsync(void* to, int value, std::size_t bytes, cudaStream_t stream) {
  queue(stream, [=] { run_guarded("cudaMemsetAsync", [=] { std::memset(to, value, bytes); }); });
  return failure();
}

// How much dynamic shared memory kernels have asked for; 0 if they have not.
static std::size_t& asked_for(const void* kernel) {
  static std::map<const void*, std::size_t> all;
  return all[kernel];
}
cudaError_t cudaFuncSetAttribute(const void* kernel, cudaFuncAttribute attribute, int value) {
  if (attribute != cudaFuncAttributeMaxDynamicSharedMemorySize) return cudaErrorInvalidValue;
  int most = 0;
  cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, 0);
  if (value > most) return cudaErrorInvalidValue;
  const std::lock_guard lock(launches);
  return asked_for(kernel) = static_cast<std::size_t>(value), failure();
}

}  // extern "C"

namespace shoal::emulated {

void launch(const Launch& launch, cudaStream_t stream, std::function<void()> thread) {
  constexpr unsigned kMostThreads = 1024, kMostBlocks = 65535;
  constexpr std::size_t kUnasked = 48 << 10;
  const std::size_t asked = [&] {
    const std::lock_guard lock(launches);
    return asked_for(launch.kernel);
  }();
  log_launch(launch, asked);
  if (launch.block.x > kMostThreads || launch.block.y != 1 || launch.block.z != 1 ||
      launch.grid.x > 0x7fffffffu || launch.grid.y > kMostBlocks || launch.grid.z > kMostBlocks) {
    last_error = cudaErrorInvalidConfiguration;
  } else if (launch.shared > std::max(asked, kUnasked)) {
    last_error = cudaErrorInvalidValue;
  } else {
    queue(stream, [launch, thread = std::move(thread)] { run_grid(launch, thread); });
  }
}

}  // namespace shoal::emulated

extern "C" {

// --- cuBLASLt

std::size_t cublasLtGetVersion() { return 130000; }
const char* cublasLtGetStatusString(cublasStatus_t) { return "emulated"; }
cublasStatus_t cublasLtCreate(cublasLtHandle_t* handle) { return *handle = nullptr, CUBLAS_STATUS_SUCCESS; }
cublasStatus_t cublasLtDestroy(cublasLtHandle_t) { return CUBLAS_STATUS_SUCCESS; }

namespace {
struct Operation {
  std::int32_t transpose_a = CUBLAS_OP_N, transpose_b = CUBLAS_OP_N;
  std::uint32_t epilogue = CUBLASLT_EPILOGUE_DEFAULT;
  void* bias = nullptr;
  void* aux = nullptr;
  std::int64_t aux_stride = 0;
  bool plain() const { return epilogue == CUBLASLT_EPILOGUE_DEFAULT || epilogue == CUBLASLT_EPILOGUE_BIAS; }
};
struct Layout {
  cudaDataType type;
  std::uint64_t rows, columns;
  std::int64_t stride;
};
double get_element(const void* from, cudaDataType type, std::uint64_t i) {
  return type == CUDA_R_16BF ? shoal::to_float(static_cast<const shoal::bfloat16*>(from)[i])
                             : static_cast<const float*>(from)[i];
}
void put_element(void* to, cudaDataType type, std::uint64_t i, double value) {
  const auto rounded = static_cast<float>(value);
  if (type == CUDA_R_16BF) {
    static_cast<shoal::bfloat16*>(to)[i] = shoal::to_bfloat16(rounded);
  } else {
    static_cast<float*>(to)[i] = rounded;
  }
}
}  // namespace

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t* made, cublasComputeType_t, cudaDataType_t) {
  return *made = reinterpret_cast<cublasLtMatmulDesc_t>(new Operation), CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t x) {
  return delete reinterpret_cast<Operation*>(x), CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t x,
                                              cublasLtMatmulDescAttributes_t attribute, const void* value,
                                              std::size_t bytes) {
  auto& operation = *reinterpret_cast<Operation*>(x);
  const auto set = [&](auto& to) {
    if (sizeof to != bytes) return CUBLAS_STATUS_INVALID_VALUE;
    return std::memcpy(&to, value, bytes), CUBLAS_STATUS_SUCCESS;
  };
  switch (attribute) {
    case CUBLASLT_MATMUL_DESC_TRANSA:
      return set(operation.transpose_a);
    case CUBLASLT_MATMUL_DESC_TRANSB:
      return set(operation.transpose_b);
    case CUBLASLT_MATMUL_DESC_EPILOGUE:
      return set(operation.epilogue);
    case CUBLASLT_MATMUL_DESC_BIAS_POINTER:
      return set(operation.bias);
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER:
      return set(operation.aux);
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD:
      return set(operation.aux_stride);
    default:
      return CUBLAS_STATUS_INVALID_VALUE;
  }
}
cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t* made, cudaDataType type, std::uint64_t rows,
                                          std::uint64_t columns, std::int64_t stride) {
  *made = reinterpret_cast<cublasLtMatrixLayout_t>(new Layout{type, rows, columns, stride});
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t x) {
  return delete reinterpret_cast<Layout*>(x), CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t* made) {
  return *made = nullptr, CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t) { return CUBLAS_STATUS_SUCCESS; }
cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t,
                                                    cublasLtMatmulPreferenceAttributes_t, const void*,
                                                    std::size_t) {
  return CUBLAS_STATUS_SUCCESS;
}

// Offers no algorithm for rows of odd length, so the backend uses its own kernel.
cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t, cublasLtMatmulDesc_t desc,
                                              cublasLtMatrixLayout_t, cublasLtMatrixLayout_t,
                                              cublasLtMatrixLayout_t, cublasLtMatrixLayout_t d,
                                              cublasLtMatmulPreference_t, int,
                                              cublasLtMatmulHeuristicResult_t results[], int* found) {
  *found = 0;
  if (reinterpret_cast<Layout*>(d)->rows % 2 != 0) return CUBLAS_STATUS_SUCCESS;
  const std::size_t offered = reinterpret_cast<Operation*>(desc)->plain() ? algorithm_times().size() : 1;
  for (std::size_t i = 0; i < offered; ++i) {
    results[i] = {};
    results[i].algo.data[0] = i;
    results[i].state = CUBLAS_STATUS_SUCCESS;
    ++*found;
  }
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulAlgoCheck(cublasLtHandle_t, cublasLtMatmulDesc_t, cublasLtMatrixLayout_t,
                                       cublasLtMatrixLayout_t, cublasLtMatrixLayout_t, cublasLtMatrixLayout_t,
                                       const cublasLtMatmulAlgo_t* algorithm,
                                       cublasLtMatmulHeuristicResult_t* result) {
  *result = {};
  return algorithm->data[0] < algorithm_times().size() ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_NOT_SUPPORTED;
}

namespace {

// GELU's approximation with tanh, and its derivative.
double gelu_value(double x) {
  return x / 2 * (1 + std::tanh(std::sqrt(2 / std::numbers::pi) * (x + 0.044715 * x * x * x)));
}
double gelu_slope(double x) {
  const double scale = std::sqrt(2 / std::numbers::pi), t = std::tanh(scale * (x + 0.044715 * x * x * x));
  return (1 + t) / 2 + x / 2 * (1 - t * t) * scale * (1 + 3 * 0.044715 * x * x);
}

// Applies the epilogue to the sum of element i of column j.
double finish_element(const Operation& operation, cudaDataType type, std::uint64_t i, std::uint64_t j,
                      double sum) {
  const std::uint64_t at = j * static_cast<std::uint64_t>(operation.aux_stride) + i;
  switch (operation.epilogue) {
    case CUBLASLT_EPILOGUE_BIAS:
      return sum + get_element(operation.bias, type, i);
    case CUBLASLT_EPILOGUE_GELU_AUX_BIAS:
      sum += get_element(operation.bias, type, i);
      [[fallthrough]];
    case CUBLASLT_EPILOGUE_GELU_AUX:
      put_element(operation.aux, type, at, sum);
      return gelu_value(sum);
    case CUBLASLT_EPILOGUE_DGELU:
      return sum * gelu_slope(get_element(operation.aux, type, at));
    default:
      return sum;
  }
}

}  // namespace

cublasStatus_t cublasLtMatmul(cublasLtHandle_t, cublasLtMatmulDesc_t desc, const void* alpha, const void* a,
                              cublasLtMatrixLayout_t a_layout, const void* b, cublasLtMatrixLayout_t b_layout,
                              const void* beta, const void* c, cublasLtMatrixLayout_t, void* d,
                              cublasLtMatrixLayout_t d_layout, const cublasLtMatmulAlgo_t* algorithm, void*,
                              std::size_t, cudaStream_t stream) {
  const Operation operation = *reinterpret_cast<Operation*>(desc);
  const Layout A = *reinterpret_cast<Layout*>(a_layout), B = *reinterpret_cast<Layout*>(b_layout),
               D = *reinterpret_cast<Layout*>(d_layout);
  const float by = *static_cast<const float*>(alpha), keep = *static_cast<const float*>(beta);
  const bool ta = operation.transpose_a == CUBLAS_OP_T, tb = operation.transpose_b == CUBLAS_OP_T;
  const std::uint64_t k = ta ? A.rows : A.columns;
  if ((ta ? A.columns : A.rows) != D.rows || (tb ? B.rows : B.columns) != D.columns ||
      (tb ? B.columns : B.rows) != k) {
    return CUBLAS_STATUS_INVALID_VALUE;
  }
  const auto times = algorithm_times();
  if (algorithm->data[0] >= times.size()) return CUBLAS_STATUS_NOT_SUPPORTED;
  const double factor = by * (1 + static_cast<double>(algorithm->data[0]) / 256);
  const auto compute = [=] {
    // Rows of A's columns beside each other, so that the compiler adds to several elements at a time.
    std::vector<double> columns_of_a(D.rows * k), column(k), sums(D.rows);
    for (std::uint64_t p = 0; p < k; ++p) {
      for (std::uint64_t i = 0; i < D.rows; ++i)
        columns_of_a[p * D.rows + i] = get_element(a, A.type, ta ? i * A.stride + p : p * A.stride + i);
    }
    for (std::uint64_t j = 0; j < D.columns; ++j) {
      double column_sum = 0;
      for (std::uint64_t p = 0; p < k; ++p)
        column_sum += column[p] = get_element(b, B.type, tb ? p * B.stride + j : j * B.stride + p);
      if (operation.epilogue == CUBLASLT_EPILOGUE_BGRADB) put_element(operation.bias, D.type, j, column_sum);
      std::fill(sums.begin(), sums.end(), 0.0);
      for (std::uint64_t p = 0; p < k; ++p) {
        const double* column_of_a = columns_of_a.data() + p * D.rows;
        for (std::uint64_t i = 0; i < D.rows; ++i) sums[i] += column_of_a[i] * column[p];
      }
      for (std::uint64_t i = 0; i < D.rows; ++i) {
        double sum = sums[i] * factor;
        if (keep != 0) sum += get_element(c, D.type, j * D.stride + i);
        put_element(d, D.type, j * D.stride + i, finish_element(operation, D.type, i, j, sum));
      }
    }
  };
  queue(
      stream, [=] { run_guarded("a matrix product", compute); },
      operation.plain() ? times[algorithm->data[0]] : fused_time());
  return CUBLAS_STATUS_SUCCESS;
}

}  // extern "C"
