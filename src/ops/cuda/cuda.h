// The CUDA backend from outside, without CUDA's headers and libraries. It is a module, libshoal_cuda.so,
// which -DSHOAL_CUDA=ON builds and the first use loads.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "ops/kernel_sizes.h"
#include "ops/kernels.h"

namespace shoal {

// The kernels of attention. `automatic` takes the first that fit: cuDNN for bfloat16, heads of up to 128
// channels in multiples of 8, positions in multiples of 128 and no dropout; own ones on tensor cores for
// bfloat16 and heads of 64 channels; plain ones for all. `cudnn` throws when it does not fit, `tensor` falls
// back to `plain`.
enum class AttentionKind : std::uint8_t { automatic, cudnn, tensor, plain };

struct CudaOptions {
  int device = 0;  // modulo the number of GPUs
  // Products of float32 on tensor cores, which round the operands to 10 bits of mantissa.
  bool tf32 = false;
  // The first product of a shape times several of cuBLASLt's algorithms, with and without an epilogue;
  // otherwise cuBLASLt's own first choice is taken.
  bool tune = true;
  // The folder of the choices, for all processes that use GPUs of this kind; empty: they are kept for the
  // backends of this process.
  std::string choices = {};
  AttentionKind attention = AttentionKind::automatic;
  // cuDNN adds the gradient of q in a fixed order, for which it keeps the gradients of all scores.
  bool ordered = true;
};

struct CudaDevice {
  std::string name;
  std::size_t bytes = 0;     // of memory
  int major = 0, minor = 0;  // compute capability
};

// cuDNN for attention: its version, or why it cannot be used.
struct AttentionLibrary {
  std::string version, why_not;
};

// The sequences of a batch of B that one call of cuDNN's ordered backward pass gets: its workspace has 2
// bytes for each of their H x T x T scores, and is limited to 512 MiB (unless one sequence needs more).
constexpr std::int64_t attention_piece(std::int64_t B, std::int64_t H, std::int64_t T) {
  std::int64_t piece = std::clamp<std::int64_t>((std::int64_t{256} << 20) / (H * T * T), 1, B);
  while (B % piece != 0) --piece;
  return piece;
}

// Bytes of the dropout mask of a sequence's head as bits, for attention on tensor cores: tiles of 64 x 64 at
// and below the diagonal, by queries and, for the backward pass, once more by keys.
constexpr std::int64_t attention_mask_bytes(std::int64_t T) {
  const std::int64_t tiles = (T + 63) / 64;
  return 2 * (tiles * (tiles + 1) / 2) * (64 * 64 / 8);
}
// The heads, of all sequences, whose masks are drawn at once: up to 512 MiB, but at least one.
constexpr std::int64_t attention_mask_piece(std::int64_t heads, std::int64_t T) {
  return std::clamp<std::int64_t>((std::int64_t{512} << 20) / attention_mask_bytes(T), 1, heads);
}

// Bytes of cuBLASLt's workspace; NVIDIA recommends at least 32 MiB for Hopper.
inline constexpr std::size_t kProductWorkspace = std::size_t{64} << 20;

// Bytes of GPU memory that the libraries' kernels need in training. No GPU is asked.
std::size_t cuda_scratch_bytes(const KernelSizes& sizes);

// Whether the module exists; the environment variable SHOAL_CUDA_MODULE names another one.
bool has_cuda_module();
// Throws CudaUnavailable without a module or a GPU, or with a driver that is too old.
std::unique_ptr<Backend> make_cuda_backend(const CudaOptions& options = {});
// Why make_cuda_backend would throw, in a sentence; empty if it would not.
std::string no_cuda_device();
// All GPUs in CUDA's order; empty if make_cuda_backend would throw.
std::vector<CudaDevice> cuda_devices();
// CudaOptions::choices for all processes of the user; empty if no folder can be written.
std::string cuda_choices_folder();
AttentionLibrary cuda_attention_library();
// The version of the CUDA runtime, "13.0"; empty if the module cannot be loaded.
std::string cuda_version();

namespace cuda {

// The functions of the module; it stays loaded as long as the process.
struct Library {
  std::unique_ptr<Backend> (*make_backend)(const CudaOptions& options);
  std::vector<CudaDevice> (*devices)();
  std::string (*no_device)();
  std::string (*version)();
  AttentionLibrary (*attention)();
};

// The function that the module exports, which returns a const Library*.
inline constexpr const char* kModuleEntry = "shoal_cuda_library";

}  // namespace cuda
}  // namespace shoal
