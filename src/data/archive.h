// Members of archives and compressed files, read as a stream.
#pragma once

#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "data/byte_source.h"
#include "data/gzip.h"

struct archive;

namespace shoal {

// Whether a file name ends as those of archives and compressed files do: .tar .tar.gz .tgz .zip .gz .xz .zst
// .bz2 ..., in any case
bool is_archive_name(std::string_view name);

// Reads tar and zip archives, compressed or not, and single compressed files, each as an archive with one
// member.
class Archive : private ByteSource {
 public:
  // Reads from `source`, which must outlive this object. `name` is for messages, and its ending decides
  // whether a single compressed file is acceptable (.gz yes, .tar.gz no). Throws UserError when the content
  // does not fit the name.
  Archive(ByteSource& source, std::string name);
  ~Archive() override;
  Archive(const Archive&) = delete;
  Archive& operator=(const Archive&) = delete;

  // Moves to the next regular file; false at the end. Throws UserError when the archive is damaged.
  bool next();
  const std::string& member() const { return member_; }  // its path within the archive
  // Whether this is a single compressed file; its one member is the decompressed content.
  bool compressed_file() const { return compressed_file_; }
  // After the last member: whether a tar has no blocks of zeros at its end, as if it had been cut between two
  // members. Some programs leave them out. False for a tar in .xz, .zst, .bz2 and .lzma, which mark their
  // ends.
  bool lacks_end() const { return lacks_end_; }
  // The content of the current member.
  ByteSource& content() { return *this; }

 private:
  struct Callbacks;

  std::size_t read(char* out, std::size_t size) override;
  void unpack_gzip();
  void finish_gzip();
  void count_zeros(std::size_t read);
  [[noreturn]] void fail_damaged();
  void require_compression();

  ByteSource* source_;  // what libarchive reads
  std::string name_, member_;
  std::string head_;                     // the first bytes, where the source cannot seek back
  std::optional<PrefixedSource> whole_;  // the source with them
  std::optional<GzipSource> gzip_;       // the content, if the source is gzip
  std::unique_ptr<char[]> buffer_;
  std::exception_ptr source_error_;  // thrown by source_ inside a callback of the C library
  archive* archive_ = nullptr;
  std::size_t zeros_ = 0;  // at the end of what libarchive has read
  bool compressed_file_ = false, lacks_end_ = false;
};

}  // namespace shoal
