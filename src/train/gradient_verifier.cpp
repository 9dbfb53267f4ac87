#include "train/gradient_verifier.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <set>

#include "checkpoint/output_file.h"
#include "comm/agreement.h"
#include "core/cores.h"
#include "core/host.h"
#include "core/log.h"
#include "core/trace.h"

namespace shoal {
namespace {

void warn_of_different_processors(Communicator& ranks) {
  const auto all = all_gather_text(ranks, processor_name());
  const std::set<std::string> kinds(all.begin(), all.end());
  if (kinds.size() == 1) return;
  log::warn(
      "run.verify compares bits, and the ranks have different processors ({}), which may round differently; "
      "a difference need not be a fault",
      fmt::join(kinds, ", "));
}

std::size_t at(int rank) { return static_cast<std::size_t>(rank); }

}  // namespace

GradientVerifier::GradientVerifier(Backend& backend, DataEngine& engine, Pipeline& model, Mesh& mesh,
                                   const BatchSampler& sampler, const Options& options)
    : backend_(backend),
      engine_(engine),
      model_(model),
      mesh_(mesh),
      sampler_(sampler),
      options_(options),
      batch_(backend, model.options().batch, 1),
      first_micro_batches_(static_cast<std::size_t>(ranks())) {
  const auto tokens = static_cast<std::size_t>(model.options().batch.rows());
  tokens_.tokens.resize(tokens);
  tokens_.targets.resize(tokens);
  std::int32_t mine = engine.first_micro_batch();
  mesh.data()
      .all_gather({first_micro_batches_.data(), DType::i32, {ranks()}}, {&mine, DType::i32, {1}})
      .wait();
  if (backend.gpu().number < 0) warn_of_different_processors(mesh.world());
}

// The pairs change from one verified step to the next.
void GradientVerifier::begin(std::int64_t step) {
  verifying_ = (step + 1) % options_.interval == 0;
  if (!verifying_) return;
  const trace::Span span("step", "verify");
  step_ = step;
  batch_.begin_step(options_.seed, step);
  const auto round = (step + 1) / options_.interval;
  shift_ = ranks() == 1 ? 0 : 1 + static_cast<int>(round % (ranks() - 1));
  again_ = recompute(shift_);
  own_ = {};
  engine_.read_first_pass([this](const UnitView& gradient) { add(own_, gradient); });
}

std::int64_t GradientVerifier::first_sample(int owner) const {
  const auto& place = mesh_.coordinate();
  const std::int64_t index = first_micro_batches_[at(owner)] * mesh_.shape().workers + place.worker;
  return index * options_.micro_batch;
}

void GradientVerifier::add(Checksums& to, const UnitView& gradient) const {
  std::vector<std::byte> copy;
  for (const auto& parameter : gradient.spec->parameters) {
    const Tensor tensor = gradient[parameter.slice()];
    std::span<const std::byte> bytes(tensor.as<const std::byte>(), tensor.bytes());
    if (backend_.is_device_memory(tensor.data)) {
      copy.resize(bytes.size());
      backend_.copy_to_host(copy.data(), tensor);
      bytes = copy;
    }
    to.tensors.push_back(fmt::format("{} in {}", parameter.name, gradient.spec->name));
    to.sums.push_back(checksum(bytes));
  }
}

GradientVerifier::Checksums GradientVerifier::recompute(int shift) {
  const int owner = (mesh_.data().rank() + ranks() - shift) % ranks();
  tokens_.first_sample = first_sample(owner);
  sampler_.fill(step_, tokens_.first_sample, options_.micro_batch, options_.global_batch,
                tokens_.tokens.data(), tokens_.targets.data());
  batch_.fill(0, tokens_);
  Checksums found;
  engine_.read_apart([&](const UnitView& gradient) { add(found, gradient); },
                     [&] {
                       model_.train_one(batch_.all().front(), batch_.losses(),
                                        1.0f / static_cast<float>(options_.tokens));
                     });
  return found;
}

std::string GradientVerifier::difference() {
  if (!verifying_) return "";
  verifying_ = false;
  engine_.read_first_pass({});
  const auto own = gather(own_), again = gather(again_);
  int owner = 0;
  while (owner < ranks() && own[at(owner)] == again[at(checker(owner, shift_))]) ++owner;
  std::int32_t differs = owner < ranks() ? 1 : 0;
  mesh_.model().all_reduce({&differs, DType::i32, {1}}, ReduceOp::max).wait();
  return differs ? describe(owner, own, again) : "";
}

GradientVerifier::Sums GradientVerifier::gather(const Checksums& mine) {
  const auto count = mine.sums.size();
  auto sums = mine.sums;
  std::vector<std::uint64_t> all(count * at(ranks()));
  const auto words = [](std::vector<std::uint64_t>& numbers) {
    return Tensor{numbers.data(), DType::i32, {2 * std::ssize(numbers)}};
  };
  mesh_.data().set_purpose(fmt::format("step {}, checksums of gradients", step_ + 1));
  mesh_.data().all_gather(words(all), words(sums)).wait();
  Sums result;
  for (int rank = 0; rank < ranks(); ++rank) {
    const auto first = all.begin() + rank * static_cast<std::ptrdiff_t>(count);
    result.emplace_back(first, first + static_cast<std::ptrdiff_t>(count));
  }
  return result;
}

std::string GradientVerifier::describe(int owner, const Sums& own, const Sums& again) {
  // Two that differ do not say which is wrong; a third one, where there is one, decides.
  const bool decides = ranks() > 2;
  const int other_shift = decides ? shift_ % (ranks() - 1) + 1 : shift_;
  const auto third = decides ? gather(recompute(other_shift)) : Sums{};
  const auto names = all_gather_text(mesh_.data(), name_model());
  std::string text;
  if (owner < ranks()) {
    const int other = checker(owner, shift_), decider = checker(owner, other_shift);
    const auto &a = own[at(owner)], &b = again[at(other)];
    const auto& c = decides ? third[at(decider)] : b;
    const auto &first = names[at(owner)], &second = names[at(other)];
    text = fmt::format("step {}: {}", step_ + 1,
                       owner == other ? fmt::format("{} computed two different gradients", first)
                                      : fmt::format("{} and {} computed different gradients", first, second));
    text += fmt::format(" of {}: {}. ", name_micro_batch(owner), name_first(a, b));
    if (owner == other) {
      text += "It errs now and then: test its memory and its processor before you go on with it";
    } else if (!decides) {
      text +=
          "One of them is wrong, and two cannot tell which: test the memory and the processors of both, or "
          "go on without them";
    } else if (c != a && c != b) {
      text += fmt::format(
          "A third one, {}, computed yet another: test the memory and the processors of all three",
          names[at(decider)]);
    } else {
      text += fmt::format(
          "A third one, {}, agrees with {}, so {} is wrong: test its memory and its processor, or go on "
          "without it",
          names[at(decider)], c == a ? first : second, c == a ? second : first);
    }
  }
  // A fault in one stage spoils the gradients of all stages before it.
  const auto texts = all_gather_text(mesh_.model(), text);
  return *std::find_if(texts.rbegin(), texts.rend(), [](const std::string& found) { return !found.empty(); });
}

// "micro-batch 2 of 4 (samples 2 to 3)", of the global batch.
std::string GradientVerifier::name_micro_batch(int owner) const {
  const auto first = first_sample(owner);
  const int size = options_.micro_batch;
  return fmt::format("micro-batch {} of {} (samples {} to {})", first / size + 1,
                     options_.global_batch / size, first, first + size - 1);
}

std::string GradientVerifier::name_first(std::span<const std::uint64_t> a,
                                         std::span<const std::uint64_t> b) const {
  std::size_t first = a.size(), count = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (a[i] == b[i]) continue;
    first = std::min(first, i);
    ++count;
  }
  const auto& tensor = own_.tensors[first];
  return count == 1
             ? fmt::format("{} alone differs", tensor)
             : fmt::format("{} is the first of {} tensors that differ in the backward pass", tensor, count);
}

// The ranks of this one's model: "rank 1 (node-a)", "ranks 2 (node-a), 3 (node-b)".
std::string GradientVerifier::name_model() {
  const auto here = fmt::format("{} ({})", mesh_.world().rank(), host_name());
  const auto all = all_gather_text(mesh_.model(), here);
  return fmt::format("rank{} {}", all.size() == 1 ? "" : "s", fmt::join(all, ", "));
}

}  // namespace shoal
