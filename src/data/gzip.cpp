#include "data/gzip.h"

#include <zlib.h>

#include <algorithm>
#include <new>

#include "core/error.h"

namespace shoal {
namespace {

constexpr std::size_t kGzipBufferSize = 1 << 16;
constexpr std::size_t kMostAtOnce = 1 << 30;  // zlib counts in 32 bits
constexpr int kGzipWindow = 15 + 16;          // the largest window; 16: the header is gzip's
constexpr Bytef kFirstByte = 0x1f;            // of gzip's header

}  // namespace

GzipSource::GzipSource(ByteSource& source, std::string name)
    : source_(source),
      name_(std::move(name)),
      buffer_(std::make_unique<char[]>(kGzipBufferSize)),
      stream_(std::make_unique<z_stream>()) {
  if (inflateInit2(stream_.get(), kGzipWindow) != Z_OK) throw std::bad_alloc();
}

GzipSource::~GzipSource() { inflateEnd(stream_.get()); }

std::size_t GzipSource::read(char* out, std::size_t size) {
  const auto room = static_cast<uInt>(std::min(size, kMostAtOnce));
  stream_->next_out = reinterpret_cast<Bytef*>(out);
  stream_->avail_out = room;
  while (stream_->avail_out > 0) {
    if (stream_->avail_in == 0 && !refill()) {
      if (inside_) fail_damaged("it ends too early");
      break;
    }
    if (!inside_ && !begin_part()) continue;
    const int status = inflate(stream_.get(), Z_NO_FLUSH);
    if (status == Z_MEM_ERROR) throw std::bad_alloc();
    if (status == Z_STREAM_END) {
      inside_ = false;
    } else if (status != Z_OK) {
      fail_damaged(stream_->msg == nullptr ? "unknown error" : stream_->msg);
    }
  }
  return room - stream_->avail_out;
}

// Returns whether there is more input.
bool GzipSource::refill() {
  stream_->next_in = reinterpret_cast<Bytef*>(buffer_.get());
  stream_->avail_in = static_cast<uInt>(source_.read(buffer_.get(), kGzipBufferSize));
  return stream_->avail_in > 0;
}

// Skips zeros in the buffer. Returns whether another part begins there.
bool GzipSource::begin_part() {
  while (stream_->avail_in > 0 && *stream_->next_in == 0) {
    ++stream_->next_in;
    --stream_->avail_in;
    padded_ = true;
  }
  if (stream_->avail_in == 0) return false;
  if (padded_ || *stream_->next_in != kFirstByte) fail_damaged("it goes on with data that are not gzip");
  inflateReset(stream_.get());
  return inside_ = true;
}

void GzipSource::fail_damaged(const char* reason) const {
  fail_user("{}: the gzip data are damaged: {}", name_, reason);
}

}  // namespace shoal
