// Archives and compressed files for tests.
#pragma once

#include <archive.h>
#include <archive_entry.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <utility>
#include <vector>

namespace shoal::test {

using Members = std::vector<std::pair<std::string, std::string>>;

struct Packing {
  int format = ARCHIVE_FORMAT_TAR_USTAR;
  int filter = ARCHIVE_FILTER_NONE;
};

// Writes an archive with the members, which may be folders (names that end in a slash).
inline std::filesystem::path pack(const std::filesystem::path& file, const Members& members,
                                  Packing packing) {
  archive* out = archive_write_new();
  archive_write_set_format(out, packing.format);
  archive_write_add_filter(out, packing.filter);
  EXPECT_EQ(archive_write_open_filename(out, file.c_str()), ARCHIVE_OK) << archive_error_string(out);
  for (const auto& [name, content] : members) {
    archive_entry* entry = archive_entry_new();
    archive_entry_set_pathname(entry, name.c_str());
    archive_entry_set_filetype(entry, name.ends_with('/') ? AE_IFDIR : AE_IFREG);
    archive_entry_set_perm(entry, 0644);
    archive_entry_set_size(entry, static_cast<la_int64_t>(content.size()));
    EXPECT_EQ(archive_write_header(out, entry), ARCHIVE_OK) << archive_error_string(out);
    archive_write_data(out, content.data(), content.size());
    archive_entry_free(entry);
  }
  EXPECT_EQ(archive_write_close(out), ARCHIVE_OK) << archive_error_string(out);
  archive_write_free(out);
  return file;
}

inline std::filesystem::path compress(const std::filesystem::path& file, const std::string& content,
                                      int filter) {
  return pack(file, {{"data", content}}, {ARCHIVE_FORMAT_RAW, filter});
}

}  // namespace shoal::test
