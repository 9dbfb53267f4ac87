// Those functions of CUDA's runtime and of cuBLASLt that the backend calls, on the CPU: memory is the host's,
// streams do everything at once, and a product is a plain loop over the described layouts.
#include <cublasLt.h>
#include <cuda_runtime_api.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "core/dtype.h"
#include "ops/cuda/emulated/block.h"

using namespace shoal::emulated;

extern "C" {

// SHOAL_EMULATED_GPUS: how many there are.
cudaError_t cudaGetDeviceCount(int* count) {
  const char* asked = std::getenv("SHOAL_EMULATED_GPUS");
  return *count = asked ? std::atoi(asked) : 1, cudaSuccess;
}
cudaError_t cudaDeviceGetPCIBusId(char* place, int room, int device) {
  std::snprintf(place, static_cast<std::size_t>(room), "0000:%02x:00.0", device);
  return cudaSuccess;
}
cudaError_t cudaSetDevice(int) { return cudaSuccess; }
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int) {
  *properties = {};
  std::strcpy(properties->name, "emulated GPU");
  properties->major = 9;
  return cudaSuccess;
}
cudaError_t cudaDriverGetVersion(int* version) { return *version = 13000, cudaSuccess; }
cudaError_t cudaRuntimeGetVersion(int* version) { return *version = 13000, cudaSuccess; }
cudaError_t cudaGetLastError() { return cudaSuccess; }
const char* cudaGetErrorString(cudaError_t) { return "emulated"; }
const char* cudaGetErrorName(cudaError_t) { return "emulated"; }

cudaError_t cudaMalloc(void** memory, std::size_t bytes) {
  // What is used without having been written shows.
  *memory = std::aligned_alloc(256, (bytes + 255) / 256 * 256);
  std::memset(*memory, 0xff, bytes);
  return cudaSuccess;
}
cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes, const void*) {
  return *attributes = {}, cudaSuccess;
}
cudaError_t cudaFree(void* memory) { return std::free(memory), cudaSuccess; }
cudaError_t cudaMemGetInfo(std::size_t* free, std::size_t* total) { return *free = *total = 0, cudaSuccess; }
cudaError_t cudaHostAlloc(void** memory, std::size_t bytes, unsigned) { return cudaMalloc(memory, bytes); }
cudaError_t cudaFreeHost(void* memory) { return std::free(memory), cudaSuccess; }
// What the host gives or gets is not the same when it is done again.
cudaError_t cudaMemcpyAsync(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t) {
  if (capturing() && kind != cudaMemcpyDeviceToDevice) return cudaErrorStreamCaptureUnsupported;
  return now_or_kept([=] { std::memmove(to, from, bytes); }), cudaSuccess;
}
cudaError_t cudaMemsetAsync(void* to, int value, std::size_t bytes, cudaStream_t) {
  return now_or_kept([=] { std::memset(to, value, bytes); }), cudaSuccess;
}

using Work = std::vector<std::function<void()>>;
cudaError_t cudaStreamBeginCapture(cudaStream_t, cudaStreamCaptureMode) {
  return begin_capture(), cudaSuccess;
}
cudaError_t cudaStreamEndCapture(cudaStream_t, cudaGraph_t* graph) {
  return *graph = reinterpret_cast<cudaGraph_t>(new Work(end_capture())), cudaSuccess;
}
cudaError_t cudaGraphInstantiate(cudaGraphExec_t* exec, cudaGraph_t graph, unsigned long long) {
  return *exec = reinterpret_cast<cudaGraphExec_t>(new Work(*reinterpret_cast<Work*>(graph))), cudaSuccess;
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t) {
  for (const auto& work : *reinterpret_cast<Work*>(exec)) work();
  return cudaSuccess;
}
cudaError_t cudaGraphDestroy(cudaGraph_t graph) { return delete reinterpret_cast<Work*>(graph), cudaSuccess; }
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec) {
  return delete reinterpret_cast<Work*>(exec), cudaSuccess;
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned) {
  return *stream = nullptr, cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t) { return cudaSuccess; }
cudaError_t cudaStreamSynchronize(cudaStream_t) {
  return capturing() ? cudaErrorStreamCaptureUnsupported : cudaSuccess;
}
cudaError_t cudaStreamIsCapturing(cudaStream_t, cudaStreamCaptureStatus* status) {
  *status = capturing() ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusNone;
  return cudaSuccess;
}
cudaError_t cudaEventCreate(cudaEvent_t* event) { return *event = nullptr, cudaSuccess; }
cudaError_t cudaEventRecord(cudaEvent_t, cudaStream_t) { return cudaSuccess; }
cudaError_t cudaEventSynchronize(cudaEvent_t) { return cudaSuccess; }
cudaError_t cudaEventDestroy(cudaEvent_t) { return cudaSuccess; }
cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t, cudaEvent_t) {
  return *milliseconds = 1, cudaSuccess;
}

// --- cuBLASLt

std::size_t cublasLtGetVersion() { return 130000; }
const char* cublasLtGetStatusString(cublasStatus_t) { return "emulated"; }
cublasStatus_t cublasLtCreate(cublasLtHandle_t* handle) { return *handle = nullptr, CUBLAS_STATUS_SUCCESS; }
cublasStatus_t cublasLtDestroy(cublasLtHandle_t) { return CUBLAS_STATUS_SUCCESS; }

namespace {
struct Operation {
  std::int32_t transpose_a = CUBLAS_OP_N, transpose_b = CUBLAS_OP_N;
  std::uint32_t epilogue = CUBLASLT_EPILOGUE_DEFAULT;
  const void* bias = nullptr;
};
struct Layout {
  cudaDataType type;
  std::uint64_t rows, columns;
  std::int64_t stride;
};
double read(const void* from, cudaDataType type, std::uint64_t i) {
  return type == CUDA_R_16BF ? shoal::to_float(static_cast<const shoal::bfloat16*>(from)[i])
                             : static_cast<const float*>(from)[i];
}
void write(void* to, cudaDataType type, std::uint64_t i, double value) {
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

// Rows of odd length are left to the backend's own kernel.
cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t, cublasLtMatmulDesc_t, cublasLtMatrixLayout_t,
                                              cublasLtMatrixLayout_t, cublasLtMatrixLayout_t,
                                              cublasLtMatrixLayout_t d, cublasLtMatmulPreference_t, int,
                                              cublasLtMatmulHeuristicResult_t results[], int* found) {
  *found = reinterpret_cast<Layout*>(d)->rows % 2 == 0;
  results[0] = {};
  results[0].state = CUBLAS_STATUS_SUCCESS;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t, cublasLtMatmulDesc_t desc, const void* alpha, const void* a,
                              cublasLtMatrixLayout_t a_layout, const void* b, cublasLtMatrixLayout_t b_layout,
                              const void* beta, const void* c, cublasLtMatrixLayout_t, void* d,
                              cublasLtMatrixLayout_t d_layout, const cublasLtMatmulAlgo_t*, void*,
                              std::size_t, cudaStream_t) {
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
  now_or_kept([=] {
    std::vector<double> column(k);
    for (std::uint64_t j = 0; j < D.columns; ++j) {
      for (std::uint64_t p = 0; p < k; ++p)
        column[p] = read(b, B.type, tb ? p * B.stride + j : j * B.stride + p);
      for (std::uint64_t i = 0; i < D.rows; ++i) {
        double sum = 0;
        for (std::uint64_t p = 0; p < k; ++p) {
          sum += read(a, A.type, ta ? i * A.stride + p : p * A.stride + i) * column[p];
        }
        sum *= by;
        if (keep != 0) sum += read(c, D.type, j * D.stride + i);
        if (operation.epilogue == CUBLASLT_EPILOGUE_BIAS) sum += read(operation.bias, D.type, i);
        write(d, D.type, j * D.stride + i, sum);
      }
    }
  });
  return CUBLAS_STATUS_SUCCESS;
}

}  // extern "C"
