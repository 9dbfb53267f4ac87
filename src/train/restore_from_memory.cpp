#include "train/restore_from_memory.h"

#include <algorithm>
#include <map>
#include <sstream>

#include "checkpoint/memory_folder.h"
#include "checkpoint/shard_file.h"
#include "checkpoint/store.h"
#include "comm/agreement.h"
#include "core/error.h"
#include "core/file.h"
#include "core/log.h"

namespace shoal {
namespace {

namespace fs = std::filesystem;

// The shards of a state that are in memory, anywhere.
struct KeptState {
  int world = 0;                    // number of shards of the complete state
  std::map<int, int> holders = {};  // by shard: the first rank of a host that has it
};

class MemoryRestore {
 public:
  MemoryRestore(World& world, const Config& config, const std::string& session)
      : world_(world), root_(config.run.path() / kCheckpointsName) {
    if (world.local_rank == 0)
      mine_ = MemoryFolder(config.checkpoint.memory_dir, config.run.path(), session).shards();
  }

  void run() {
    const auto on_disk = newest_on_disk();
    while (true) {
      const auto states = gather();
      const auto newest = std::ranges::find_if(states, [](const auto& s) { return is_whole(s.second); });
      if (states.empty() || states.begin()->first <= on_disk) return;
      if (newest == states.end() || newest->first <= on_disk) {
        log::warn("the state after step {} in the memory of the hosts is not complete, and cannot be used",
                  states.begin()->first);
        return;
      }
      if (drop_damaged(newest->first, newest->second)) continue;
      bring_back(newest->first, newest->second);
      log::info("the state after step {} was in the memory of the hosts and is now {}; {}", newest->first,
                (root_ / step_directory_name(newest->first)).string(),
                on_disk < 0 ? "there was no checkpoint on the disk"
                            : fmt::format("the newest checkpoint on the disk was of step {}", on_disk));
      return;
    }
  }

 private:
  using States = std::map<std::int64_t, KeptState, std::greater<>>;  // by step

  static bool is_whole(const KeptState& state) {
    return static_cast<int>(state.holders.size()) == state.world;
  }

  // -1 where there is none.
  std::int64_t newest_on_disk() {
    std::int64_t step = -1;
    if (world_.ranks.rank() == 0) {
      if (const auto latest = latest_in(root_)) step = step_of(*latest);  // what a resume begins with
    }
    world_.ranks.broadcast({&step, DType::i32, {2}}, 0).wait();
    return step;
  }

  States gather() {
    std::string text;  // "STEP RANK WORLD" of each shard
    for (const auto& shard : mine_) {
      text += fmt::format("{} {} {}\n", shard.record.info.step, shard.rank, shard.world);
    }
    States states;
    const auto texts = all_gather_text(world_.ranks, text);
    for (int holder = 0; holder < world_.ranks.size(); ++holder) {
      std::istringstream shards(texts[static_cast<std::size_t>(holder)]);
      std::int64_t step = 0;
      for (int rank = 0, world = 0; shards >> step >> rank >> world;) {
        states[step].world = world;
        states[step].holders.emplace(rank, holder);
      }
    }
    return states;
  }

  std::vector<const MemoryShard*> to_write(std::int64_t step, const KeptState& state) const {
    std::vector<const MemoryShard*> shards;
    for (const auto& shard : mine_) {
      if (shard.record.info.step == step && state.holders.at(shard.rank) == world_.ranks.rank())
        shards.push_back(&shard);
    }
    return shards;
  }

  // Drops the damaged shards of a state. Returns whether any rank had one.
  bool drop_damaged(std::int64_t step, const KeptState& state) {
    std::string fault;
    std::vector<int> damaged;
    const auto shards = to_write(step, state);
    some_for_all_at_length(world_.ranks, !shards.empty(), [&] {
      for (const auto* shard : shards) {
        try {
          verify_shard_file(shard->folder, shard->record);
        } catch (const UserError& error) {
          fault = error.what();
          damaged.push_back(shard->rank);
        }
      }
    });
    std::erase_if(mine_, [&](const MemoryShard& shard) {
      return shard.record.info.step == step && std::ranges::find(damaged, shard.rank) != damaged.end();
    });
    fault = first_text(world_.ranks, fault);
    if (!fault.empty()) log::warn("a shard in memory is damaged and is not used: {}", fault);
    return !fault.empty();
  }

  void bring_back(std::int64_t step, const KeptState& state) {
    CheckpointWriter writer(root_, step, "memory");
    const auto shards = to_write(step, state);
    const bool first = world_.ranks.rank() == 0;
    try {
      some_for_all_at_length(world_.ranks, !shards.empty(), [&] {
        for (const auto* shard : shards)
          writer.take_shard(shard->rank, state.world, shard->folder, shard->record);
      });
      const auto info = metadata(shards, state);
      some_for_all(world_.ranks, first, [&] {
        sync_path_to(root_);                 // which may be new
        sync_files_in(root_.parent_path());  // the metrics of the steps before
        writer.commit(info, state.world);
        replace_symlink(root_ / kLatestName, writer.target().filename().string());
      });
    } catch (const UserError& error) {
      if (first) writer.abandon();
      throw UserError(
          fmt::format("the state after step {} is in memory and cannot be written to the run's folder: {}. "
                      "Free some space "
                      "there and start again",
                      step, error.what()));
    }
  }

  // The metadata that rank 0 of the killed run saved; on the present rank 0 only.
  CheckpointInfo metadata(const std::vector<const MemoryShard*>& mine, const KeptState& state) {
    const int holder = state.holders.at(0), me = world_.ranks.rank();
    std::string text;
    for (const auto* shard : mine) {
      if (shard->rank == 0) text = to_json_text({shard->record.info, {}, {}});
    }
    if (holder != 0 && me == holder) send_text(world_.ranks, text, 0);
    if (holder != 0 && me == 0) text = receive_text(world_.ranks, holder);
    return me == 0 ? manifest_from_json_text(text, root_).info : CheckpointInfo();
  }

  World& world_;
  fs::path root_;
  std::vector<MemoryShard> mine_;  // on the first rank of each host
};

}  // namespace

void restore_from_memory(World& world, const Config& config, const std::string& session) {
  if (session.empty()) return;
  MemoryRestore(world, config, session).run();
}

}  // namespace shoal
