// A run's checkpoints, saved by all of its ranks together.
#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <string>

#include "checkpoint/store.h"
#include "comm/communicator.h"

namespace shoal {

class Saver {
 public:
  // Collective. Rank 0 tidies up in the run's folder before the others come. `options`: rank and world are
  // filled in.
  Saver(Communicator& ranks, const std::filesystem::path& run, StoreOptions options);
  ~Saver();

  // Every rank: begins to save its slices in the background; without a copy, it must be settled before they
  // change. The one before must be settled.
  void begin(const CheckpointInfo& info, std::span<const SliceView> slices, bool best);
  // Every rank: waits until the save under way is over on all of them. Returns why it failed, the same
  // text everywhere; "" when it went well or there was none.
  std::string settle();
  // Rank 0: why it failed, once, as soon as that is known; settle() tells it again.
  std::string news();

  std::optional<std::filesystem::path> latest() const { return store_->latest(); }
  // Points `best` at a checkpoint that was saved as the best and is newer than what it names: the process may
  // have died before. Rank 0 does.
  void mend_best(const std::filesystem::path& checkpoint);
  // The loss of the checkpoint that `best` names; infinity where there is none, or its loss does not count
  // here. Collective: as rank 0 sees it.
  double best_loss(const std::function<bool(const CheckpointInfo&)>& counts);

 private:
  Communicator& ranks_;
  std::unique_ptr<CheckpointStore> store_;
  std::string error_;  // of the last save, as far as this rank knows
};

}  // namespace shoal
