// A temporary folder for one test, removed with its contents; and the shared test data.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include "core/error.h"

namespace shoal::test {

class TempFolder {
 public:
  TempFolder() {
    std::string name = (std::filesystem::temp_directory_path() / "shoal-test-XXXXXX").string();
    path_ = mkdtemp(name.data());
  }
  ~TempFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TempFolder(const TempFolder&) = delete;
  TempFolder& operator=(const TempFolder&) = delete;

  const std::filesystem::path& path() const { return path_; }
  std::filesystem::path operator/(const std::filesystem::path& name) const { return path_ / name; }

  std::filesystem::path write(const std::string& name, std::string_view content) const {
    const auto file = path_ / name;
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file, std::ios::binary) << content;
    return file;
  }
  template <typename T>
  std::filesystem::path write_ids(const std::string& name, const std::vector<T>& ids) const {
    return write(name, {reinterpret_cast<const char*>(ids.data()), ids.size() * sizeof(T)});
  }

 private:
  std::filesystem::path path_;
};

inline std::string read_file(const std::filesystem::path& path) {
  std::ostringstream text;
  text << std::ifstream(path, std::ios::binary).rdbuf();
  return text.str();
}

// The folder with tinyshakespeare.txt and gpt2/; it is not part of the sources.
inline std::filesystem::path shared_data() {
  const char* set = std::getenv("SHOAL_DATA_DIR");
  return set && *set ? std::filesystem::path(set)
                     : std::filesystem::path(SHOAL_SOURCE_DIR) / "../shared/data";
}

#define SHOAL_NEEDS_SHARED(name)                                                      \
  if (!std::filesystem::exists(shoal::test::shared_data() / (name))) {                \
    GTEST_SKIP() << "needs " << (name) << " in the folder that SHOAL_DATA_DIR names"; \
  }

// The message of the UserError that `action` throws; "" and a test failure when it throws none.
template <typename Action>
std::string user_error(Action action) {
  try {
    action();
  } catch (const UserError& error) {
    return error.what();
  }
  ADD_FAILURE() << "expected a UserError";
  return {};
}

}  // namespace shoal::test
