#include "data/hub.h"

#include <fcntl.h>
#include <pwd.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <vector>

#include "core/error.h"
#include "core/file.h"
#include "core/log.h"
#include "data/download.h"
#include "data/file_digest.h"
#include "data/http.h"

namespace shoal {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kMostJson = 64 << 20;
constexpr std::string_view kSafetensors = "model.safetensors", kPickle = "pytorch_model.bin",
                           kIndex = ".index.json";

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value ? value : "";
}

// A path whose ~ or ~NAME at the beginning no shell has expanded, as Python's os.path.expanduser expands it.
std::string with_home(const std::string& path) {
  if (!path.starts_with('~')) return path;
  const auto end = std::min(path.find('/'), path.size());
  const auto name = path.substr(1, end - 1);
  std::string home = name.empty() ? variable("HOME") : "";
  if (home.empty()) {
    const passwd* user = name.empty() ? ::getpwuid(::getuid()) : ::getpwnam(name.c_str());
    if (!user) return path;
    home = user->pw_dir;
  }
  while (home.ends_with('/')) home.pop_back();
  return home + path.substr(end);
}

bool is_there(const fs::path& path) {
  std::error_code ignored;
  return fs::exists(path, ignored);
}

void make_folder(const fs::path& folder) {
  std::error_code error;
  fs::create_directories(folder, error);
  if (error) fail_user("cannot create {}: {}; HF_HOME names another place", folder.string(), error.message());
}

// A file of a model, as the hub describes it.
struct HubFile {
  std::string name, etag;
  std::int64_t size = 0;
};

// SHA-256 of large files, Git's checksum of small ones; others are not checked.
bool has_checksum(const fs::path& path, const std::string& etag) {
  if (etag.size() == 64) return sha256_of_file(path) == etag;
  if (etag.size() == 40) return git_digest_of_file(path) == etag;
  return true;
}

std::string without_network(std::string_view name, const HubOptions& options) {
  return fmt::format(
      "Without a network, put config.json, model.safetensors, vocab.json and merges.txt of {}/{} into a "
      "folder of "
      "your own and name that, or set HF_HOME to a cache that has the model",
      options.endpoint, name);
}

class HubModel {
 public:
  HubModel(std::string_view name, const HubOptions& options) : name_(name), options_(options) {
    std::string folder = "models--" + name_;
    if (const auto slash = folder.find('/'); slash != std::string::npos) folder.replace(slash, 1, "--");
    root_ = options.cache / folder;
  }

  // The snapshot of refs/main, if it is complete.
  std::optional<fs::path> cached() const {
    if (!is_there(root_ / "refs/main")) return std::nullopt;
    auto commit = read_text(root_ / "refs/main", 1000);
    while (!commit.empty() && std::isspace(static_cast<unsigned char>(commit.back()))) commit.pop_back();
    const auto folder = root_ / "snapshots" / commit;
    if (commit.empty() || !is_there(folder / "config.json") || !has_weights(folder)) return std::nullopt;
    return folder;
  }

  fs::path fetch() {
    const auto lock = wait_for_lock();
    locked_ = static_cast<bool>(lock);
    if (const auto folder = cached()) return *folder;  // another process has fetched it meanwhile
    ask("main");
    for (const auto& name : wanted()) get(name);
    get_tokenizer();
    make_folder(root_ / "refs");
    replace_text(root_ / "refs/main", commit_);
    const auto folder = cached();
    if (!folder) fail_user("{} is not complete in {}", name_, root_.string());
    return *folder;
  }

  // Fetches the tokenizer of a snapshot that has the other files.
  void complete(const fs::path& folder) {
    const auto lock = wait_for_lock();
    locked_ = static_cast<bool>(lock);
    if (knows_tokenizer(folder)) return;
    ask(folder.filename().string());
    get_tokenizer();
  }

  // Whether a snapshot has its tokenizer, or the hub is known to have none, which huggingface_hub's own cache
  // says in .no_exist, too.
  bool knows_tokenizer(const fs::path& folder) const {
    return std::ranges::all_of(kTokenizer, [&](const char* name) {
      return is_there(folder / name) || is_there(missing(folder.filename().string(), name));
    });
  }

 private:
  static constexpr const char* kTokenizer[] = {"vocab.json", "merges.txt"};

  FileDescriptor wait_for_lock() const {
    const auto folder = options_.cache / ".locks" / root_.filename();
    make_folder(folder);  // whose error names HF_HOME
    return wait_for_download(folder / "shoal.lock", name_);
  }

  // Learns the commit and the files of a revision.
  void ask(const std::string& revision) {
    const auto info =
        nlohmann::json::parse(text_of("/api/models/" + name_ + "/revision/" + revision), nullptr, false);
    if (!info.is_object() || !info.contains("sha") || !info["sha"].is_string() ||
        !info.contains("siblings")) {
      fail_user("{} does not answer as the hub does when asked for {}", options_.endpoint, name_);
    }
    commit_ = info["sha"].get<std::string>();
    if (commit_.empty() || commit_.find_first_not_of("0123456789abcdef") != std::string::npos)
      fail_user("{}: \"{}\" is no commit", options_.endpoint, commit_);
    for (const auto& sibling : info["siblings"]) {
      if (sibling.is_object()) files_.insert(sibling.value("rfilename", ""));
    }
  }

  fs::path missing(const std::string& commit, const char* name) const {
    return root_ / ".no_exist" / commit / name;
  }
  void get_tokenizer() {
    for (const char* name : kTokenizer) {
      if (files_.contains(name)) {
        get(name);
      } else {
        make_folder(root_ / ".no_exist" / commit_);
        write_text(missing(commit_, name), "");
      }
    }
  }

  fs::path snapshot() const { return root_ / "snapshots" / commit_; }

  // The parts of sharded weights are those of the index.
  static std::vector<std::string> parts_of(const fs::path& index) {
    const auto parsed = nlohmann::json::parse(read_text(index, kMostJson), nullptr, false);
    std::set<std::string> parts;
    if (parsed.is_object() && parsed.contains("weight_map") && parsed["weight_map"].is_object()) {
      for (const auto& [tensor, part] : parsed["weight_map"].items()) {
        const auto name = part.is_string() ? part.get<std::string>() : "";
        if (name.empty() || name.find('/') != std::string::npos || name == "..")
          fail_user("{}: \"{}\" is not the name of a file beside it", index.string(), name);
        parts.insert(name);
      }
    }
    if (parts.empty()) fail_user("{}: has no weight_map", index.string());
    return {parts.begin(), parts.end()};
  }

  static bool has_weights(const fs::path& folder) {
    for (const auto name : {kSafetensors, kPickle}) {
      if (is_there(folder / name)) return true;
      const auto index = folder / (std::string(name) + std::string(kIndex));
      if (!is_there(index)) continue;
      const auto parts = parts_of(index);
      return std::ranges::all_of(parts, [&](const auto& part) { return is_there(folder / part); });
    }
    return false;
  }

  std::vector<std::string> wanted() {
    if (!files_.contains("config.json")) fail_user("{} on {} has no config.json", name_, options_.endpoint);
    std::vector<std::string> names = {"config.json"};
    for (const char* name : {"generation_config.json", "vocab.json", "merges.txt", "tokenizer.json",
                             "tokenizer_config.json", "special_tokens_map.json"}) {
      if (files_.contains(name)) names.emplace_back(name);
    }
    for (const auto name : {kSafetensors, kPickle}) {
      const auto index = std::string(name) + std::string(kIndex);
      if (files_.contains(std::string(name))) {
        names.emplace_back(name);
        return names;
      }
      if (!files_.contains(index)) continue;
      get(index);
      const auto parts = parts_of(snapshot() / index);
      names.insert(names.end(), parts.begin(), parts.end());
      return names;
    }
    fail_user("{} has neither {} nor {}, nor an index of their parts", name_, kSafetensors, kPickle);
  }

  std::vector<std::string> headers() const {
    if (options_.token.empty()) return {};
    return {"Authorization: Bearer " + options_.token};
  }

  [[noreturn]] void refuse(const std::string& url, const HttpResponse& response) const {
    if (response.status == 401 || response.status == 403) {
      fail_user(
          "{} may not be read {}: it does not exist, or it is private or gated. Accept its terms on {}/{}, "
          "and set HF_TOKEN to a token of yours",
          name_, options_.token.empty() ? "without a token" : "with this token", options_.endpoint, name_);
    }
    if (response.status == 404) {
      fail_user("{}: there is no such file or model; names are ORG/NAME, as in hf:openai-community/gpt2",
                url);
    }
    fail_user("{}: {}. {}", url, response.problem, without_network(name_, options_));
  }

  std::string text_of(const std::string& path) const {
    std::string text;
    const auto url = options_.endpoint + path;
    const auto response = http_get({.url = url, .headers = headers(), .on_body = [&](std::string_view data) {
                                      text += data;
                                      return text.size() <= kMostJson;
                                    }});
    if (!response.problem.empty()) refuse(url, response);
    return text;
  }

  std::string url_of(const std::string& file) const {
    return fmt::format("{}/{}/resolve/{}/{}", options_.endpoint, name_, commit_, file);
  }

  HubFile describe(const std::string& name) const {
    const auto response = http_get({.url = url_of(name), .headers = headers(), .head = true});
    if (!response.problem.empty()) refuse(url_of(name), response);
    const auto header = [&](const char* key) {
      const auto found = response.headers.find(key);
      return found == response.headers.end() ? std::string() : found->second;
    };
    const bool linked = !header("x-linked-etag").empty();  // large files are elsewhere
    HubFile file{.name = name, .etag = header(linked ? "x-linked-etag" : "etag")};
    if (file.etag.starts_with("W/")) file.etag.erase(0, 2);
    std::erase(file.etag, '"');
    const auto size = header(linked ? "x-linked-size" : "content-length");
    file.size = size.empty() || size.find_first_not_of("0123456789") != std::string::npos || size.size() > 18
                    ? 0
                    : std::stoll(size);
    if (file.etag.empty() ||
        file.etag.find_first_not_of("0123456789abcdefghijklmnopqrstuvwxyz"
                                    "ABCDEFGHIJKLMNOPQRSTUVWXYZ-_.") != std::string::npos ||
        file.etag.starts_with('.')) {
      fail_user("{}: its ETag \"{}\" is no name for its contents", url_of(name), file.etag);
    }
    return file;
  }

  void get(const std::string& name) {
    const auto link = snapshot() / name;
    if (is_there(link)) return;
    const auto file = describe(name);
    const auto blob = root_ / "blobs" / file.etag;
    make_folder(blob.parent_path());
    make_folder(snapshot());
    if (!is_there(blob)) download(file, blob);
    if (!replace_symlink(link, "../../blobs/" + file.etag)) {
      fail_user(
          "the file system of {} cannot hold links, which a cache of the hub needs; HF_HOME names another "
          "place",
          link.string());
    }
  }

  HttpResponse append(const HubFile& file, const fs::path& partial) const try {
    return http_append({.url = url_of(file.name), .headers = headers()}, partial, file.name, file.size);
  } catch (const DownloadFileError& error) {
    fail_user("{}; HF_HOME names another place", error.what());
  }

  void download(const HubFile& file, const fs::path& blob) const {
    const auto partial = locked_ ? fs::path(blob.string() + ".incomplete") : own_file_beside(blob);
    for (int attempt = 0;; ++attempt) {
      std::error_code error;
      const bool resumed = is_there(partial) && fs::file_size(partial) > 0;
      const auto response = append(file, partial);
      if (!response.problem.empty() && !response.cannot_resume) {
        if (!locked_) fs::remove(partial, error);
        refuse(url_of(file.name), response);
      }
      if (response.problem.empty() && has_checksum(partial, file.etag)) break;
      fs::remove(partial, error);
      if (!resumed || attempt > 0)
        fail_user("{}: the server sent another file than its checksum says", url_of(file.name));
    }
    sync_file(open_file(partial, O_RDONLY, "open"), partial);  // nobody checks a blob again
    fs::rename(partial, blob);
    sync_directory(blob.parent_path());
  }

  std::string name_, commit_;
  bool locked_ = true;  // against other processes; false where the file system has no locks
  const HubOptions& options_;
  fs::path root_;
  std::set<std::string> files_;
};

}  // namespace

HubOptions HubOptions::from_environment() {
  HubOptions options;
  const auto first = [](std::initializer_list<std::string> values) {
    return *std::ranges::find_if(values, [](const auto& value) { return !value.empty(); });
  };
  const auto xdg = variable("XDG_CACHE_HOME");
  const auto hf_home =
      with_home(first({variable("HF_HOME"), (xdg.empty() ? "~/.cache" : xdg) + "/huggingface"}));
  options.cache = with_home(first({variable("HF_HUB_CACHE"), hf_home + "/hub"}));
  options.endpoint = first({variable("HF_ENDPOINT"), "https://huggingface.co"});
  while (options.endpoint.ends_with('/')) options.endpoint.pop_back();
  options.token = variable("HF_TOKEN");
  if (options.token.empty() && is_there(fs::path(hf_home) / "token"))
    options.token = read_text(fs::path(hf_home) / "token", 10'000);
  std::erase_if(options.token, [](unsigned char c) { return std::isspace(c) || std::iscntrl(c); });
  auto offline = variable("HF_HUB_OFFLINE");  // as huggingface_hub reads it
  std::ranges::transform(offline, offline.begin(), [](unsigned char c) { return std::toupper(c); });
  options.offline = offline == "1" || offline == "ON" || offline == "YES" || offline == "TRUE";
  return options;
}

bool is_hub_name(std::string_view text) {
  const auto is_name = [](std::string_view part) {
    return !part.empty() && part.size() <= 96 && part.front() != '.' && part.front() != '-' &&
           part.find("..") == std::string_view::npos && part.find("--") == std::string_view::npos &&
           std::ranges::all_of(
               part, [](unsigned char c) { return std::isalnum(c) || c == '-' || c == '_' || c == '.'; });
  };
  const auto slash = text.find('/');
  if (slash == std::string_view::npos) return is_name(text);
  return is_name(text.substr(0, slash)) && is_name(text.substr(slash + 1));
}

std::optional<fs::path> cached_hub_folder(std::string_view name, const HubOptions& options) {
  return HubModel(name, options).cached();
}

fs::path hub_folder(std::string_view name, const HubOptions& options) {
  HubModel model(name, options);
  if (const auto folder = model.cached()) return *folder;
  if (options.offline) {
    fail_user("{} is not in {}, and HF_HUB_OFFLINE forbids a download. {}", name, options.cache.string(),
              without_network(name, options));
  }
  return model.fetch();
}

void complete_hub_tokenizer(const fs::path& folder, const HubOptions& options) {
  const auto snapshots = folder.parent_path(), root = snapshots.parent_path();
  auto name = root.filename().string();
  const std::string_view prefix = "models--", between = "--";
  if (snapshots.filename() != "snapshots" || !name.starts_with(prefix) || root.parent_path() != options.cache)
    return;
  name.erase(0, prefix.size());
  if (const auto at = name.find(between); at != name.npos) name.replace(at, between.size(), "/");
  HubModel model(name, options);
  if (options.offline || model.knows_tokenizer(folder)) return;
  try {
    model.complete(folder);
  } catch (const UserError& error) {
    log::warn("{} is in the cache without its tokenizer, which cannot be fetched: {}", name, error.what());
  }
}

}  // namespace shoal
