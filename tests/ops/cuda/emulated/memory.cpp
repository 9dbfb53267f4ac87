#include "ops/cuda/emulated/memory.h"

#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <new>
#include <string_view>

#include "ops/cuda/emulated/failure.h"

namespace shoal::emulated {
namespace {

constexpr int kFill = 0xff;

struct Allocation {
  std::size_t bytes = 0;
  Kind kind = Kind::device;
  std::byte* pages = nullptr;
  std::size_t length = 0;  // of the pages
  bool freed = false;
  const std::byte* end_of_pages() const { return pages + length; }
};

std::mutex of_allocations;
std::map<const std::byte*, Allocation> allocations;  // by their first bytes

std::size_t page_size() {
  static const auto size = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  return size;
}

std::size_t rounded(std::size_t bytes, std::size_t to) { return (bytes + to - 1) / to * to; }

std::byte* reserve(std::size_t bytes) {
  void* memory = mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) throw std::bad_alloc();
  return static_cast<std::byte*>(memory);
}

// Inaccessible pages that were never used.
std::byte* fresh_pages(std::size_t length) {
  static std::byte *next = const_cast<std::byte*>(arena().begin), *end = next + arena().bytes;
  if (static_cast<std::size_t>(end - next) < length) {
    const std::size_t size = std::max(arena().bytes, length);
    next = reserve(size);
    end = next + size;
  }
  std::byte* pages = next;
  next += length;
  return pages;
}

const char* name_of(Kind kind) {
  return kind == Kind::device ? "GPU memory" : kind == Kind::pinned ? "pinned memory" : "shared memory";
}

}  // namespace

const Arena& arena() {
  constexpr std::size_t kBytes = std::size_t{64} << 30;
  static const Arena first{reserve(kBytes), kBytes};
  return first;
}

void* take_memory(std::size_t bytes, Kind kind) {
  const std::size_t alignment = kind == Kind::pinned ? 64 : 16;
  const std::size_t page = page_size(), used = std::max(rounded(bytes, alignment), alignment),
                    length = rounded(used, page);
  const std::lock_guard lock(of_allocations);
  std::byte* pages = fresh_pages(length + 2 * page) + page;
  if (mprotect(pages, length, PROT_READ | PROT_WRITE) != 0) throw std::bad_alloc();
  const char* guard = std::getenv("SHOAL_EMULATED_GUARD");
  std::byte* memory = guard && std::string_view(guard) == "begin" ? pages : pages + length - used;
  std::memset(pages, kFill, length);
  allocations[memory] = {bytes, kind, pages, length};
  return memory;
}

void give_back(void* memory) {
  if (!memory) return;
  const std::lock_guard lock(of_allocations);
  const auto found = allocations.find(static_cast<std::byte*>(memory));
  if (found == allocations.end() || found->second.freed) {
    return fail(cudaErrorInvalidValue, "memory is freed that was not allocated, or freed before");
  }
  auto& [begin, allocation] = *found;
  const auto untouched = [](std::byte x) { return x == std::byte{kFill}; };
  if (!std::all_of(allocation.pages, const_cast<std::byte*>(begin), untouched)) {
    fail(cudaErrorIllegalAddress,
         fmt::format("something wrote before {} bytes of {}", allocation.bytes, name_of(allocation.kind)));
  } else if (!std::all_of(begin + allocation.bytes, allocation.end_of_pages(), untouched)) {
    fail(cudaErrorIllegalAddress, fmt::format("something wrote past the end of {} bytes of {}",
                                              allocation.bytes, name_of(allocation.kind)));
  }
  constexpr int kFlags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED;
  if (mmap(allocation.pages, allocation.length, PROT_NONE, kFlags, -1, 0) == MAP_FAILED) std::abort();
  allocation.freed = true;
}

bool is_pinned(const void* address) {
  const auto* at = static_cast<const std::byte*>(address);
  const std::lock_guard lock(of_allocations);
  auto after = allocations.upper_bound(at);
  if (after == allocations.begin()) return false;
  const auto& [begin, allocation] = *--after;
  return at < begin + allocation.bytes && allocation.kind == Kind::pinned && !allocation.freed;
}

std::string describe(const void* address) {
  const auto* at = static_cast<const std::byte*>(address);
  const std::lock_guard lock(of_allocations);
  const auto page = page_size();
  const auto after = allocations.upper_bound(at);
  if (after != allocations.begin()) {
    const auto& [begin, allocation] = *std::prev(after);
    const char* name = name_of(allocation.kind);
    if (at < begin + allocation.bytes) {
      return fmt::format("{}{}, at byte {} of {}", name, allocation.freed ? " that was freed" : "",
                         at - begin, allocation.bytes);
    }
    if (at < allocation.end_of_pages() + page) {
      return fmt::format("{} bytes past the end of {} bytes of {}", at - begin - allocation.bytes,
                         allocation.bytes, name);
    }
  }
  if (after != allocations.end() && at >= after->second.pages - page) {
    return fmt::format("{} bytes before {} bytes of {}", after->first - at, after->second.bytes,
                       name_of(after->second.kind));
  }
  return fmt::format("an address of no memory, {}", address);
}

}  // namespace shoal::emulated
