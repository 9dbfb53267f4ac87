#include "core/shared_table.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <thread>

namespace shoal {
namespace {

// FNV-1a of 64 bits (Fowler, Noll, Vo).
std::uint64_t checksum(std::string_view text) {
  std::uint64_t sum = 0xcbf29ce484222325u;
  for (const char c : text) sum = (sum ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
  return sum;
}

std::string line_of(std::string_view key, std::string_view value) {
  const auto entry = fmt::format("{}={}", key, value);
  return fmt::format("{:016x} {}", checksum(entry), entry);
}

std::string text_of(const std::filesystem::path& file) {
  std::ifstream in(file, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
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

// The file, locked; whoever ends lets go of it. None where it cannot be had.
class Locked {
 public:
  explicit Locked(const std::filesystem::path& file)
      : file_(file.empty() ? -1 : ::open(file.c_str(), O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0644)) {
    // A holder works for less than a second; one that was stopped in the middle holds up nobody for long.
    constexpr auto kPatience = std::chrono::seconds(60);
    const auto end = std::chrono::steady_clock::now() + kPatience;
    while (file_ >= 0 && ::flock(file_, LOCK_EX | LOCK_NB) != 0) {
      const bool busy = errno == EWOULDBLOCK || errno == EINTR;
      if (!busy || std::chrono::steady_clock::now() > end) {
        close();
      } else {
        std::this_thread::sleep_for(std::chrono::milliseconds(2));
      }
    }
  }
  ~Locked() { close(); }
  Locked(const Locked&) = delete;
  Locked& operator=(const Locked&) = delete;
  explicit operator bool() const { return file_ >= 0; }

  // A line that did not get whole, as on a full disk, is passed over as any other text.
  void append(const std::string& text) const { (void)!::write(file_, text.data(), text.size()); }

 private:
  void close() {
    if (file_ >= 0) ::close(file_);
    file_ = -1;
  }
  int file_;
};

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
  const Locked locked(file_);
  const auto text = text_of(file_);
  if (auto found = find_in(text, key); found && valid(*found)) return *std::move(found);
  auto value = make();
  const bool torn = !text.empty() && text.back() != '\n';
  if (locked) locked.append((torn ? "\n" : "") + line_of(key, value) + "\n");
  return value;
}

}  // namespace shoal
