#include "data/download.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <random>
#include <thread>

#include "core/error.h"
#include "core/host.h"
#include "core/log.h"
#include "core/shared_table.h"
#include "data/file_digest.h"
#include "data/http.h"

namespace shoal {
namespace {

namespace fs = std::filesystem;

// WikiText's first host is gone; its author's has the same files.
constexpr std::array<RemoteFile, 7> kFiles = {{
    {"tinyshakespeare.txt",
     "https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/input.txt", 1'115'394,
     "86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed"},
    {"gpt2/encoder.json", "https://openaipublic.blob.core.windows.net/gpt-2/models/124M/encoder.json",
     1'042'301, "196139668be63f3b5d6574427317ae82f612a97c5d1cdaf36ed2256dbf636783"},
    {"gpt2/vocab.bpe", "https://openaipublic.blob.core.windows.net/gpt-2/models/124M/vocab.bpe", 456'318,
     "1ce1664773c50f3e0cc8842619a93edc4624525b728b188a9e0be33b7726adc5"},
    {"wikitext-2-raw-v1.zip", "https://wikitext.smerity.com/wikitext-2-raw-v1.zip", 4'721'645,
     "ef7edb566e3e2b2d31b29c1fdb0c89a4cc683597484c3dc2517919c615435a11"},
    {"wikitext-2-v1.zip", "https://wikitext.smerity.com/wikitext-2-v1.zip", 4'475'746,
     "92675f1d63015c1c8b51f1656a52d5bdbc33aafa60cc47a218a66e7ee817488c"},
    {"wikitext-103-raw-v1.zip", "https://wikitext.smerity.com/wikitext-103-raw-v1.zip", 191'984'949,
     "91c00ae287f0d699e18605c84afc9e45c192bc6b7797ff8837e5474655a33794"},
    {"wikitext-103-v1.zip", "https://wikitext.smerity.com/wikitext-103-v1.zip", 190'229'076,
     "242ba0f20b329cfdf1ccc61e9e9e5b59becf189db7f7a81cd2a0e2fc31539590"},
}};

bool is_url(std::string_view text) { return text.find("://") != std::string_view::npos; }

bool is_good(const fs::path& path, const RemoteFile& file) {
  std::error_code error;
  return fs::is_regular_file(path, error) && static_cast<std::int64_t>(fs::file_size(path)) == file.size &&
         sha256_of_file(path) == file.checksum;
}

void make_folder_of(const fs::path& file) {
  std::error_code error;
  fs::create_directories(file.parent_path(), error);
  if (error) fail_user("{}: cannot be created: {}", file.parent_path().string(), error.message());
}

}  // namespace

std::span<const RemoteFile> remote_files() { return kFiles; }

const RemoteFile& remote_file(std::string_view name) {
  const auto* const found = std::ranges::find(kFiles, name, &RemoteFile::name);
  if (found == kFiles.end()) fail("{}: no file of this name is known", name);
  return *found;
}

std::string default_source() {
  const char* value = std::getenv("SHOAL_DATA_DIR");
  return value == nullptr ? "" : value;
}

fs::path default_cache() {
  const auto folder = cache_folder();
  if (folder.empty()) fail_user("neither XDG_CACHE_HOME nor HOME is set, so there is no place for downloads");
  return folder;
}

FileDescriptor wait_for_download(const fs::path& lock, std::string_view what) {
  make_folder_of(lock);
  auto file = open_file(lock, O_RDWR | O_CREAT, "create");
  for (bool told = false; !try_lock(file); told = true) {
    if (errno != EWOULDBLOCK && errno != EINTR) return FileDescriptor();
    if (!told) log::info("another process downloads {}", what);
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
  }
  return file;
}

// Processes of containers may share host names and ids.
fs::path own_file_beside(const fs::path& path) {
  return fmt::format("{}.{}.{}.{:08x}.partial", path.string(), host_name(), ::getpid(),
                     std::random_device{}());
}

void download(const std::string& url, const RemoteFile& file, const fs::path& to, bool locked) {
  make_folder_of(to);
  std::error_code error;
  const auto partial = locked ? fs::path(to.string() + ".partial") : own_file_beside(to);

  for (;;) {
    const bool resumed = fs::exists(partial, error) && fs::file_size(partial) > 0;
    const auto response = http_append({.url = url}, partial, std::string(file.name), file.size);
    auto problem = response.problem;
    bool useless = response.cannot_resume;
    if (problem.empty()) {
      if (is_good(partial, file)) break;
      problem = "the server sent another file (size or checksum)";
      useless = true;
    }
    if (useless || !locked || fs::file_size(partial) == 0) fs::remove(partial, error);
    if (!(useless && resumed)) fail_user("{}: cannot be downloaded: {}", url, problem);
  }
  fs::rename(partial, to);
}

fs::path fetch(const RemoteFile& file, const FetchOptions& options) {
  const auto& from = options.from;
  const bool mirror = is_url(from);
  if (!from.empty() && !mirror) {
    const auto path = fs::path(from) / file.name;
    std::error_code error;
    if (!fs::is_directory(from, error)) fail_user("{}: no such folder to take {} from", from, file.name);
    if (is_good(path, file)) return path;
    if (fs::exists(path, error)) {
      fail_user("{}: not the file that {} serves (size or checksum); replace or remove it", path.string(),
                file.url);
    }
  }
  const auto cached = (options.cache.empty() ? default_cache() : options.cache) / file.name;
  if (is_good(cached, file)) return cached;

  const auto url =
      mirror ? fmt::format("{}{}{}", from, from.ends_with('/') ? "" : "/", file.name) : std::string(file.url);
  try {
    const auto lock = wait_for_download(cached.string() + ".lock", file.name);
    if (!is_good(cached, file)) download(url, file, cached, static_cast<bool>(lock));
  } catch (const DownloadFileError& error) {
    fail_user("{}; XDG_CACHE_HOME names another place", error.what());
  } catch (const UserError& error) {
    // The files of one folder are needed together.
    const auto cache = options.cache.empty() ? default_cache() : options.cache;
    std::string urls(file.url), names(file.name), places = cached.string();
    for (const auto& other : kFiles) {
      const auto folder = fs::path(file.name).parent_path();
      if (other.name == file.name || folder.empty() || fs::path(other.name).parent_path() != folder) continue;
      urls += fmt::format(" and {}", other.url);
      names += fmt::format(" and {}", other.name);
      places += fmt::format(" and {}", (cache / other.name).string());
    }
    fail_user(
        "{}\nWithout a network, get {} elsewhere\nand put {},\nor name a folder that holds {} with "
        "SHOAL_DATA_DIR.",
        error.what(), urls, places, names);
  }
  return cached;
}

fs::path fetch_gpt2_vocabulary(const FetchOptions& options) {
  const auto& ids = remote_file("gpt2/encoder.json");
  const auto& merges = remote_file("gpt2/vocab.bpe");
  const auto first = fetch(ids, options).parent_path();
  const auto second = fetch(merges, options).parent_path();
  if (first == second) return first;
  // One was found in `from` and one in the cache: completes the cache.
  const auto cache = (options.cache.empty() ? default_cache() : options.cache) / "gpt2";
  const auto& from = first == cache ? second : first;
  const auto& missing = first == cache ? merges : ids;
  const auto name = fs::path(missing.name).filename();
  if (is_good(cache / name, missing)) return cache;
  const auto copy = own_file_beside(cache / name);  // other processes may read the old file
  fs::copy_file(from / name, copy);
  fs::rename(copy, cache / name);
  return cache;
}

}  // namespace shoal
