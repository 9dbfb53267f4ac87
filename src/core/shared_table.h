// A file of keys and values that all processes of a user share, for what is measured once and then has to be
// the same everywhere. It is text, a line for each value with a checksum; lines that are not such are passed
// over, and of several of one key the last one holds.
#pragma once

#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

namespace shoal {

// $XDG_CACHE_HOME/shoal, or ~/.cache/shoal; empty where neither variable is set.
std::filesystem::path cache_folder();

class SharedTable {
 public:
  // The file's folder exists, or nothing is shared; without a file, too. Neither is an error.
  explicit SharedTable(std::filesystem::path file) : file_(std::move(file)) {}

  // Waits for nobody.
  std::optional<std::string> find(std::string_view key) const;
  // What the file has, if it is valid; otherwise what `make` returns, which the file has from then on. Who
  // asks meanwhile waits for it, though not for ever. Keys and values are one line each, keys without '='.
  std::string find_or_make(std::string_view key, const std::function<bool(std::string_view)>& valid,
                           const std::function<std::string()>& make) const;

 private:
  std::filesystem::path file_;
};

}  // namespace shoal
