// The entries of a zip archive (PKWARE's APPNOTE.TXT, with Zip64), where they lie in the file: stored, as
// torch.save writes them, not compressed.
#pragma once

#include <cstddef>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace shoal {

struct ZipEntry {
  std::string name;
  std::span<const std::byte> data;
};

// Whether `bytes` begin as a zip archive does.
bool is_zip(std::span<const std::byte> bytes);

// The entries of the archive `bytes`, a whole file, by name; the data are parts of `bytes`, and their
// checksums are not verified. Throws UserError, naming `path` and the byte, when the archive is damaged, or
// an entry is compressed, encrypted or there twice.
std::vector<ZipEntry> read_zip(std::span<const std::byte> bytes, const std::filesystem::path& path);

// Null when there is none. `entries` are those of read_zip.
const ZipEntry* find_entry(std::span<const ZipEntry> entries, std::string_view name);

}  // namespace shoal
