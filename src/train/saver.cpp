#include "train/saver.h"

#include <array>
#include <chrono>
#include <limits>

#include "checkpoint/manifest.h"
#include "comm/agreement.h"
#include "core/error.h"
#include "core/log.h"

namespace shoal {

Saver::Saver(Communicator& ranks, const std::filesystem::path& run, StoreOptions options) : ranks_(ranks) {
  options.rank = ranks.rank();
  options.world = ranks.size();
  const auto open = [&] { store_ = std::make_unique<CheckpointStore>(run, options); };
  some_for_all(ranks, ranks.rank() == 0, open);
  all_or_none(ranks, [&] {
    if (!store_) open();
  });
}

Saver::~Saver() {
  // A save that is not settled by now is one whose other ranks may have failed.
  if (ranks_.size() > 1) store_->give_up();
}

void Saver::begin(const CheckpointInfo& info, std::span<const SliceView> slices, bool best) {
  error_.clear();
  store_->save_async(info, slices, best);
}

std::string Saver::news() {
  const auto error = store_->take_error();
  if (error) error_ = *error;
  return error.value_or("");
}

void Saver::mend_best(const std::filesystem::path& checkpoint) {
  if (ranks_.rank() != 0) return;
  auto best = store_->best();
  try {
    if ((!best || step_of(*best) < step_of(checkpoint)) && is_marked_best(checkpoint)) best = checkpoint;
    if (best) store_->name_best(*best);
  } catch (const UserError& error) {  // a full disk
    log::warn("{}", error.what());
  }
}

double Saver::best_loss(const std::function<bool(const CheckpointInfo&)>& counts) {
  double loss = std::numeric_limits<double>::infinity();
  if (const auto best = store_->best(); best && ranks_.rank() == 0) {
    try {
      const auto info = read_manifest(*best).info;
      if (counts(info)) loss = info.state.value("best_val_loss", loss);
    } catch (const std::exception& error) {  // it cannot be gone back to
      log::warn("{}; the next evaluation is the best", error.what());
    }
  }
  ranks_.broadcast({&loss, DType::f64, {1}}, 0).wait();
  return loss;
}

std::string Saver::settle() {
  // In short rounds, since a save may take longer than a collective may.
  for (bool over = false; !over;) {
    const bool done = store_->wait_for(std::chrono::milliseconds(200));
    news();
    const bool first = ranks_.rank() == 0;
    std::array<std::int32_t, 3> counts = {first && !done, !first && !done, !first && !error_.empty()};
    ranks_.set_purpose("waiting for a checkpoint");
    ranks_.all_reduce({counts.data(), DType::i32, {3}}).wait();
    over = counts[0] + counts[1] == 0;
    // Rank 0 may still wait for a shard whose rank could not even report that it failed.
    if (counts[1] == 0 && counts[2] > 0) store_->give_up();
  }
  return first_text(ranks_, std::exchange(error_, {}));
}

}  // namespace shoal
