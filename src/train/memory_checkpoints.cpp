#include "train/memory_checkpoints.h"

#include <algorithm>
#include <array>
#include <system_error>

#include "comm/agreement.h"
#include "comm/launcher.h"
#include "core/error.h"
#include "core/host.h"
#include "core/log.h"
#include "core/text.h"
#include "core/trace.h"
#include "train/run_saver.h"

namespace shoal {

namespace fs = std::filesystem;

namespace {

// Bytes as elements of a type that collectives take.
Tensor as_words(std::vector<std::byte>& bytes) {
  return {bytes.data(), DType::i32, {static_cast<std::int64_t>(bytes.size() / sizeof(std::int32_t))}};
}
std::size_t in_whole_words(std::size_t bytes) { return (bytes + 3) / 4 * 4; }

}  // namespace

std::vector<std::uint64_t> hosts_of(Communicator& ranks) {
  std::vector<std::uint64_t> hosts(static_cast<std::size_t>(ranks.size()));
  auto mine = host_hash();
  ranks.all_gather({hosts.data(), DType::i32, {2 * std::int64_t{ranks.size()}}}, {&mine, DType::i32, {2}})
      .wait();
  return hosts;
}

int partner_of(std::span<const std::uint64_t> hosts, int rank) {
  std::vector<std::uint64_t> in_order;  // by their first ranks
  for (const auto host : hosts) {
    if (std::ranges::find(in_order, host) == in_order.end()) in_order.push_back(host);
  }
  if (in_order.size() == 1) return -1;
  const auto ranks_of = [&](std::uint64_t host) {
    std::vector<int> ranks;
    for (std::size_t r = 0; r < hosts.size(); ++r) {
      if (hosts[r] == host) ranks.push_back(static_cast<int>(r));
    }
    return ranks;
  };
  const auto host = hosts[static_cast<std::size_t>(rank)];
  const auto at = static_cast<std::size_t>(std::ranges::find(in_order, host) - in_order.begin());
  const auto here = ranks_of(host), there = ranks_of(in_order[(at + 1) % in_order.size()]);
  const auto local = static_cast<std::size_t>(std::ranges::find(here, rank) - here.begin());
  return there[local % there.size()];
}

MemoryCheckpoints::MemoryCheckpoints(World& world, const CheckpointConfig& config, const fs::path& run,
                                     const std::string& session, std::uint64_t bytes, Backend& backend)
    : world_(world), backend_(backend), base_(config.memory_dir), folder_(base_, run, session) {
  auto& ranks = world.ranks;
  const int me = ranks.rank();
  const auto hosts = hosts_of(ranks);
  for (int rank = 0; rank < ranks.size(); ++rank) {
    const int partner = partner_of(hosts, rank);
    if (rank == me) partner_ = partner;
    if (partner == me) kept_.push_back(rank);
  }
  auto mine = static_cast<double>(bytes);
  std::vector<double> all(hosts.size());
  ranks.all_gather({all.data(), DType::f64, {ranks.size()}}, {&mine, DType::f64, {1}}).wait();
  some_for_all(ranks, world.local_rank == 0, [&] { folder_.create(); });
  try {
    some_for_all(ranks, world.local_rank == 0, [&] { check_room(all, hosts); });
    all_or_none(ranks, [&] {
      const auto reserve = [&](int rank) {
        folder_.reserve(rank, ranks.size(), static_cast<std::uint64_t>(all[static_cast<std::size_t>(rank)]));
      };
      reserve(me);
      for (const int rank : kept_) reserve(rank);
    });
  } catch (...) {
    if (world.local_rank == 0) folder_.remove();
    throw;
  }
  if (partner_ >= 0) ranks_ = ranks.split([](int rank) { return Communicator::SplitKey{0, rank}; });
  log::info("checkpoints in memory: {} per rank in {}, {}", format_bytes(kMemoryStates * mine),
            folder_.path().string(),
            partner_ >= 0 ? "with copies on another host" : "on one host, whose loss they do not survive");
}

// Checked before space is reserved, which would fill the file system for a moment.
void MemoryCheckpoints::check_room(std::span<const double> bytes, std::span<const std::uint64_t> hosts) {
  const auto here = hosts[static_cast<std::size_t>(world_.ranks.rank())];
  double needed = 0;
  for (std::size_t rank = 0; rank < hosts.size(); ++rank) {
    const int partner = partner_of(hosts, static_cast<int>(rank));
    if (hosts[rank] == here) needed += kMemoryStates * bytes[rank];
    if (partner >= 0 && hosts[static_cast<std::size_t>(partner)] == here)
      needed += kMemoryStates * bytes[rank];
  }
  std::error_code unknown;
  const auto space = fs::space(base_, unknown);
  if (unknown || needed <= static_cast<double>(space.available)) return;
  fail_user(
      "checkpoint.memory needs {} in {} on host {}, for two states of its ranks{}, and {} are free; make it "
      "larger (mount -o remount,size=SIZE {}), set checkpoint.memory_dir to another folder, or "
      "checkpoint.memory=false",
      format_bytes(needed), base_.string(), host_name(), partner_ >= 0 ? " and of another host's" : "",
      format_bytes(static_cast<double>(space.available)), base_.string());
}

MemoryCheckpoints::~MemoryCheckpoints() {
  if (thread_.joinable()) thread_.join();
}

void MemoryCheckpoints::begin(const CheckpointInfo& info, std::vector<SliceView> slices) {
  const trace::Span span("checkpoint", "begin to save in memory");
  if (std::ranges::any_of(slices, [&](const auto& s) { return backend_.is_device_memory(s.data.data()); })) {
    buffer_.take(slices, RunSaver::copy_to_host(backend_));
  }
  slot_ = (slot_ + 1) % kMemoryStates;
  thread_ = std::thread([this, info, slices = std::move(slices)] {
    try {
      save(info, slices);
    } catch (...) {
      failure_ = std::current_exception();
    }
  });
}

void MemoryCheckpoints::wait() {
  if (!thread_.joinable()) return;
  const trace::Span span("checkpoint", "wait for the checkpoint in memory");
  thread_.join();
  if (failure_) std::rethrow_exception(std::exchange(failure_, nullptr));
}

void MemoryCheckpoints::save(const CheckpointInfo& info, std::span<const SliceView> slices) {
  const int rank = world_.ranks.rank(), world = world_.ranks.size();
  auto record =
      write_shard_file(folder_.begin(slot_, rank, world), slices, {}, OutputFile::Existing::overwritten);
  record.info = info;
  folder_.end(slot_, rank, world, record);
  if (partner_ >= 0) exchange(record);
}

// Sends a tensor to the partner, and receives one from each rank whose copies are kept here. Empty tensors
// are not sent.
void MemoryCheckpoints::move(const Tensor& mine, std::span<const Tensor> theirs) {
  std::vector<Request> moves;
  if (mine.count() > 0) moves.push_back(ranks_->send(mine, partner_));
  for (std::size_t i = 0; i < kept_.size(); ++i) {
    if (theirs[i].count() > 0) moves.push_back(ranks_->receive(theirs[i], kept_[i]));
  }
  for (auto& move : moves) move.wait();
}

// Sends the record, then the shard in blocks, and receives the same from the ranks whose copies are kept
// here.
void MemoryCheckpoints::exchange(const Manifest& record) {
  struct Kept {
    std::vector<std::byte> bytes;  // the record's text, then a block
    Manifest record = {};
    std::optional<OutputFile> file = {};
    std::uint64_t left = 0;
  };
  ranks_->set_purpose(fmt::format("copies of the state after step {}", record.info.step));
  const int world = world_.ranks.size();
  const auto text = to_json_text(record);
  std::vector<std::byte> mine(in_whole_words(text.size()));
  std::memcpy(mine.data(), text.data(), text.size());

  auto length = static_cast<std::int32_t>(text.size());
  std::vector<std::int32_t> lengths(kept_.size());
  std::vector<Tensor> theirs;
  for (auto& theirs_length : lengths) theirs.emplace_back(&theirs_length, DType::i32, Shape{1});
  move({&length, DType::i32, {1}}, theirs);

  std::vector<Kept> kept(kept_.size());
  const auto receive_next = [&](auto size_of_next) {
    theirs.clear();
    for (std::size_t i = 0; i < kept.size(); ++i) {
      kept[i].bytes.resize(in_whole_words(size_of_next(i)));
      theirs.push_back(as_words(kept[i].bytes));
    }
    move(as_words(mine), theirs);
  };
  receive_next([&](std::size_t i) { return static_cast<std::size_t>(lengths[i]); });
  for (std::size_t i = 0; i < kept.size(); ++i) {
    const auto path = folder_.begin(slot_, kept_[i], world);
    const std::string_view theirs_text(reinterpret_cast<const char*>(kept[i].bytes.data()),
                                       static_cast<std::size_t>(lengths[i]));
    kept[i].record = manifest_from_json_text(theirs_text, path);
    kept[i].left = kept[i].record.files.at(0).summary.bytes;
    kept[i].file.emplace(path, OutputFile::Existing::overwritten);
  }

  const MappedFile shard(folder_.file(slot_, world_.ranks.rank(), world));
  auto rest = shard.bytes();
  const auto anything_left = [&] {
    return !rest.empty() || std::ranges::any_of(kept, [](const Kept& k) { return k.left > 0; });
  };
  while (anything_left()) {
    const auto block = rest.first(std::min<std::size_t>(rest.size(), kChecksumBlock));
    mine.assign(block.begin(), block.end());
    mine.resize(in_whole_words(block.size()));
    rest = rest.subspan(block.size());
    const auto next = [&](std::size_t i) { return std::min<std::uint64_t>(kept[i].left, kChecksumBlock); };
    receive_next(next);
    for (std::size_t i = 0; i < kept.size(); ++i) {
      const auto bytes = next(i);
      if (bytes > 0) kept[i].file->write(std::span(kept[i].bytes).first(bytes));
      kept[i].left -= bytes;
    }
  }
  for (std::size_t i = 0; i < kept.size(); ++i) {
    if (kept[i].file->finish() != kept[i].record.files[0].summary) {
      fail(
          "the state of rank {} was damaged on its way to host {} (its checksums differ): the memory or the "
          "network of one of the two hosts is faulty",
          kept_[i], host_name());
    }
    folder_.end(slot_, kept_[i], world, kept[i].record);
  }
}

void MemoryCheckpoints::remove() {
  wait();
  world_.ranks.barrier();
  if (world_.local_rank == 0) folder_.remove();
}

void MemoryCheckpoints::discard() {
  if (thread_.joinable()) thread_.join();
  folder_.remove();
}

}  // namespace shoal
