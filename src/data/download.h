// The few files that Shoal fetches from the network. It first looks for local copies, verifies checksums, and
// keeps downloads in a cache.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>

#include "core/file.h"

namespace shoal {

struct RemoteFile {
  std::string_view name;      // below a data folder or mirror, e.g. "gpt2/vocab.bpe"
  std::string_view url;       // of the original
  std::int64_t size;          // bytes
  std::string_view checksum;  // SHA-256, hexadecimal
};

std::span<const RemoteFile> remote_files();
const RemoteFile& remote_file(std::string_view name);  // must be one of them

// SHOAL_DATA_DIR when it is set, or else "".
std::string default_source();

struct FetchOptions {
  std::string from = default_source();  // a folder, or the URL of one (http, https, file)
  std::filesystem::path cache;          // empty: default_cache()
};

// $XDG_CACHE_HOME/shoal, or ~/.cache/shoal.
std::filesystem::path default_cache();

// The path of a verified copy of `file`. Looks in the folder `from`, then in the cache, then downloads it to
// the cache: from the mirror `from` if that is a URL, otherwise from file.url. Throws UserError when the
// folder `from` does not exist, when the copy in it has another checksum, and when no copy is available; the
// message names the file, its URL, and the places where it may be put by hand.
std::filesystem::path fetch(const RemoteFile& file, const FetchOptions& options);

// Fetches GPT-2's encoder.json and vocab.bpe, and returns the folder that holds both.
std::filesystem::path fetch_gpt2_vocabulary(const FetchOptions& options);

// Waits for the lock of a file or folder that is being downloaded, and holds it as long as the result lives,
// beside other threads and processes; says `what` is waited for. Creates the file of the lock. Returns no
// file where the file system has no locks.
FileDescriptor wait_for_download(const std::filesystem::path& lock, std::string_view what);

// A file beside `path` that no other process or thread writes.
std::filesystem::path own_file_beside(const std::filesystem::path& path);

// Downloads `url` to `to`, which is complete or absent: the data first goes to `to`.partial, which a later
// call resumes; unless `locked` against others who write that, to a file of its own, which none resumes. If a
// resumed file has a wrong checksum, it is fetched once more from the start. Throws UserError when the server
// cannot be reached, refuses, stalls for 30 s, or sends something else.
void download(const std::string& url, const RemoteFile& file, const std::filesystem::path& to,
              bool locked = true);

}  // namespace shoal
