#include "planner/sample_tape.h"

#include <optional>

#include "core/error.h"

namespace shoal {
namespace {

GroupCall::Kind kind_of(const std::string& collective) {
  if (collective == "all_reduce") return GroupCall::Kind::all_reduce;
  if (collective == "reduce_scatter") return GroupCall::Kind::reduce_scatter;
  if (collective == "all_gather") return GroupCall::Kind::all_gather;
  if (collective == "all_to_all") return GroupCall::Kind::all_to_all;
  if (collective == "broadcast") return GroupCall::Kind::broadcast;
  fail("the planner has no price for {}", collective);
}

// Purposes of the engine begin with the step: "step 1, gradients of block.0". The others are those of the
// layers, over tensor ranks.
std::optional<TapeCall> call_of(const Recording::Entry& entry, const RunPlan& sample) {
  if (entry.ranks < 2 || entry.count == 0) return std::nullopt;
  TapeCall call;
  call.call = {.kind = kind_of(entry.collective),
               .bytes = static_cast<double>(entry.count) * static_cast<double>(size_of(entry.dtype)),
               .ranks = entry.ranks};
  if (call.call.kind == GroupCall::Kind::all_gather) call.call.bytes *= entry.ranks;
  const auto& purpose = entry.purpose;
  const auto of = purpose.rfind(" of ");
  if (of != std::string::npos) call.unit = purpose.substr(of + 4);
  const bool matrices = purpose.ends_with(", hidden matrices");
  if (matrices) call.unit = kHiddenMatrices;
  const bool engine =
      purpose.starts_with("step ") && purpose.find(", partial gradients") == std::string::npos;
  if (!engine) {
    call.term = CostTerm::tensor;
  } else if (purpose.find(", gradients of ") != std::string::npos) {
    call.term = CostTerm::gradients;
    call.queued = true;
  } else if (purpose.find(", parameters of ") != std::string::npos) {
    call.term = CostTerm::parameters;
    call.queued = true;
  }
  // The engine's other sums, of the norm and of products of hidden matrices, are over tensor ranks.
  const bool sums = call.call.kind == GroupCall::Kind::all_reduce;
  if (!engine || (sums && !call.queued)) return call;
  // Shards are on neighbouring data ranks; their replicas are that many further.
  const auto& mesh = sample.mesh;
  const bool gathers = call.call.kind == GroupCall::Kind::all_gather;
  const bool replicas =
      sample.engine.replicate > 1 && (sums || (gathers && (matrices || call.term == CostTerm::gradients)));
  call.call.stride = mesh.tensor * (replicas ? mesh.data / sample.engine.replicate : 1);
  return call;
}

}  // namespace

SampleTape record_sample(RunPlan sample) {
  sample.model = with_blocks(sample.model, kTapeBlocks);
  sample.engine.on_host = false;  // kernels and collectives are the same
  TapeBackend backend;
  SampleStep step(backend, sample);
  SampleTape tape;
  std::vector<Kernel>* kernels = nullptr;
  std::vector<TapeCall>* calls = nullptr;
  std::size_t kernel = 0, entry = 0;
  const auto close = [&] {
    const auto& made = backend.kernels();
    const auto& sent = step.recording().entries();
    if (kernels) kernels->assign(made.begin() + static_cast<std::ptrdiff_t>(kernel), made.end());
    for (; calls && entry < sent.size(); ++entry) {
      auto call = call_of(sent[entry], sample);
      if (!call) continue;
      const bool of_block = call->unit == "block.0" || call->unit == "block.1";
      const bool gathers = call->term == CostTerm::parameters && calls != &tape.update_calls;
      if (gathers && of_block) {
        tape.gather = std::move(call);
      } else {
        // The head's parameters are gathered while the last block is used, not while each block is.
        auto& of_part = gathers && call->unit == "head" ? tape.calls.at(0, StepPart::head) : *calls;
        of_part.push_back(std::move(*call));
      }
    }
    kernel = made.size();
    entry = sent.size();
  };
  // The traffic of a step depends on the state that the step before has left: the first is not recorded.
  step.run([](int, StepPart) {});
  kernel = backend.kernels().size();
  entry = step.recording().entries().size();
  step.run([&](int pass, StepPart part) {
    close();
    const bool update = pass == kSamplePasses;
    kernels = update ? &tape.kernels.update : &tape.kernels.parts.at(pass, part);
    calls = update ? &tape.update_calls : &tape.calls.at(pass, part);
  });
  close();
  tape.kernels.updated = updated_elements(sample);
  return tape;
}

}  // namespace shoal
