#include "ops/cuda/emulated/block.h"

#include <setjmp.h>
#include <ucontext.h>

#include <algorithm>
#include <deque>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <utility>
#include <vector>

namespace shoal::emulated {
namespace {

thread_local std::optional<std::vector<std::function<void()>>> captured;

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
  alignas(64) std::byte slots[2][kWarp * 64];
  int exchanges[kWarp] = {};
};

// A fiber runs one thread after the other and outlives a block. After its start it is switched to by jumps,
// which, unlike contexts, need no system calls.
struct Fiber {
  static constexpr std::size_t kStack = 256 << 10;
  ucontext_t context;
  jmp_buf place;
  bool begun = false;
  std::unique_ptr<std::byte[]> stack = std::make_unique_for_overwrite<std::byte[]>(kStack);
  bool done = false;
  const Barrier* waits_for = nullptr;  // until its round is greater than `round`
  int round = 0;
  std::vector<std::function<void()>> open;  // copies that are in no group yet
  std::deque<std::vector<std::function<void()>>> groups;
};

struct Block {
  std::vector<std::unique_ptr<Fiber>>& fibers;  // at least as many as threads
  std::size_t threads;
  std::vector<Warp> warps;
  Barrier barrier;
  std::vector<std::byte> shared;
  const std::function<void()>& body;
  jmp_buf scheduler = {};
  int current = 0;
  std::exception_ptr failure = nullptr;
};

Block* running = nullptr;

Fiber& mine() { return *running->fibers[static_cast<std::size_t>(running->current)]; }
Warp& my_warp() { return running->warps[static_cast<std::size_t>(running->current / kWarp)]; }

void yield() {
  if (_setjmp(mine().place) == 0) _longjmp(running->scheduler, 1);
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
    for (Barrier* barrier : {&running->barrier, &my_warp().barrier}) {
      --barrier->members;
      barrier->check();
    }
    yield();
  }
}

void go_on(Fiber& fiber) {
  if (_setjmp(running->scheduler) != 0) return;
  if (fiber.begun) _longjmp(fiber.place, 1);
  fiber.begun = true;
  getcontext(&fiber.context);
  fiber.context.uc_stack.ss_sp = fiber.stack.get();
  fiber.context.uc_stack.ss_size = Fiber::kStack;
  fiber.context.uc_link = nullptr;
  makecontext(&fiber.context, live, 0);
  setcontext(&fiber.context);
}

// Runs every thread until it waits. Returns false if none could continue.
bool step(Block& block) {
  bool moved = false;
  for (std::size_t i = 0; i < block.threads; ++i) {
    Fiber& fiber = *block.fibers[i];
    if (fiber.done || (fiber.waits_for && fiber.waits_for->round == fiber.round)) continue;
    block.current = static_cast<int>(i);
    threadIdx = {static_cast<unsigned>(i), 0, 0};
    go_on(fiber);
    if (block.failure) std::rethrow_exception(block.failure);
    moved = true;
  }
  return moved;
}

void run_block(Block& block) {
  std::memset(block.shared.data(), 0xff, block.shared.size());
  block.barrier = {.members = static_cast<int>(block.threads)};
  for (std::size_t w = 0; w < block.warps.size(); ++w) {
    block.warps[w].barrier = {.members =
                                  static_cast<int>(std::min<std::size_t>(kWarp, block.threads - w * kWarp))};
    std::memset(block.warps[w].exchanges, 0, sizeof block.warps[w].exchanges);
  }
  for (std::size_t i = 0; i < block.threads; ++i) {
    Fiber& fiber = *block.fibers[i];
    fiber.done = false;
    fiber.waits_for = nullptr;
    fiber.open.clear();
    fiber.groups.clear();
  }
  const auto done = [&] {
    return std::all_of(block.fibers.begin(),
                       block.fibers.begin() + static_cast<std::ptrdiff_t>(block.threads),
                       [](const auto& fiber) { return fiber->done; });
  };
  while (!done()) {
    if (!step(block)) throw std::logic_error("threads of a block wait for each other for ever");
  }
}

}  // namespace

void run_grid(dim3 grid, dim3 size, std::size_t shared, const std::function<void()>& thread) {
  // Ranks that are threads share one GPU.
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  static std::vector<std::unique_ptr<Fiber>> fibers;
  while (fibers.size() < size.x) fibers.push_back(std::make_unique<Fiber>());
  Block block{.fibers = fibers,
              .threads = size.x,
              .warps = std::vector<Warp>((size.x + kWarp - 1) / kWarp),
              .barrier = {},
              .shared = std::vector<std::byte>(shared + 128),
              .body = thread};
  gridDim = grid;
  blockDim = size;
  running = &block;
  try {
    for (unsigned y = 0; y < grid.y; ++y) {
      for (unsigned x = 0; x < grid.x; ++x) {
        blockIdx = {x, y, 0};
        run_block(block);
      }
    }
  } catch (...) {
    fibers.clear();  // some are in the middle of a thread
    running = nullptr;
    throw;
  }
  running = nullptr;
}

int lane() { return running->current % kWarp; }

void* dynamic_shared() {
  void* start = running->shared.data();
  std::size_t room = running->shared.size();
  return std::align(128, 1, start, room);
}

void block_barrier() { wait(running->barrier); }

void* exchange_bytes(const void* from, std::size_t bytes) {
  if (bytes > 64) throw std::logic_error("too much to exchange");
  Warp& warp = my_warp();
  if (warp.barrier.members != kWarp) throw std::logic_error("an exchange in a warp that is not whole");
  std::byte* slots = warp.slots[warp.exchanges[lane()]++ % 2];
  std::memcpy(slots + static_cast<std::size_t>(lane()) * bytes, from, bytes);
  wait(warp.barrier);
  return slots;
}

void later(std::function<void()> copy) { mine().open.push_back(std::move(copy)); }
void commit() { mine().groups.push_back(std::exchange(mine().open, {})); }
void wait_until_left(int groups) {
  while (static_cast<int>(mine().groups.size()) > groups) {
    for (const auto& copy : mine().groups.front()) copy();
    mine().groups.pop_front();
  }
}

void now_or_kept(std::function<void()> work) { captured ? captured->push_back(std::move(work)) : work(); }
bool capturing() { return captured.has_value(); }
void begin_capture() { captured.emplace(); }
std::vector<std::function<void()>> end_capture() { return *std::exchange(captured, std::nullopt); }

}  // namespace shoal::emulated
