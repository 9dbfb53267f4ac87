// A file of keys and values that all processes of a user share, for measurements that are made once and must
// then be the same everywhere. It is text, a line with a checksum for each value. Readers pass over other
// lines, and the last line of a key holds.
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
  // Without a file, or where its folder does not exist, nothing is shared; that is no error.
  explicit SharedTable(std::filesystem::path file) : file_(std::move(file)) {}

  // The value of a key, without waiting.
  std::optional<std::string> find(std::string_view key) const;
  // Returns the file's value if it is valid, and else the value of `make`, which is added to the file. Others
  // who ask meanwhile wait for it, up to a minute. Keys and values are one line each, keys without '='.
  std::string find_or_make(std::string_view key, const std::function<bool(std::string_view)>& valid,
                           const std::function<std::string()>& make) const;

 private:
  std::filesystem::path file_;
};

}  // namespace shoal
