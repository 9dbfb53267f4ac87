// Attention by cuDNN, for the sizes that it takes.
#include "core/error.h"
#include "ops/cuda/cuda_backend.h"

namespace shoal::cuda {
namespace {

// The sizes of training, which cuDNN's kernels are made for; for others a plan would cost more than it saves.
bool fit(const AttentionSizes& at) { return at.T % 128 == 0 && at.D % 8 == 0 && at.D <= 128; }

}  // namespace

bool CudaBackend::by_library(const Tensor& qkv, const Dropout& dropout, bool aligned,
                             const std::function<bool(FusedAttention&, const AttentionSizes&)>& run) {
  const bool must = options_.attention == AttentionKind::cudnn;
  if (!must && options_.attention != AttentionKind::automatic) return false;
  const AttentionSizes sizes{qkv.dim(0), qkv.dim(1), qkv.dim(3), qkv.dim(4)};
  std::string why_not;
  if (qkv.dtype != DType::bf16 || dropout.active() || !aligned || !fit(sizes)) {
    why_not = "it is for bfloat16, no dropout, heads of up to 128 channels in eights and positions in 128s";
  } else if (!fused_attention_) {
    why_not = fused_attention_library().why_not;
  } else {
    if (run(*fused_attention_, sizes)) return true;
    why_not = fused_attention_->why_not();
  }
  if (must) fail("attention by cuDNN was asked for, but {}", why_not);
  return false;
}

}  // namespace shoal::cuda
