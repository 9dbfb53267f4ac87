#include "core/shared_table.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <thread>

#include "core/file.h"
#include "core/hash.h"

namespace shoal {
namespace {

std::string line_of(std::string_view key, std::string_view value) {
  const auto entry = fmt::format("{}={}", key, value);
  return fmt::format("{:016x} {}", fnv1a(entry), entry);
}

std::string text_of(const std::filesystem::path& file) {
  std::ifstream in(file, std::ios::binary);
  std::ostringstream text;
  text << in.rdbuf();  // what can be read of it
  return text.str();
}

std::optional<std::string> find_in(std::string_view text, std::string_view key) {
  constexpr std::size_t kSum = 17;  // and the space behind it
  std::optional<std::string> found;
  while (!text.empty()) {
    const auto end = text.find('\n');
    const auto line = text.substr(0, end);
    text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
    if (line.size() <= kSum + key.size() || line.substr(kSum, key.size()) != key) continue;
    const auto value = line.substr(kSum + key.size() + 1);
    if (line == line_of(key, value)) found = value;
  }
  return found;
}

// The file, locked until the descriptor is closed; none where that is not possible.
FileDescriptor locked(const std::filesystem::path& path) {
  // A holder works for less than a second; the wait for one that was stopped in the middle has an end.
  constexpr auto kPatience = std::chrono::seconds(60);
  const auto end = std::chrono::steady_clock::now() + kPatience;
  if (path.empty()) return FileDescriptor();
  FileDescriptor file(::open(path.c_str(), O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0644));
  while (file && !try_lock(file)) {
    const bool busy = errno == EWOULDBLOCK || errno == EINTR;
    if (!busy || std::chrono::steady_clock::now() > end) return FileDescriptor();
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  return file;
}

// A line that is not written whole, as on a full disk, is passed over by readers.
void append(const FileDescriptor& file, const std::string& text) {
  (void)!::write(file.get(), text.data(), text.size());
}

}  // namespace

std::filesystem::path cache_folder() {
  if (const char* cache = std::getenv("XDG_CACHE_HOME"); cache != nullptr && cache[0] == '/') {
    return std::filesystem::path(cache) / "shoal";
  }
  const char* home = std::getenv("HOME");
  return home == nullptr ? std::filesystem::path() : std::filesystem::path(home) / ".cache" / "shoal";
}

std::optional<std::string> SharedTable::find(std::string_view key) const {
  return find_in(text_of(file_), key);
}

std::string SharedTable::find_or_make(std::string_view key,
                                      const std::function<bool(std::string_view)>& valid,
                                      const std::function<std::string()>& make) const {
  const auto file = locked(file_);
  const auto text = text_of(file_);
  if (auto found = find_in(text, key); found && valid(*found)) return *std::move(found);
  auto value = make();
  const bool torn = !text.empty() && text.back() != '\n';
  if (file) append(file, (torn ? "\n" : "") + line_of(key, value) + "\n");
  return value;
}

}  // namespace shoal
