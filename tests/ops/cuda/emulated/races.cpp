#include "ops/cuda/emulated/races.h"

#include <fmt/format.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>
#include <new>
#include <string>
#include <vector>

#include "ops/cuda/emulated/block.h"
#include "ops/cuda/emulated/failure.h"
#include "ops/cuda/emulated/memory.h"
#include "ops/cuda/emulated/symbols.h"

namespace shoal::emulated {
namespace {

constexpr std::size_t kUnit = 2;  // bytes that share a cell: no kernel has smaller elements

// The thread that accessed a unit last, as fields of a word. kMany: several threads of its block did.
// kFlag: of a write, an atomic one; of a read, from several blocks.
using Mark = std::uint64_t;
constexpr Mark kLaunch = 0xfffff, kBlock = kLaunch << 20, kBarriers = Mark{0xfff} << 40,
               kThread = Mark{0x3ff} << 52, kMany = Mark{1} << 62, kFlag = Mark{1} << 63;
bool same(Mark fields, Mark a, Mark b) { return ((a ^ b) & fields) == 0; }
unsigned block_of(Mark mark) { return static_cast<unsigned>((mark & kBlock) >> 20); }
unsigned thread_of(Mark mark) { return static_cast<unsigned>((mark & kThread) >> 52); }

// All zero before the first access.
struct Cell {
  Mark write, read;
};

std::uint32_t launch_number = 0;

// The cells of the memory in the arena, and its place.
Arena space = {};
Cell* cells_of_memory = nullptr;

void take_cells() {
  if (cells_of_memory) return;
  space = arena();
  void* memory = mmap(nullptr, space.bytes / kUnit * sizeof(Cell), PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) throw std::bad_alloc();
  cells_of_memory = static_cast<Cell*>(memory);
}

// Static arrays of kernels are their shared memory.
struct StaticArrays {
  const std::byte *begin = nullptr, *end = nullptr;
  std::vector<std::uint8_t> is_one;  // of a unit
  std::vector<Cell> cells;

  void take() {
    const auto all = static_arrays();
    if (begin || all.empty()) return;
    begin = all.front().begin;
    for (const auto& array : all) {
      begin = std::min(begin, array.begin);
      end = std::max(end, array.begin + array.bytes);
    }
    cells.resize(static_cast<std::size_t>(end - begin) / kUnit + 1);
    is_one.resize(cells.size());
    for (const auto& array : all) {
      const auto first_unit = static_cast<std::size_t>(array.begin - begin) / kUnit;
      std::fill_n(is_one.begin() + static_cast<std::ptrdiff_t>(first_unit), array.bytes / kUnit,
                  std::uint8_t{1});
    }
  }
  bool within(const std::byte* at) const { return at >= begin && at < end; }
  Cell* cell(const std::byte* at) {
    if (!within(at)) return nullptr;
    const auto unit = static_cast<std::size_t>(at - begin) / kUnit;
    return is_one[unit] != 0 ? &cells[unit] : nullptr;
  }
};
StaticArrays arrays;

// `other` is of the same launch.
bool unordered(Mark mine, Mark other, bool several_blocks, bool shared) {
  if (!same(kBlock, mine, other) || several_blocks) return !shared;
  return same(kBarriers, mine, other) && (!same(kThread, mine, other) || (other & kMany) != 0);
}

void report(Mark mine, Mark other, const char* mine_does, const char* other_does, const std::byte* at,
            bool in_array, const void* code) {
  fail(cudaErrorLaunchFailure,
       fmt::format("the kernel {}: thread {} of block {} {} what thread {} of block {} {} with no barrier "
                   "between, {}, at code +{:#x}",
                   running_kernel(), thread_of(mine), block_of(mine), mine_does, thread_of(other),
                   block_of(other), other_does, in_array ? "in a __shared__ array" : describe(at),
                   code_offset(code)));
}

// Most accesses are to the threads' own stacks, which nobody else sees.
inline bool is_seen(const void* address) {
  const auto* at = static_cast<const std::byte*>(address);
  return static_cast<std::size_t>(at - space.begin) < space.bytes || arrays.within(at);
}

}  // namespace

bool finds_races() {
  const char* given = std::getenv("SHOAL_EMULATED_RACES");
  return given && *given == '1';
}

void begin_launch() {
  take_cells();
  arrays.take();
  constexpr std::uint32_t kLaunches = 1u << 20;
  if (++launch_number % kLaunches != 0) return;
  ++launch_number;
  madvise(cells_of_memory, space.bytes / kUnit * sizeof(Cell), MADV_DONTNEED);
  std::fill(arrays.cells.begin(), arrays.cells.end(), Cell{});
}

void note_access(const void* address, std::size_t bytes, Access access, const void* code) {
  const auto* at = static_cast<const std::byte*>(address);
  const auto offset = static_cast<std::size_t>(at - space.begin);
  const bool in_arena = offset < space.bytes;
  Cell* cell = in_arena ? cells_of_memory + offset / kUnit : arrays.cell(at);
  if (!cell) return;
  const Runner& runner = running_thread();
  const bool shared = !in_arena || static_cast<std::size_t>(at - runner.shared) < runner.shared_bytes;
  const Mark mine = (launch_number & kLaunch) | (Mark{runner.block} << 20 & kBlock) |
                    (Mark{runner.barriers} << 40 & kBarriers) | (Mark{runner.thread} << 52 & kThread) |
                    (access == Access::atomic ? kFlag : 0);
  for (const Cell* const end = cell + (bytes + kUnit - 1) / kUnit; cell != end; ++cell) {
    const Mark write = cell->write, read = cell->read;
    const bool both_atomic = access == Access::atomic && (write & kFlag) != 0;
    if (same(kLaunch, write, mine) && !both_atomic && unordered(mine, write, false, shared)) {
      return report(mine, write, access == Access::read ? "reads" : "writes", "wrote", at, !in_arena, code);
    }
    if (access != Access::read) {
      if (same(kLaunch, read, mine) && unordered(mine, read, (read & kFlag) != 0, shared)) {
        return report(mine, read, "writes", "read", at, !in_arena, code);
      }
      cell->write = mine;
    } else if (!same(kLaunch, read, mine)) {
      cell->read = mine;
    } else if (!same(kBlock, read, mine)) {
      cell->read = mine | (shared ? 0 : kFlag);
    } else {
      const bool many = same(kBarriers, read, mine) && ((read & kMany) != 0 || !same(kThread, read, mine));
      cell->read = mine | (many ? kMany : 0) | (read & kFlag);
    }
  }
}

}  // namespace shoal::emulated

// --- what the compiler calls

using shoal::emulated::Access;

#define NOTE(bytes, access)                                            \
  if (shoal::emulated::notes_accesses && shoal::emulated::is_seen(at)) \
  shoal::emulated::note_access(at, bytes, Access::access, __builtin_return_address(0))
#define READ_AND_WRITE(bytes)                                        \
  void __tsan_read##bytes(void* at) { NOTE(bytes, read); }           \
  void __tsan_write##bytes(void* at) { NOTE(bytes, write); }         \
  void __tsan_unaligned_read##bytes(void* at) { NOTE(bytes, read); } \
  void __tsan_unaligned_write##bytes(void* at) { NOTE(bytes, write); }

extern "C" {
void __tsan_init() {}
void __tsan_func_entry(void*) {}
void __tsan_func_exit() {}
void __tsan_vptr_update(void**, void*) {}
void __tsan_vptr_read(void**) {}
READ_AND_WRITE(1)
READ_AND_WRITE(2)
READ_AND_WRITE(4)
READ_AND_WRITE(8)
READ_AND_WRITE(16)
// Shared pointers on the host call these.
std::uint32_t __tsan_atomic32_fetch_add(volatile void* at, std::uint32_t by, int) {
  return __atomic_fetch_add(static_cast<volatile std::uint32_t*>(at), by, __ATOMIC_SEQ_CST);
}
std::uint32_t __tsan_atomic32_fetch_sub(volatile void* at, std::uint32_t by, int) {
  return __atomic_fetch_sub(static_cast<volatile std::uint32_t*>(at), by, __ATOMIC_SEQ_CST);
}
void __tsan_read_range(void* at, std::size_t bytes) { NOTE(bytes, read); }
void __tsan_write_range(void* at, std::size_t bytes) { NOTE(bytes, write); }
}
