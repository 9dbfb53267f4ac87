#include "core/bus_error.h"

#include <unistd.h>

#include <atomic>
#include <csignal>
#include <mutex>
#include <utility>
#include <vector>

#include "core/handler_print.h"

namespace shoal {

// Entries are never freed, so that the handler can walk through them at any time; free ones are used again.
struct MappingRecord::Entry {
  std::atomic<const std::byte*> begin = nullptr;  // null: free
  std::size_t bytes = 0;
  std::string path = {};
  Entry* next = nullptr;
};

namespace {

std::atomic<MappingRecord::Entry*> mappings = nullptr;
std::mutex mappings_mutex;
std::vector<MappingRecord::Entry*> free_mappings;  // guarded by it

const MappingRecord::Entry* find_mapping(const void* address) {
  for (const auto* entry = mappings.load(); entry; entry = entry->next) {
    const std::byte* begin = entry->begin;
    if (begin && address >= begin && address < begin + entry->bytes) return entry;
  }
  return nullptr;
}

extern "C" void on_bus_error(int signal, siginfo_t* info, void*) {
  const auto* entry = find_mapping(info->si_addr);
  if (!entry) {
    std::signal(signal, SIG_DFL);
    std::raise(signal);
    return;
  }
  print_from_handler({"shoal: error: ", entry->path.c_str(),
                      " was cut short, or its disk failed, while it was read; restore it and start again"});
  ::_exit(2);
}

}  // namespace

void explain_bus_errors() {
  struct sigaction action = {};
  action.sa_sigaction = on_bus_error;
  action.sa_flags = SA_SIGINFO;
  ::sigaction(SIGBUS, &action, nullptr);
}

MappingRecord::MappingRecord(std::span<const std::byte> memory, std::string path) {
  const std::scoped_lock lock(mappings_mutex);
  const bool reused = !free_mappings.empty();
  entry_.reset(reused ? free_mappings.back() : new Entry);
  if (reused) free_mappings.pop_back();
  entry_->bytes = memory.size();
  entry_->path = std::move(path);
  entry_->begin = memory.data();
  if (reused) return;
  entry_->next = mappings;
  mappings = entry_.get();
}

void MappingRecord::Free::operator()(Entry* entry) const {
  const std::scoped_lock lock(mappings_mutex);
  entry->begin = nullptr;
  free_mappings.push_back(entry);
}

}  // namespace shoal
