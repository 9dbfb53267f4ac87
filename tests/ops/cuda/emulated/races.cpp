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

// The thread that accessed a unit last, in 64 bits. `many` is a thread or block of its own, unlike any other.
struct Mark {
  std::uint64_t launch : 20, block : 20, barriers : 12, thread : 10, many_threads : 1, flag : 1;
};
static_assert(sizeof(Mark) == sizeof(std::uint64_t));

// All zero before the first access. flag: of `write`, an atomic one; of `read`, from several blocks.
struct Cell {
  Mark write, read;
};

std::uint32_t launches = 0;

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

  StaticArrays() {
    const auto all = static_arrays();
    if (all.empty()) return;
    begin = all.front().begin;
    for (const auto& array : all) {
      begin = std::min(begin, array.begin);
      end = std::max(end, array.begin + array.bytes);
    }
    cells.resize(static_cast<std::size_t>(end - begin) / kUnit + 1);
    is_one.resize(cells.size());
    for (const auto& array : all) {
      const auto first = static_cast<std::size_t>(array.begin - begin) / kUnit;
      std::fill_n(is_one.begin() + static_cast<std::ptrdiff_t>(first), array.bytes / kUnit, std::uint8_t{1});
    }
  }
  Cell* cell(const std::byte* at) {
    if (at < begin || at >= end) return nullptr;
    const auto unit = static_cast<std::size_t>(at - begin) / kUnit;
    return is_one[unit] != 0 ? &cells[unit] : nullptr;
  }
};
StaticArrays& arrays() {
  static StaticArrays all;
  return all;
}

// `other` is of the same launch.
bool unordered(const Mark& mine, const Mark& other, bool several_blocks, bool shared) {
  if (other.block != mine.block || several_blocks) return !shared;
  return other.barriers == mine.barriers && (other.thread != mine.thread || other.many_threads != 0);
}

void report(const Mark& mine, const Mark& other, const char* mine_does, const char* other_does,
            const std::byte* at, bool in_array, const void* code) {
  fail(cudaErrorLaunchFailure,
       fmt::format("the kernel {}: thread {} of block {} {} what thread {} of block {} {} with no barrier "
                   "between, {}, "
                   "at code +{:#x}",
                   running_kernel(), static_cast<unsigned>(mine.thread), static_cast<unsigned>(mine.block),
                   mine_does, static_cast<unsigned>(other.thread), static_cast<unsigned>(other.block),
                   other_does, in_array ? "in a __shared__ array" : describe(at), code_offset(code)));
}

}  // namespace

bool finds_races() {
  const char* given = std::getenv("SHOAL_EMULATED_RACES");
  return given && *given == '1';
}

void begin_launch() {
  take_cells();
  constexpr std::uint32_t kLaunches = 1u << 20;
  if (++launches % kLaunches != 0) return;
  ++launches;
  madvise(cells_of_memory, space.bytes / kUnit * sizeof(Cell), MADV_DONTNEED);
  std::fill(arrays().cells.begin(), arrays().cells.end(), Cell{});
}

void note_access(const void* address, std::size_t bytes, Access access, const void* code) {
  const Runner& runner = running_thread();
  const auto* at = static_cast<const std::byte*>(address);
  const auto offset = static_cast<std::size_t>(at - space.begin);
  const bool in_arena = offset < space.bytes;
  Cell* cell = in_arena ? cells_of_memory + offset / kUnit : arrays().cell(at);
  if (!cell) return;
  const bool shared = !in_arena || static_cast<std::size_t>(at - runner.shared) < runner.shared_bytes;
  const Mark mine{.launch = launches & 0xfffffu,
                  .block = runner.block & 0xfffffu,
                  .barriers = static_cast<std::uint16_t>(runner.barriers & 0xfffu),
                  .thread = static_cast<std::uint16_t>(runner.thread & 0x3ffu),
                  .many_threads = 0,
                  .flag = access == Access::atomic};
  for (const Cell* const end = cell + (bytes + kUnit - 1) / kUnit; cell != end; ++cell) {
    Mark &write = cell->write, &read = cell->read;
    const bool both_atomic = access == Access::atomic && write.flag != 0;
    if (write.launch == mine.launch && !both_atomic && unordered(mine, write, false, shared)) {
      return report(mine, write, access == Access::read ? "reads" : "writes", "wrote", at, !in_arena, code);
    }
    if (access != Access::read) {
      if (read.launch == mine.launch && unordered(mine, read, read.flag != 0, shared)) {
        return report(mine, read, "writes", "read", at, !in_arena, code);
      }
      write = mine;
    } else if (read.launch != mine.launch) {
      read = mine;
    } else if (read.block != mine.block) {
      const std::uint8_t several = shared ? 0 : 1;
      read = mine;
      read.flag = several & 1u;
    } else {
      const bool many =
          read.barriers == mine.barriers && (read.many_threads != 0 || read.thread != mine.thread);
      const auto several = read.flag;
      read = mine;
      read.many_threads = many ? 1 : 0;
      read.flag = several & 1u;
    }
  }
}

}  // namespace shoal::emulated

// --- what the compiler calls

using shoal::emulated::Access;

#define NOTE(bytes, access)            \
  if (shoal::emulated::notes_accesses) \
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
