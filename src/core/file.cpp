#include "core/file.h"

#include <fcntl.h>
#include <stdio.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <fstream>
#include <iterator>
#include <system_error>

#include "core/error.h"
#include "core/text.h"

namespace shoal {
namespace fs = std::filesystem;

namespace {

std::string reason() { return std::generic_category().message(errno); }

// The hidden name under which a file's successor is made. `number` distinguishes those who make it at the
// same time.
fs::path partial_beside(const fs::path& path, int number = 0) {
  return path.parent_path() /
         fmt::format(".{}{}.partial", path.filename().string(), number > 0 ? fmt::format(".{}", number) : "");
}

fs::path without_links(const fs::path& path) {
  std::error_code error;
  auto target = fs::weakly_canonical(path, error);
  return error ? path : target;
}

// Whether a path names an open file.
bool is_at(const FileDescriptor& file, const fs::path& path) {
  struct stat open {
  }, there{};
  return ::fstat(file.get(), &open) == 0 && ::stat(path.c_str(), &there) == 0 &&
         open.st_dev == there.st_dev && open.st_ino == there.st_ino;
}

void try_to_sync(const fs::path& path) {
  if (const FileDescriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC)); file) ::fsync(file.get());
}

}  // namespace

FileDescriptor::~FileDescriptor() {
  if (fd_ >= 0) ::close(fd_);
}

FileDescriptor open_file(const fs::path& path, int flags, std::string_view action) {
  FileDescriptor file(::open(path.c_str(), flags | O_CLOEXEC, 0644));
  if (!file) fail_user("cannot {} {}: {}", action, path.string(), reason());
  return file;
}

void open_standard_streams() {
  // A file gets the lowest number that is free.
  for (const auto& [fd, flags] :
       {std::pair{STDIN_FILENO, O_WRONLY}, {STDOUT_FILENO, O_RDONLY}, {STDERR_FILENO, O_RDWR}}) {
    if (::fcntl(fd, F_GETFD) < 0) (void)!::open("/dev/null", flags);
  }
}

bool try_lock(const FileDescriptor& file) { return ::flock(file.get(), LOCK_EX | LOCK_NB) == 0; }

int create_locked(FileDescriptor& file, const fs::path& path) {
  for (;;) {
    file = FileDescriptor(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666));
    if (!file) return errno;
    if (try_lock(file)) {
      if (is_at(file, path)) return 0;
    } else if (errno != EINTR) {
      return errno;
    }
  }
}

MappedFile::MappedFile(fs::path path) : path_(std::move(path)) {
  const auto file = open_file(path_, O_RDONLY | O_NONBLOCK, "read");  // a pipe is refused, not waited for
  struct stat info {};
  if (::fstat(file.get(), &info) != 0) fail_user("cannot read {}: {}", path_.string(), reason());
  if (!S_ISREG(info.st_mode)) fail_user("cannot read {}: it is not a regular file", path_.string());
  if (info.st_size == 0) return;
  const auto size = static_cast<std::size_t>(info.st_size);
  void* address = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, file.get(), 0);
  if (address == MAP_FAILED) {
    fail_user("cannot map {}: {}{}", path_.string(), reason(),
              errno == ENOMEM ? " (limits: ulimit -v, sysctl vm.max_map_count)" : "");
  }
  data_ = {static_cast<const std::byte*>(address), size};
  record_ = {data_, path_.string()};
}

MappedFile::~MappedFile() {
  if (!data_.empty()) ::munmap(const_cast<std::byte*>(data_.data()), data_.size());
}

std::string read_text(const fs::path& path, std::uint64_t limit) {
  const MappedFile file(path);
  const auto bytes = file.bytes();
  if (bytes.size() > limit) {
    fail_user("{} is too large ({}; at most {} are read)", path.string(),
              format_bytes(static_cast<double>(bytes.size())), format_bytes(static_cast<double>(limit)));
  }
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

std::string read_rest(std::ifstream& stream, const fs::path& path) {
  try {
    return {std::istreambuf_iterator<char>(stream), {}};
  } catch (const std::ios_base::failure& error) {
    fail_user("cannot read {}: {}", path.string(), error.code().message());
  }
}

void write_text(const fs::path& path, std::string_view text) {
  const auto file = open_file(path, O_WRONLY | O_CREAT | O_TRUNC, "create");
  write_all(file, std::as_bytes(std::span(text)), path);
  sync_file(file, path);
}

StagedFile::StagedFile(fs::path path) : path_(std::move(path)), target_(without_links(path_)) {
  // Nobody locks what a killed process has left.
  for (int number = 0, error = EWOULDBLOCK; error == EWOULDBLOCK; ++number) {
    staging_ = partial_beside(target_, number);
    error = create_locked(file_, staging_);
  }
  if (!file_) fail_user("cannot create {}: {}", path_.string(), reason());
  if (::ftruncate(file_.get(), 0) != 0) fail_user("cannot write {}: {}", path_.string(), reason());
}

StagedFile::~StagedFile() {
  std::error_code ignored;
  if (!staging_.empty()) fs::remove(staging_, ignored);
}

void StagedFile::write(std::string_view text) { write_all(file_, std::as_bytes(std::span(text)), path_); }

void StagedFile::commit() {
  sync_file(file_, path_);
  std::error_code error;
  fs::rename(staging_, target_, error);
  if (error) fail_user("cannot write {}: {}", path_.string(), error.message());
  staging_.clear();
}

void replace_text(const fs::path& path, std::string_view text) {
  StagedFile file(path);
  file.write(text);
  file.commit();
}

bool overwrite_text(const fs::path& path, std::string_view text) {
  const FileDescriptor file(::open(path.c_str(), O_WRONLY | O_CLOEXEC));
  struct stat info {};
  constexpr off_t kBlock = 512;
  if (!file || ::fstat(file.get(), &info) != 0 || !S_ISREG(info.st_mode)) return false;
  if (static_cast<off_t>(text.size()) > kBlock * info.st_blocks) return false;
  write_all(file, std::as_bytes(std::span(text)), path);
  if (::ftruncate(file.get(), static_cast<off_t>(text.size())) != 0)
    fail_user("cannot write {}: {}", path.string(), reason());
  sync_file(file, path);
  return true;
}

void write_all(const FileDescriptor& file, std::span<const std::byte> data, const fs::path& path) {
  while (!data.empty()) {
    const ssize_t written = ::write(file.get(), data.data(), data.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) fail_user("cannot write {}: {}", path.string(), reason());
    data = data.subspan(static_cast<std::size_t>(written));
  }
}

void sync_file(const FileDescriptor& file, const fs::path& path) {
  if (::fsync(file.get()) != 0) fail_user("cannot write {} to the disk: {}", path.string(), reason());
}

void sync_directory(const fs::path& directory) {
  const FileDescriptor file = open_file(directory, O_RDONLY | O_DIRECTORY, "open");
  // Some network file systems cannot sync a directory and say EINVAL; there is nothing more to do there.
  if (::fsync(file.get()) != 0 && errno != EINVAL) {
    fail_user("cannot write {} to the disk: {}", directory.string(), reason());
  }
}

void sync_files_in(const fs::path& directory) {
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(directory, ignored)) {
    if (entry.is_regular_file(ignored)) try_to_sync(entry.path());
  }
  try_to_sync(directory);
}

void sync_path_to(const fs::path& directory) {
  const auto path = fs::absolute(directory).lexically_normal();
  for (auto above = path.parent_path(); above != above.parent_path(); above = above.parent_path())
    try_to_sync(above);
}

bool swap_names(const fs::path& one, const fs::path& other) {
  if (::renameat2(AT_FDCWD, one.c_str(), AT_FDCWD, other.c_str(), RENAME_EXCHANGE) == 0) return true;
  if (errno == EINVAL || errno == ENOSYS || errno == ENOTSUP) return false;
  fail_user("cannot swap {} and {}: {}", one.string(), other.string(), reason());
}

bool replace_symlink(const fs::path& link, const std::string& target) {
  const auto beside = partial_beside(link);
  std::error_code ignored;
  fs::remove(beside, ignored);
  std::error_code error;
  fs::create_symlink(target, beside, error);
  // vfat says EPERM.
  const bool without_links = error == std::errc::operation_not_permitted ||
                             error == std::errc::operation_not_supported ||
                             error == std::errc::function_not_supported;
  if (without_links) {
    error.clear();
    if (fs::is_symlink(fs::symlink_status(link, ignored))) fs::remove(link, error);
    if (!error) return false;
  }
  if (!error) fs::rename(beside, link, error);
  if (error) fail_user("cannot point {} at {}: {}", link.string(), target, error.message());
  sync_directory(link.parent_path());
  return true;
}

}  // namespace shoal
