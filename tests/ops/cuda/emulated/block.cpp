#include "ops/cuda/emulated/block.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <deque>
#include <exception>
#include <map>
#include <memory>
#include <numeric>
#include <stdexcept>
#include <utility>
#include <vector>

#include "ops/cuda/emulated/failure.h"
#include "ops/cuda/emulated/memory.h"
#include "ops/cuda/emulated/places.h"
#include "ops/cuda/emulated/symbols.h"

namespace shoal::emulated {
namespace {

// Draws orders (SplitMix64). With the seed 0 everything keeps its order.
class Order {
 public:
  explicit Order(std::uint64_t seed) : drawn_(seed != 0), state_(seed) {}
  bool drawn() const { return drawn_; }
  bool flip() { return drawn_ && next() % 2 != 0; }
  template <typename Iterator>
  void shuffle(Iterator begin, Iterator end) {
    if (!drawn_) return;
    for (auto left = end - begin; left > 1; --left) {
      // The upper half of a product in place of a remainder, which takes far longer.
      std::swap(begin[left - 1],
                begin[static_cast<std::ptrdiff_t>((next() >> 32) * static_cast<std::uint64_t>(left) >> 32)]);
    }
  }

 private:
  std::uint64_t next() {
    std::uint64_t x = state_ += 0x9e3779b97f4a7c15u;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return x ^ x >> 31;
  }

  bool drawn_;
  std::uint64_t state_;
};

// Arrivals of a barrier. Threads that have ended count as arrived.
struct Barrier {
  int members = 0, arrived = 0, round = 0;
  void check() {
    if (arrived < members || members == 0) return;
    arrived = 0;
    ++round;
  }
};

struct Warp {
  Barrier barrier;
  alignas(64) std::byte slots[2][kWarp * kMostExchanged];
  int exchanges[kWarp] = {};
};

// A fiber runs one thread after the other and outlives a block.
struct Fiber {
  static constexpr std::size_t kStack = 256 << 10;
  bool done = false, begun = false;
  int round = 0;
  const Barrier* waits_for = nullptr;  // until its round is greater than `round`
  Place place;
  std::unique_ptr<std::byte[]> stack = std::make_unique_for_overwrite<std::byte[]>(kStack);
  std::function<bool()> waits_until;
  std::vector<std::function<void()>> open;  // copies that are in no group yet
  std::deque<std::vector<std::function<void()>>> groups;
};

// The memory and the barriers of a block of a cluster.
struct Own {
  std::byte* shared;
  Barrier barrier = {};
  std::map<int, Barrier> numbered = {};
};

// A block, or a cluster of blocks, whose threads are numbered on.
struct Block {
  const Launch& launch;
  std::vector<std::unique_ptr<Fiber>>& fibers;  // at least as many as threads
  std::size_t threads;
  std::vector<Warp> warps;
  std::vector<Own> blocks;
  Barrier barrier = {};  // of the cluster
  std::size_t shared_bytes;
  const std::function<void()>& body;
  Order order;
  std::vector<std::size_t> sequence;      // of the threads
  unsigned first = 0, first_of_grid = 0;  // the block's place along x, and in the grid
  bool warp_by_warp = false;              // each as far as it can
  bool early_copies = false;              // asynchronous copies are complete at once
  std::size_t at = 0, end = 0;            // in the sequence: the threads that are left of a step
  Place scheduler = {};
  int current = 0;
  std::exception_ptr failure = nullptr;
  bool faulted = false;  // and has been reported
};

Block* running = nullptr;
Runner runner;

Fiber& mine() { return *running->fibers[static_cast<std::size_t>(running->current)]; }
std::size_t my_rank() {
  return running->launch.cluster == 1 ? 0
                                      : static_cast<std::size_t>(running->current) / running->launch.block.x;
}
Own& my_block() { return running->blocks[my_rank()]; }
Warp& my_warp() { return running->warps[static_cast<std::size_t>(running->current / kWarp)]; }

void live();

// Returns when something goes on at `from`.
void go_on(Fiber& fiber, Place& from) {
  if (fiber.begun) return go_on_at(fiber.place, from);
  fiber.begun = true;
  // Stacks begin at different places of a page, or all would want the same lines of the caches.
  const std::size_t place = static_cast<std::size_t>(running->current) % 8 * 512;
  begin_on(fiber.stack.get(), Fiber::kStack - place, live, from);
}

// The next thread of the step that need not wait, which becomes the running one; null where there is none.
Fiber* next() {
  Block& block = *running;
  while (block.at < block.end) {
    const std::size_t i = block.sequence[block.at++];
    Fiber& fiber = *block.fibers[i];
    if (fiber.done || (fiber.waits_for && fiber.waits_for->round == fiber.round)) continue;
    if (fiber.waits_until && !fiber.waits_until()) continue;
    block.current = static_cast<int>(i);
    threadIdx.x = runner.thread = static_cast<unsigned>(i);
    if (block.launch.cluster == 1) return &fiber;
    const auto rank = static_cast<unsigned>(my_rank());
    threadIdx.x = runner.thread -= rank * blockDim.x;
    blockIdx.x = block.first + rank;
    runner.block = block.first_of_grid + rank;
    runner.shared = my_block().shared;
    return &fiber;
  }
  return nullptr;
}

// The next thread goes on at once; the scheduler does where there is none, or where a thread has failed.
void yield() {
  Place& from = mine().place;
  if (Fiber* const following = running->failure ? nullptr : next()) return go_on(*following, from);
  go_on_at(running->scheduler, from);
}

void wait(Barrier& barrier) {
  Fiber& fiber = mine();
  fiber.waits_for = &barrier;
  fiber.round = barrier.round;
  ++barrier.arrived;
  barrier.check();
  while (barrier.round == fiber.round) yield();
  fiber.waits_for = nullptr;
}

void live() {
  for (;;) {
    try {
      running->body();
    } catch (...) {
      running->failure = std::current_exception();
    }
    mine().done = true;
    for (Barrier* barrier : {&running->barrier, &my_block().barrier, &my_warp().barrier}) {
      --barrier->members;
      barrier->check();
    }
    yield();
  }
}

// Thrown when the fault has been reported.
struct Faulted {};

// Runs these threads until each waits. Returns false if none could continue.
bool step(Block& block, std::size_t begin, std::size_t end) {
  block.at = begin;
  block.end = end;
  Fiber* const first = next();
  if (!first) return false;
  go_on(*first, block.scheduler);
  if (block.faulted) throw Faulted();
  if (block.failure) std::rethrow_exception(block.failure);
  return true;
}

bool step(Block& block) {
  if (!block.warp_by_warp) {
    block.order.shuffle(block.sequence.begin(), block.sequence.end());
    return step(block, 0, block.threads);
  }
  std::vector<std::size_t> warps(block.warps.size());
  std::iota(warps.begin(), warps.end(), std::size_t{0});
  block.order.shuffle(warps.begin(), warps.end());
  bool moved = false;
  for (const std::size_t warp : warps) {
    const std::size_t begin = warp * kWarp, end = std::min(begin + kWarp, block.threads);
    do {
      block.order.shuffle(block.sequence.begin() + static_cast<std::ptrdiff_t>(begin),
                          block.sequence.begin() + static_cast<std::ptrdiff_t>(end));
    } while (step(block, begin, end) && (moved = true));
  }
  return moved;
}

void run_block(Block& block) {
  block.barrier = {.members = static_cast<int>(block.threads)};
  for (auto& own : block.blocks) {
    std::memset(own.shared, 0xff, block.shared_bytes);
    own.barrier = {.members = static_cast<int>(block.launch.block.x)};
    own.numbered.clear();
  }
  for (std::size_t w = 0; w < block.warps.size(); ++w) {
    block.warps[w].barrier = {.members =
                                  static_cast<int>(std::min<std::size_t>(kWarp, block.threads - w * kWarp))};
    std::memset(block.warps[w].exchanges, 0, sizeof block.warps[w].exchanges);
  }
  for (std::size_t i = 0; i < block.threads; ++i) {
    Fiber& fiber = *block.fibers[i];
    fiber.done = false;
    fiber.waits_for = nullptr;
    fiber.waits_until = nullptr;
    fiber.open.clear();
    fiber.groups.clear();
  }
  std::iota(block.sequence.begin(), block.sequence.end(), std::size_t{0});
  block.warp_by_warp = block.order.flip();
  block.early_copies = block.order.flip();
  const auto done = [&] {
    return std::all_of(block.fibers.begin(),
                       block.fibers.begin() + static_cast<std::ptrdiff_t>(block.threads),
                       [](const auto& fiber) { return fiber->done; });
  };
  while (!done()) {
    if (!step(block)) throw std::logic_error("threads of a block wait for each other for ever");
  }
}

std::uint64_t seed_of_order() {
  const char* given = std::getenv("SHOAL_EMULATED_ORDER");
  return given ? std::strtoull(given, nullptr, 10) : 0;
}

// Each size is allocated once for each block of a cluster.
std::byte* shared_memory(std::size_t bytes, unsigned rank) {
  static std::map<std::pair<std::size_t, unsigned>, void*> all;
  void*& memory = all[{bytes, rank}];
  if (!memory) memory = take_memory(bytes, Kind::shared);
  return static_cast<std::byte*>(memory);
}

std::string place(const Launch& launch) {
  return fmt::format("the kernel {}, thread {} of block ({}, {}, {}),", readable_name(launch.kernel),
                     threadIdx.x, blockIdx.x, blockIdx.y, blockIdx.z);
}

void leave_fiber() {
  running->faulted = true;
  go_on_at(running->scheduler);
}

}  // namespace

void run_grid(const Launch& launch, const std::function<void()>& thread) {
  static std::vector<std::unique_ptr<Fiber>> fibers;
  const dim3 grid = launch.grid, size = launch.block;
  const std::size_t threads = std::size_t{size.x} * launch.cluster;
  while (fibers.size() < threads) fibers.push_back(std::make_unique<Fiber>());
  Block block{.launch = launch,
              .fibers = fibers,
              .threads = threads,
              .warps = std::vector<Warp>((threads + kWarp - 1) / kWarp),
              .blocks = {},
              .shared_bytes = launch.shared,
              .body = thread,
              .order = Order(seed_of_order()),
              .sequence = std::vector<std::size_t>(threads)};
  for (unsigned rank = 0; rank < launch.cluster; ++rank)
    block.blocks.push_back({shared_memory(launch.shared, rank)});
  gridDim = grid;
  blockDim = size;
  running = &block;
  const std::uint32_t clusters = grid.x * grid.y * grid.z / launch.cluster;
  std::vector<std::uint32_t> blocks(block.order.drawn() ? clusters : 0);
  std::iota(blocks.begin(), blocks.end(), 0u);
  block.order.shuffle(blocks.begin(), blocks.end());
  set_kernel_of_thread([&] { return place(launch); }, leave_fiber);
  static const auto arrays = static_arrays();
  for (const auto& array : arrays) std::memset(const_cast<std::byte*>(array.begin), 0xff, array.bytes);
  notes_accesses = finds_races();
  if (notes_accesses) begin_launch();
  try {
    for (std::uint32_t i = 0; i < clusters; ++i) {
      const std::uint32_t which = (blocks.empty() ? i : blocks[i]) * launch.cluster;
      blockIdx = {which % grid.x, which / grid.x % grid.y, which / grid.x / grid.y};
      block.first = blockIdx.x;
      block.first_of_grid = which;
      runner = {which, 0, 0, block.blocks.front().shared, block.shared_bytes};
      run_block(block);
    }
  } catch (const Faulted&) {
    fibers.clear();  // some are in the middle of a thread
  } catch (const std::exception& error) {
    fail(cudaErrorLaunchFailure, fmt::format("{} {}", place(launch), error.what()));
    fibers.clear();
  }
  notes_accesses = false;
  set_kernel_of_thread(nullptr, nullptr);
  running = nullptr;
}

int lane() { return running->current % kWarp; }

void* dynamic_shared() { return my_block().shared; }

void block_barrier() {
  wait(my_block().barrier);
  runner.barriers = static_cast<std::uint32_t>(my_block().barrier.round);
}

void barrier_of(int which, int threads) {
  Barrier& barrier = my_block().numbered[which];
  barrier.members = threads;
  wait(barrier);
}

int rank_in_cluster() { return static_cast<int>(my_rank()); }
void* shared_of(int rank) { return running->blocks.at(static_cast<std::size_t>(rank)).shared; }
void cluster_barrier() { wait(running->barrier); }

void wait_until(std::function<bool()> holds) {
  Fiber& fiber = mine();
  fiber.waits_until = std::move(holds);
  while (!fiber.waits_until()) yield();
  fiber.waits_until = nullptr;
}

const Runner& running_thread() { return runner; }
std::string running_kernel() { return readable_name(running->launch.kernel); }

int add_atomically(int* to, int value) {
  if (notes_accesses) note_access(to, sizeof *to, Access::atomic, __builtin_return_address(0));
  return std::exchange(*to, *to + value);
}

std::byte* begin_exchange() {
  Warp& warp = my_warp();
  if (warp.barrier.members != kWarp) throw std::logic_error("an exchange in a warp that is not whole");
  return warp.slots[warp.exchanges[lane()]++ % 2];
}
void end_exchange() { wait(my_warp().barrier); }

void later(std::function<void()> copy) {
  if (running->early_copies) return copy();
  mine().open.push_back(std::move(copy));
}
void commit() { mine().groups.push_back(std::exchange(mine().open, {})); }
void wait_until_left(int groups) {
  while (static_cast<int>(mine().groups.size()) > groups) {
    for (const auto& copy : mine().groups.front()) copy();
    mine().groups.pop_front();
  }
}

}  // namespace shoal::emulated
