#include "core/mapped_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string>
#include <system_error>

#include "core/error.h"
#include "core/text.h"

namespace shoal {
namespace {

// An open file without a name.
FileDescriptor nameless_file(const std::filesystem::path& folder) {
  std::string name = (folder / "shoal-state-XXXXXX").string();
  FileDescriptor file(mkostemp(name.data(), O_CLOEXEC));
  if (!file) {
    fail_user("{}: no file for the run's state can be made here: {}; name a folder that can be written to",
              folder.string(), std::strerror(errno));
  }
  unlink(name.c_str());
  return file;
}

}  // namespace

MappedMemory::MappedMemory(const std::filesystem::path& folder, std::size_t bytes) {
  if (bytes == 0) return;
  MappedMemory made;
  made.file_ = nameless_file(folder);
  std::error_code unknown;
  const auto space = std::filesystem::space(folder, unknown);
  const auto refuse_for_room = [&] {
    fail_user("{}: the run's state takes {} on this disk, and {} are free; make room or name another folder",
              folder.string(), format_bytes(static_cast<double>(bytes)),
              unknown ? "too few" : format_bytes(static_cast<double>(space.available)));
  };
  // Asked first, since taking what is not there would fill the disk for a moment.
  if (!unknown && space.available < bytes) refuse_for_room();
  int error = 0;
  do {
    error = posix_fallocate(made.file_.get(), 0, static_cast<off_t>(bytes));
  } while (error == EINTR);
  if (error == ENOSPC || error == EDQUOT || error == EFBIG) refuse_for_room();
  if (error != 0) fail("{}: cannot reserve a file: {}", folder.string(), std::strerror(error));
  void* data = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, made.file_.get(), 0);
  if (data == MAP_FAILED) {
    fail("{}: a file of {} cannot be mapped into memory: {}", folder.string(),
         format_bytes(static_cast<double>(bytes)), std::strerror(errno));
  }
  // Larger pieces for every fault and for reading ahead, where the system can.
  madvise(data, bytes, MADV_HUGEPAGE);
  made.bytes_ = {static_cast<std::byte*>(data), bytes};
  *this = std::move(made);
}

MappedMemory::~MappedMemory() {
  if (!bytes_.empty()) munmap(bytes_.data(), bytes_.size());
}

void MappedMemory::done_with(std::span<const std::byte> part) const {
  if (part.empty()) return;
  const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  const auto first = static_cast<std::size_t>(part.data() - bytes_.data()) / page * page;
  const auto length = static_cast<std::size_t>(part.data() - bytes_.data()) + part.size() - first;
  // The pages of a shared mapping go to the system's cache, changes included. (MADV_PAGEOUT would have to
  // wait until they are written.)
  madvise(bytes_.data() + first, length, MADV_DONTNEED);
  sync_file_range(file_.get(), static_cast<off_t>(first), static_cast<off_t>(length), SYNC_FILE_RANGE_WRITE);
}

}  // namespace shoal
