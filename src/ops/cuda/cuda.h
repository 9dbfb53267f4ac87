// The CUDA backend from outside: nothing here needs CUDA's headers or libraries. It is a module,
// libshoal_cuda.so, that is built with -DSHOAL_CUDA=ON and loaded when it is first asked for.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "ops/kernel_sizes.h"
#include "ops/kernels.h"

namespace shoal {

// By whose kernels attention goes. `automatic` takes the first that can: cuDNN for bfloat16, heads of up to
// 128 channels in eights, positions in 128s and no dropout; ours on tensor cores for bfloat16 and heads of 64
// channels; plain ones for all. `cudnn` throws where it cannot, the others do as `automatic` from there on.
enum class AttentionKind : std::uint8_t { automatic, cudnn, tensor, plain };

struct CudaOptions {
  int device = 0;  // beyond the last one they are counted again from the first
  // Products of float32 on tensor cores, which round the operands to 10 bits of mantissa.
  bool tf32 = false;
  // Products of a new shape are timed with several of cuBLASLt's algorithms, and with and without what
  // follows them, when the shape is first used; otherwise cuBLASLt's own first choice is taken.
  bool tune = true;
  // Where what was chosen is kept, for all processes that use GPUs of this kind; without a folder it holds
  // for all backends of the process.
  std::string choices = {};
  AttentionKind attention = AttentionKind::automatic;
};

struct CudaDevice {
  std::string name;
  std::size_t bytes = 0;     // of memory
  int major = 0, minor = 0;  // compute capability
};

// cuDNN, which attention may take: its version, or why there is none.
struct AttentionLibrary {
  std::string version, why_not;
};

// The sequences of a batch of B that one call of cuDNN's backward pass gets: its workspace has 2 bytes for
// each of their H x T x T scores, and is limited to 512 MiB (unless one sequence needs more).
constexpr std::int64_t attention_piece(std::int64_t B, std::int64_t H, std::int64_t T) {
  std::int64_t piece = std::clamp<std::int64_t>((std::int64_t{256} << 20) / (H * T * T), 1, B);
  while (B % piece != 0) --piece;
  return piece;
}

// Bytes of cuBLASLt's workspace; NVIDIA recommends at least 32 MiB for Hopper.
inline constexpr std::size_t kProductWorkspace = std::size_t{64} << 20;

// Bytes of GPU memory that the libraries' kernels need in training. No GPU is asked.
std::size_t cuda_scratch_bytes(const KernelSizes& sizes);

// Whether there is the module; the environment variable SHOAL_CUDA_MODULE names another.
bool has_cuda_module();
// Throws UserError where there is no module, no GPU, or a driver that is too old.
std::unique_ptr<Backend> make_cuda_backend(const CudaOptions& options = {});
// Why make_cuda_backend would throw, in a sentence; empty where it would not.
std::string no_cuda_device();
// In CUDA's order; none where make_cuda_backend would throw.
std::vector<CudaDevice> cuda_devices();
// CudaOptions::choices for all processes of the user, or empty where there is no place for it.
std::string cuda_choices_folder();
AttentionLibrary cuda_attention_library();
// Of the runtime, "13.0"; empty where the module cannot be loaded.
std::string cuda_version();

namespace cuda {

// The module, as the program sees it; it lives as long as the process.
struct Library {
  std::unique_ptr<Backend> (*make_backend)(const CudaOptions& options);
  std::vector<CudaDevice> (*devices)();
  std::string (*no_device)();
  std::string (*version)();
  AttentionLibrary (*attention)();
};

// The function that it exports, which returns a const Library*.
inline constexpr const char* kModuleEntry = "shoal_cuda_library";

}  // namespace cuda
}  // namespace shoal
