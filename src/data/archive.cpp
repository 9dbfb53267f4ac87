#include "data/archive.h"

#include <archive.h>
#include <archive_entry.h>

#include <algorithm>
#include <array>
#include <cerrno>

#include "core/error.h"
#include "core/text.h"

namespace shoal {
namespace {

constexpr std::size_t kBufferSize = 1 << 18;
constexpr std::size_t kTarBlock = 512;              // of zeros, twice, at the end
constexpr std::string_view kGzip = "\x1f\x8b\x08";  // its first bytes
constexpr std::array<std::string_view, 5> kCompressed = {".gz", ".xz", ".zst", ".bz2", ".lzma"};
constexpr std::array<std::string_view, 5> kArchives = {".tar", ".zip", ".tgz", ".txz", ".tzst"};

// "text.txt.gz" -> "text.txt"
std::string without_compression(std::string name) {
  for (bool found = true; found;) {
    found = false;
    for (auto ending : kCompressed) {
      if (!ends_in_any_case(name, ending)) continue;
      name.resize(name.size() - ending.size());
      found = true;
    }
  }
  return name;
}

bool is_container_name(std::string_view name) {
  return std::any_of(kArchives.begin(), kArchives.end(),
                     [&](auto ending) { return ends_in_any_case(name, ending); });
}

}  // namespace

bool is_archive_name(std::string_view name) {
  return is_container_name(name) || without_compression(std::string(name)) != name;
}

struct Archive::Callbacks {
  static la_ssize_t read(archive* handle, void* data, const void** buffer) {
    auto& self = *static_cast<Archive*>(data);
    *buffer = self.buffer_.get();
    try {
      const auto count = self.source_->read(self.buffer_.get(), kBufferSize);
      self.count_zeros(count);
      return static_cast<la_ssize_t>(count);
    } catch (...) {
      self.source_error_ = std::current_exception();
      archive_set_error(handle, EIO, "cannot be read");
      return -1;
    }
  }
  static la_int64_t seek(archive*, void* data, la_int64_t offset, int whence) {
    auto& self = *static_cast<Archive*>(data);
    self.zeros_ = 0;
    const auto position = self.source_->seek(offset, whence);
    return position < 0 ? ARCHIVE_FATAL : position;
  }
};

Archive::Archive(ByteSource& source, std::string name)
    : source_(&source), name_(std::move(name)), buffer_(std::make_unique<char[]>(kBufferSize)) {
  unpack_gzip();
  archive_ = archive_read_new();
  archive_read_support_filter_gzip(archive_);  // within other compression, which has checksums but for .lzma
  archive_read_support_filter_bzip2(archive_);
  archive_read_support_filter_xz(archive_);
  archive_read_support_filter_lzma(archive_);
  archive_read_support_filter_zstd(archive_);
  archive_read_support_format_tar(archive_);
  // Otherwise libarchive stops at the first blocks of zeros, whatever follows them.
  archive_read_set_format_option(archive_, "tar", "read_concatenated_archives", "1");
  archive_read_support_format_zip(archive_);
  if (!is_container_name(without_compression(name_))) {
    archive_read_support_format_raw(archive_);
    archive_read_support_format_empty(archive_);
  }

  archive_read_set_read_callback(archive_, Callbacks::read);
  if (source_->seekable()) archive_read_set_seek_callback(archive_, Callbacks::seek);
  archive_read_set_callback_data(archive_, this);
  if (archive_read_open1(archive_) == ARCHIVE_OK) return;
  try {
    fail_damaged();
  } catch (...) {
    archive_read_free(archive_);
    throw;
  }
}

Archive::~Archive() { archive_read_free(archive_); }

// libarchive does not check the checksums of gzip (3.6), so it gets the content.
void Archive::unpack_gzip() {
  const bool gzip = fill(head_, kGzip.size(), *source_) && head_ == kGzip;
  if (source_->seek(0, SEEK_SET) != 0) source_ = &whole_.emplace(head_, *source_);
  if (gzip) source_ = &gzip_.emplace(*source_, name_);
}

// libarchive may stop before the end: the checksum is behind it.
void Archive::finish_gzip() {
  while (gzip_ && gzip_->read(buffer_.get(), kBufferSize) > 0) {
  }
}

void Archive::count_zeros(std::size_t read) {
  const auto last = std::string_view(buffer_.get(), read).find_last_not_of('\0');
  zeros_ = last == std::string_view::npos ? zeros_ + read : read - last - 1;
}

void Archive::fail_damaged() {
  if (source_error_) std::rethrow_exception(source_error_);
  const char* reason = archive_error_string(archive_);
  fail_user("{}{}: the archive is damaged or not what its name says: {}", name_,
            member_.empty() ? "" : " (member " + member_ + ")", reason == nullptr ? "unknown error" : reason);
}

void Archive::require_compression() {
  if (!gzip_ && archive_filter_code(archive_, 0) == ARCHIVE_FILTER_NONE)
    fail_user("{}: the name says that it is compressed, but it is not; rename it", name_);
}

bool Archive::next() {
  for (;;) {
    archive_entry* entry = nullptr;
    const int status = archive_read_next_header(archive_, &entry);
    if (source_error_) fail_damaged();
    if (status == ARCHIVE_EOF) {
      if (archive_format(archive_) == ARCHIVE_FORMAT_EMPTY) require_compression();
      const bool tar = (archive_format(archive_) & ARCHIVE_FORMAT_BASE_MASK) == ARCHIVE_FORMAT_TAR;
      lacks_end_ = tar && archive_filter_code(archive_, 0) == ARCHIVE_FILTER_NONE && zeros_ < kTarBlock;
      finish_gzip();
      return false;
    }
    // ARCHIVE_RETRY is a tar header with a wrong checksum; its member would be left out.
    if (status != ARCHIVE_OK && status != ARCHIVE_WARN) fail_damaged();
    compressed_file_ = archive_format(archive_) == ARCHIVE_FORMAT_RAW;
    if (compressed_file_) {
      require_compression();
      const auto stem = without_compression(name_);
      member_ = stem.substr(stem.find_last_of('/') + 1);
      return true;
    }
    if (archive_entry_filetype(entry) != AE_IFREG || archive_entry_hardlink(entry) != nullptr) continue;
    const char* path = archive_entry_pathname_utf8(entry);
    if (path == nullptr) path = archive_entry_pathname(entry);
    member_ = path == nullptr ? "(a name that cannot be read)" : path;
    return true;
  }
}

std::size_t Archive::read(char* out, std::size_t size) {
  const auto count = archive_read_data(archive_, out, size);
  if (count < 0 || source_error_) fail_damaged();
  return static_cast<std::size_t>(count);
}

}  // namespace shoal
