// Checkpoints in memory: after a step, every rank copies its state to the memory of its host, and to that of
// a second host where there are several, while the next step computes (as Gemini, Wang et al. 2023, does).
// They survive the processes; with a copy on another host also the loss of a host.
#pragma once

#include <cstdint>
#include <exception>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "checkpoint/memory_folder.h"
#include "checkpoint/store.h"
#include "comm/world.h"
#include "config/config.h"
#include "ops/device.h"

namespace shoal {

// A hash of the host of every rank. Collective.
std::vector<std::uint64_t> hosts_of(Communicator& ranks);

// The rank that keeps copies of the shards of `rank`: one on the next host; -1 where there is one host only.
int partner_of(std::span<const std::uint64_t> hosts, int rank);

class MemoryCheckpoints {
 public:
  // Collective over world.ranks. `bytes`: shard_bytes() of this rank. `world` and `backend` must outlive this
  // object. Throws UserError where a host has not enough space.
  MemoryCheckpoints(World& world, const CheckpointConfig& config, const std::filesystem::path& run,
                    const std::string& session, std::uint64_t bytes, Backend& backend);
  ~MemoryCheckpoints();  // lets a save end, so that a failed run leaves its newest state
  MemoryCheckpoints(const MemoryCheckpoints&) = delete;
  MemoryCheckpoints& operator=(const MemoryCheckpoints&) = delete;

  // Begins to save a state over the older of the two. The data must not change until wait() has returned.
  // Between the wait() for the previous state and this call there must be a collective over all ranks, after
  // which the previous state is complete on all of them.
  void begin(const CheckpointInfo& info, std::vector<SliceView> slices);
  // Blocks until the state is complete on this host: the shard of this rank, and the copies of others.
  // Throws the error of the background thread.
  void wait();

  // Removes the files. Collective; the run's state must be on the disk.
  void remove();
  // Removes this host's files, so that a restart does not bring back a state that the run failed with. Not
  // collective.
  void discard();

 private:
  void check_room(std::span<const double> bytes, std::span<const std::uint64_t> hosts);
  void save(const CheckpointInfo& info, std::span<const SliceView> slices);
  void exchange(const Manifest& record);
  void move(const Tensor& mine, std::span<const Tensor> theirs);

  World& world_;
  Backend& backend_;
  std::filesystem::path base_;
  MemoryFolder folder_;
  std::unique_ptr<Communicator> ranks_;  // all ranks; used for copies only
  int partner_ = -1;
  std::vector<int> kept_;  // the ranks whose copies are on this host, and written by this rank
  int slot_ = 0;
  SliceBuffer buffer_;  // for data on a device
  std::thread thread_;
  std::exception_ptr failure_;  // of the thread
};

}  // namespace shoal
