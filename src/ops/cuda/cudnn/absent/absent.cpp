// Replaces cuDNN in builds without its headers.
#include "ops/cuda/fused_attention.h"

namespace shoal::cuda {

std::unique_ptr<FusedAttention> make_fused_attention(cudaStream_t, KernelScratch&, bool) { return nullptr; }

AttentionLibrary fused_attention_library() { return {"", "not in this build"}; }

}  // namespace shoal::cuda
