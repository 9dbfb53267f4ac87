// Attention by cuDNN: one plan per size.
#include <array>
#include <cmath>
#include <limits>
#include <map>
#include <optional>
#include <utility>

#include "core/error.h"
#include "ops/cuda/check.h"
#include "ops/cuda/cudnn/attention_graphs.h"

namespace shoal::cuda {
namespace {

using namespace cudnn;

struct Found {
  std::optional<Functions> functions;
  std::string why_not;
};

const Found& found() {
  static const Found once = []() -> Found {
    try {
      return {open_library(), ""};
    } catch (const Error& error) {
      return {std::nullopt, error.what()};
    }
  }();
  return once;
}

struct HandleDeleter {
  const Functions* functions = nullptr;
  void operator()(cudnnContext* handle) const { functions->destroy(handle); }
};
using Handle = std::unique_ptr<cudnnContext, HandleDeleter>;

Handle make_handle(const Functions& functions, cudaStream_t stream) {
  cudnnHandle_t made = nullptr;
  functions.check(functions.create(&made), "does not start");
  Handle handle(made, HandleDeleter{&functions});
  functions.check(functions.set_stream(made, stream), "takes no stream");
  return handle;
}

// The memory of a plan's tensors, by their numbers.
struct Pack {
  std::vector<std::int64_t> numbers;
  std::vector<void*> places;

  void add(Number number, const void* place) {
    numbers.push_back(number);
    places.push_back(const_cast<void*>(place));  // cuDNN has one list for inputs and outputs
  }
};

class CudnnAttention final : public FusedAttention {
 public:
  CudnnAttention(const Functions& functions, cudaStream_t stream, KernelScratch& scratch, bool ordered)
      : functions_(functions), stream_(stream), scratch_(scratch) {
    ordered_ = ordered || capability_ < 9;  // before Hopper cuDNN has no other way
  }

  bool forward(const AttentionSizes& sizes, void* out, float* lse, const void* qkv) override {
    const Plan* plan = find(forward_, sizes, forward_graph);
    if (!plan) return false;
    Pack pack;
    add_inputs(pack, sizes, static_cast<const char*>(qkv));
    pack.add(kOut, out);
    pack.add(kLse, lse);
    run(*plan, pack, scratch_.take<char>(plan->workspace));
    return true;
  }

  bool backward(const AttentionSizes& sizes, void* dqkv, const void* dout, const void* out, const float* lse,
                const void* qkv) override {
    // From Blackwell on, cuDNN needs other graphs for sums in a fixed order.
    if (ordered_ && capability_ >= 10) {
      why_not_ = "its gradients are the same every time on Ampere and Hopper only";
      return false;
    }
    // In pieces of the batch where the workspace is large.
    AttentionSizes piece = sizes;
    if (ordered_) piece.B = attention_piece(sizes.B, sizes.H, sizes.T);
    const Plan* plan = find(backward_, piece, ordered_ ? backward_graph : unordered_backward_graph);
    if (!plan) return false;
    const std::int64_t rows = piece.B * piece.H * piece.T,
                       of_delta = rows * static_cast<std::int64_t>(sizeof(float)),
                       of_out = rows * piece.D * static_cast<std::int64_t>(size_of(DType::bf16)),
                       of_sums = ordered_ ? 0 : of_delta * piece.D;
    char* delta = scratch_.take<char>(of_delta + of_sums + plan->workspace);
    for (std::int64_t i = 0; i < sizes.B / piece.B; ++i) {
      Pack pack;
      add_inputs(pack, piece, static_cast<const char*>(qkv) + 3 * i * of_out);
      char* gradients = static_cast<char*>(dqkv) + 3 * i * of_out;
      const std::int64_t next = part_bytes(piece);
      pack.add(kOut, static_cast<const char*>(out) + i * of_out);
      pack.add(kDout, static_cast<const char*>(dout) + i * of_out);
      pack.add(kLse, lse + i * rows);
      pack.add(kDelta, delta);
      pack.add(kOne, &one_);
      if (!ordered_) pack.add(kDqSums, delta + of_delta);  // set to zero by cuDNN
      pack.add(kDq, gradients);
      pack.add(kDk, gradients + next);
      pack.add(kDv, gradients + 2 * next);
      run(*plan, pack, delta + of_delta + of_sums);
    }
    return true;
  }

  std::string why_not() const override { return why_not_; }

 private:
  using Plans = std::map<AttentionSizes, std::pair<std::optional<Plan>, std::string>>;

  // From q to k and from k to v.
  static std::int64_t part_bytes(const AttentionSizes& sizes) {
    return sizes.H * sizes.D * static_cast<std::int64_t>(size_of(DType::bf16));
  }

  void add_inputs(Pack& pack, const AttentionSizes& sizes, const char* qkv) {
    scale_ = 1 / std::sqrt(static_cast<float>(sizes.D));
    pack.add(kQ, qkv);
    pack.add(kK, qkv + part_bytes(sizes));
    pack.add(kV, qkv + 2 * part_bytes(sizes));
    pack.add(kScale, &scale_);
    pack.add(kUnseen, &unseen_);
  }

  // Null if there is no plan.
  const Plan* find(Plans& plans, const AttentionSizes& sizes,
                   Graph (*graph)(const Functions&, const AttentionSizes&)) {
    auto known = plans.find(sizes);
    if (known == plans.end()) {
      std::pair<std::optional<Plan>, std::string> made;
      try {
        if (!handle_) handle_ = make_handle(functions_, stream_);
        made.first = graph(functions_, sizes).plan({.handle = handle_.get(), .description = {}});
      } catch (const Error& error) {
        made.second = error.what();
      }
      known = plans.emplace(sizes, std::move(made)).first;
    }
    const auto& [plan, why] = known->second;
    why_not_ = why;
    return plan ? &*plan : nullptr;
  }

  void run(const Plan& plan, const Pack& pack, void* workspace) {
    Descriptor on(functions_, CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR);
    on.set_all(CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, std::span<const std::int64_t>(pack.numbers))
        .set_all(CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, std::span<void* const>(pack.places))
        .set(CUDNN_ATTR_VARIANT_PACK_WORKSPACE, workspace)
        .finalize();
    functions_.check(functions_.execute(handle_.get(), plan.made.raw(), on.raw()), "does not run attention");
  }

  const Functions& functions_;
  cudaStream_t stream_;
  KernelScratch& scratch_;
  Handle handle_;  // created at the first use, since that loads much
  int capability_ = gpu_attribute(cudaDevAttrComputeCapabilityMajor);
  bool ordered_;
  float scale_ = 1, one_ = 1, unseen_ = -std::numeric_limits<float>::infinity();
  std::string why_not_;
  Plans forward_, backward_;
};

}  // namespace

std::unique_ptr<FusedAttention> make_fused_attention(cudaStream_t stream, KernelScratch& scratch,
                                                     bool ordered) {
  if (!found().functions) return nullptr;
  return std::make_unique<CudnnAttention>(*found().functions, stream, scratch, ordered);
}

AttentionLibrary fused_attention_library() {
  const auto& [functions, why_not] = found();
  return {functions ? version_text(functions->version()) : "", why_not};
}

}  // namespace shoal::cuda
