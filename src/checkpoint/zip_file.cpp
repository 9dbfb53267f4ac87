#include "checkpoint/zip_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstring>

#include "core/error.h"

namespace shoal {
namespace {

static_assert(std::endian::native == std::endian::little, "the format is little-endian");

// The first bytes of the records, and their sizes without names and comments.
constexpr std::uint32_t kLocal = 0x04034b50, kCentral = 0x02014b50, kEnd = 0x06054b50, kEnd64 = 0x06064b50,
                        kLocator64 = 0x07064b50;
constexpr std::uint64_t kLocalBytes = 30, kCentralBytes = 46, kEndBytes = 22, kLocator64Bytes = 20;
constexpr std::uint64_t kLongestComment = 0xffff;
constexpr std::uint32_t kIn64 = 0xffffffff;  // a number that is in the Zip64 extra field
constexpr std::uint16_t kExtra64 = 1, kEncrypted = 1;

class ZipReader {
 public:
  ZipReader(std::span<const std::byte> bytes, const std::filesystem::path& path)
      : bytes_(bytes), path_(path) {}

  std::vector<ZipEntry> entries() const {
    std::vector<ZipEntry> entries;
    auto [count, at] = find_directory();
    for (; count > 0; --count) entries.push_back(read_entry(at));
    std::ranges::sort(entries, {}, &ZipEntry::name);
    const auto twice = std::ranges::adjacent_find(entries, {}, &ZipEntry::name);
    if (twice != entries.end())
      fail_user("{}: the zip entry \"{}\" is there twice", path_.string(), twice->name);
    return entries;
  }

 private:
  struct Directory {
    std::uint64_t entries, offset;
  };

  template <typename... Args>
  [[noreturn]] void fail_at(std::uint64_t at, fmt::format_string<Args...> text, Args&&... args) const {
    fail_user("{}: byte {} of the zip archive: {}; the file is cut off or damaged", path_.string(), at,
              fmt::format(text, std::forward<Args>(args)...));
  }

  std::span<const std::byte> part(std::uint64_t at, std::uint64_t size) const {
    if (at > bytes_.size() || size > bytes_.size() - at) {
      fail_at(at, "{} bytes from here on are expected, but the file has {}", size, bytes_.size());
    }
    return bytes_.subspan(at, size);
  }
  template <typename T>
  T number(std::uint64_t at) const {
    T value;
    std::memcpy(&value, part(at, sizeof value).data(), sizeof value);
    return value;
  }
  bool begins(std::uint64_t at, std::uint32_t signature) const {
    return number<std::uint32_t>(at) == signature;
  }

  // The end record is the last one, before the archive's comment.
  Directory find_directory() const {
    const std::uint64_t size = bytes_.size();
    for (auto back = kEndBytes; back <= std::min(size, kEndBytes + kLongestComment); ++back) {
      const auto at = size - back;
      if (!begins(at, kEnd) || number<std::uint16_t>(at + 20) != back - kEndBytes) continue;
      if (at >= kLocator64Bytes && begins(at - kLocator64Bytes, kLocator64)) {
        const auto at64 = number<std::uint64_t>(at - kLocator64Bytes + 8);
        if (!begins(at64, kEnd64)) fail_at(at64, "the directory's Zip64 record is expected here");
        return {number<std::uint64_t>(at64 + 32), number<std::uint64_t>(at64 + 48)};
      }
      return {number<std::uint16_t>(at + 10), number<std::uint32_t>(at + 16)};
    }
    fail_at(size, "the directory is missing, which ends every archive");
  }

  // Reads the directory's record at `at`, and moves `at` to the next one.
  ZipEntry read_entry(std::uint64_t& at) const {
    if (!begins(at, kCentral)) fail_at(at, "an entry of the directory is expected here");
    const auto flags = number<std::uint16_t>(at + 8), method = number<std::uint16_t>(at + 10);
    std::uint64_t stored = number<std::uint32_t>(at + 20), size = number<std::uint32_t>(at + 24),
                  local = number<std::uint32_t>(at + 42);
    const std::uint64_t name_bytes = number<std::uint16_t>(at + 28),
                        extra_bytes = number<std::uint16_t>(at + 30),
                        comment_bytes = number<std::uint16_t>(at + 32);
    const auto name = part(at + kCentralBytes, name_bytes);
    read_zip64(part(at + kCentralBytes + name_bytes, extra_bytes), {&size, &stored, &local});
    ZipEntry entry{{reinterpret_cast<const char*>(name.data()), name.size()}, {}};
    if ((flags & kEncrypted) != 0) {
      fail_user("{}: the zip entry \"{}\" is encrypted, which is not read", path_.string(), entry.name);
    }
    if (method != 0 || stored != size) {
      fail_user(
          "{}: the zip entry \"{}\" is compressed, as torch.save never does; unpack the archive and zip it "
          "again without compression (zip -0)",
          path_.string(), entry.name);
    }
    if (!begins(local, kLocal)) fail_at(local, "the zip entry \"{}\" is expected here", entry.name);
    const std::uint64_t before =
        kLocalBytes + number<std::uint16_t>(local + 26) + number<std::uint16_t>(local + 28);
    entry.data = part(local + before, size);
    at += kCentralBytes + name_bytes + extra_bytes + comment_bytes;
    return entry;
  }

  // Replaces the numbers that did not fit 32 bits.
  void read_zip64(std::span<const std::byte> extra, std::initializer_list<std::uint64_t*> numbers) const {
    const auto take = [&]<typename T>(T) {
      T value{};
      if (extra.size() < sizeof value) fail_at(extra.data() - bytes_.data(), "an extra field ends too early");
      std::memcpy(&value, extra.data(), sizeof value);
      extra = extra.subspan(sizeof value);
      return value;
    };
    while (!extra.empty()) {
      const auto kind = take(std::uint16_t{});
      const auto size = take(std::uint16_t{});
      if (size > extra.size()) fail_at(extra.data() - bytes_.data(), "an extra field ends too early");
      const auto rest = extra.subspan(size);
      if (kind == kExtra64) {
        extra = extra.first(size);
        for (auto* value : numbers) {
          if (*value == kIn64) *value = take(std::uint64_t{});
        }
      }
      extra = rest;
    }
  }

  std::span<const std::byte> bytes_;
  const std::filesystem::path& path_;
};

}  // namespace

bool is_zip(std::span<const std::byte> bytes) {
  return bytes.size() >= sizeof kLocal && std::memcmp(bytes.data(), &kLocal, sizeof kLocal) == 0;
}

std::vector<ZipEntry> read_zip(std::span<const std::byte> bytes, const std::filesystem::path& path) {
  return ZipReader(bytes, path).entries();
}

const ZipEntry* find_entry(std::span<const ZipEntry> entries, std::string_view name) {
  const auto found = std::ranges::lower_bound(
      entries, name, {}, [](const ZipEntry& entry) { return std::string_view(entry.name); });
  return found == entries.end() || found->name != name ? nullptr : &*found;
}

}  // namespace shoal
