// Decompresses gzip, and checks its checksums.
#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include "data/byte_source.h"

struct z_stream_s;

namespace shoal {

// The content of gzip data: that of all its parts, one after the other. Zeros behind the last part are
// ignored, as gzip(1) does. Memory does not grow with the content.
class GzipSource : public ByteSource {
 public:
  // Reads from `source`, which must outlive this object. `name` is for messages.
  GzipSource(ByteSource& source, std::string name);
  ~GzipSource() override;
  GzipSource(const GzipSource&) = delete;
  GzipSource& operator=(const GzipSource&) = delete;

  // Throws UserError when the data are damaged. A part's checksum and length are checked when its end is
  // read: only a return of 0 says that all of them are right.
  std::size_t read(char* out, std::size_t size) override;

 private:
  bool refill();
  bool begin_part();
  [[noreturn]] void fail_damaged(const char* reason) const;

  ByteSource& source_;
  std::string name_;
  std::unique_ptr<char[]> buffer_;
  std::unique_ptr<z_stream_s> stream_;
  bool inside_ = true;   // of a part
  bool padded_ = false;  // whether zeros were found behind the last part
};

}  // namespace shoal
