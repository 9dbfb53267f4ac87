// Finds and loads the module of the CUDA backend; facts about it that need no GPU.
#include <unistd.h>

#include <algorithm>

#include "core/log.h"
#include "core/module.h"
#include "core/shared_table.h"
#include "ops/cuda/cuda.h"
#include "ops/errors.h"

namespace shoal {
namespace {

constexpr OptionalModule kModule = {.file = "libshoal_cuda.so",
                                    .variable = "SHOAL_CUDA_MODULE",
                                    .entry = cuda::kModuleEntry,
                                    .name = "the CUDA backend",
                                    .needs = "nvcc and cuBLASLt"};

const LoadedLibrary<cuda::Library>& loaded() {
  static const auto once = load_library<cuda::Library>(kModule);
  return once;
}

}  // namespace

std::size_t cuda_scratch_bytes(const KernelSizes& sizes) {
  const std::int64_t B = sizes.batch, H = sizes.heads, T = sizes.positions;
  const bool in_bf16 = sizes.compute == DType::bf16;
  std::int64_t attention = 4 * B * H * T;  // dout . out
  if (in_bf16 && !sizes.dropout) {
    // Gradients of scores, or (from Hopper on) sums of the gradient of q.
    attention = sizes.ordered ? 2 * attention_piece(B, H, T) * H * T * T : 4 * B * H * T * sizes.head_size;
  } else if (in_bf16 && sizes.head_size == 64) {
    attention += attention_mask_piece(B * H, T) * attention_mask_bytes(T);
  }
  // A sum of 32 rows of the gradient, and tokens sorted by class.
  const std::int64_t embedding = B * T * (sizes.channels / 8 + 24);
  // Sums of 32 rows of the gradient before GELU.
  const std::int64_t hidden = in_bf16 ? B * T * sizes.channels / 2 : 0;
  return kProductWorkspace + static_cast<std::size_t>(std::max({attention, embedding, hidden}));
}

bool has_cuda_module() { return !find_module(kModule.file, kModule.variable).empty(); }

std::string no_cuda_device() { return loaded().library ? loaded().library->no_device() : loaded().why; }

std::unique_ptr<Backend> make_cuda_backend(const CudaOptions& options) {
  if (const auto why = no_cuda_device(); !why.empty()) throw CudaUnavailable(why);
  return loaded().library->make_backend(options);
}

std::vector<CudaDevice> cuda_devices() {
  return no_cuda_device().empty() ? loaded().library->devices() : std::vector<CudaDevice>();
}

std::string cuda_choices_folder() {
  const auto folder = cache_folder();
  std::error_code error;
  if (!folder.empty()) std::filesystem::create_directories(folder, error);
  if (!folder.empty() && ::access(folder.c_str(), W_OK) == 0) return folder;
  log::info(
      "{} cannot be written, so how products are done is chosen for this process alone, and the next one may "
      "round otherwise; XDG_CACHE_HOME names another folder",
      folder.empty() ? "~/.cache/shoal" : folder.string());
  return "";
}

AttentionLibrary cuda_attention_library() {
  return loaded().library ? loaded().library->attention() : AttentionLibrary{"", loaded().why};
}

std::string cuda_version() { return loaded().library ? loaded().library->version() : ""; }

}  // namespace shoal
