// The walls of the house: an include goes downward only, and a vendor's header stays within the folder that
// wraps it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace {

namespace fs = std::filesystem;

struct Include {
  std::string file;    // relative to src/, e.g. "ops/cpu/matmul.cpp"
  std::string header;  // as written between the quotes or brackets
  bool angled;
};

// Which rooms each room may include besides itself.
const std::map<std::string, std::set<std::string>>& arrows() {
  static const std::map<std::string, std::set<std::string>> rooms{
      {"core", {}},
      {"ops", {"core"}},
      {"comm", {"core"}},
      {"data", {"core"}},
      {"checkpoint", {"core"}},
      {"model", {"core", "ops", "comm"}},
      {"optim", {"core", "ops"}},
      {"planner", {"core", "ops", "comm", "model"}},
      {"parallel", {"core", "ops", "comm", "model", "optim"}},
      {"generate", {"core", "ops", "comm", "model", "data", "checkpoint"}},
      {"train",
       {"core", "ops", "comm", "model", "optim", "data", "checkpoint", "planner", "parallel", "generate"}},
      {"cli",
       {"core", "ops", "comm", "model", "optim", "data", "checkpoint", "planner", "parallel", "generate",
        "train"}},
  };
  return rooms;
}

// Headers of vendors by how their names begin, and the folders that may include them.
const std::vector<std::pair<std::string, std::vector<std::string>>>& vendors() {
  static const std::vector<std::pair<std::string, std::vector<std::string>>> folders{
      {"oneapi/dnnl", {"ops/cpu/"}},
      {"dnnl", {"ops/cpu/"}},
      {"omp.h", {"ops/cpu/"}},
      {"immintrin.h", {"ops/cpu/"}},
      {"cuda", {"ops/cuda/", "comm/nccl/"}},
      {"cublas", {"ops/cuda/"}},
      {"cudnn", {"ops/cuda/"}},
      {"nccl", {"comm/nccl/"}},
      {"mpi", {"comm/mpi/"}},
      {"archive", {"data/"}},
      {"curl/", {"data/"}},
      {"utf8proc", {"core/", "data/"}},
      {"CLI/", {"cli/"}},
      {"toml++/", {"train/"}},
      {"google/protobuf/", {"train/"}},
      {"spdlog/", {"core/"}},
      {"xxhash", {"data/", "checkpoint/"}},
      {"nlohmann/", {"data/", "checkpoint/", "train/", "cli/"}},
  };
  return folders;
}

std::string room_of(const std::string& path) { return path.substr(0, path.find('/')); }

// What is wrong with an include, if anything.
std::optional<std::string> objection(const Include& include) {
  const auto says = [&](const std::string& why) {
    return include.file + " includes " + include.header + ": " + why;
  };
  if (include.angled) {
    for (const auto& [prefix, folders] : vendors()) {
      if (!include.header.starts_with(prefix)) continue;
      for (const auto& folder : folders) {
        if (include.file.starts_with(folder)) return std::nullopt;
      }
      return says("this vendor's headers stay within src/" + folders.front());
    }
    return std::nullopt;
  }
  if (include.file.find('/') == std::string::npos) return std::nullopt;  // main.cpp stands above the house
  const std::string from = room_of(include.file), to = room_of(include.header);
  if (!arrows().contains(from)) return says("src/" + from + " is not a room of the house");
  if (!arrows().contains(to)) return says("headers of ours are named from src/ on, \"room/header.h\"");
  if (from != to && !arrows().at(from).contains(to)) return says(from + " may not use " + to);
  return std::nullopt;
}

std::vector<Include> includes_of(const fs::path& path, const std::string& name) {
  std::vector<Include> includes;
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    std::erase(line, ' ');
    constexpr std::string_view kInclude = "#include";
    if (!line.starts_with(kInclude)) continue;
    const auto end = line.find_first_of("\">", kInclude.size() + 1);
    if (end == std::string::npos) continue;
    const auto begin = kInclude.size() + 1;
    includes.push_back({name, line.substr(begin, end - begin), line[begin - 1] == '<'});
  }
  return includes;
}

std::vector<Include> includes_under(const fs::path& root) {
  std::vector<Include> includes;
  for (const auto& entry : fs::recursive_directory_iterator(root)) {
    static const std::set<std::string> kSources{".h", ".cpp", ".cu", ".cuh"};
    if (!kSources.contains(entry.path().extension())) continue;
    const auto found = includes_of(entry.path(), fs::relative(entry.path(), root).generic_string());
    includes.insert(includes.end(), found.begin(), found.end());
  }
  return includes;
}

TEST(House, IncludesGoDownAndVendorsStayInTheirFolders) {
  const auto includes = includes_under(fs::path(SHOAL_SOURCE_DIR) / "src");
  ASSERT_GT(includes.size(), 50) << "the sources were not found";
  for (const auto& include : includes) {
    if (const auto wrong = objection(include)) ADD_FAILURE() << *wrong;
  }
}

TEST(House, EveryHeaderHasPragmaOnce) {
  const fs::path root = fs::path(SHOAL_SOURCE_DIR) / "src";
  for (const auto& entry : fs::recursive_directory_iterator(root)) {
    if (entry.path().extension() != ".h") continue;
    std::ifstream file(entry.path());
    const std::string text{std::istreambuf_iterator<char>(file), {}};
    EXPECT_THAT(text, testing::HasSubstr("#pragma once\n")) << entry.path();
  }
}

// The rules themselves, so that the test above is known to be able to fail.
TEST(House, RefusesWhatGoesUpOrLeaves) {
  EXPECT_TRUE(objection({"ops/backend.h", "model/config.h", false}));
  EXPECT_TRUE(objection({"core/log.h", "ops/backend.h", false}));
  EXPECT_TRUE(objection({"data/text.cpp", "train/config.h", false}));
  EXPECT_TRUE(objection({"train/loop.cpp", "cli/cli.h", false}));
  EXPECT_TRUE(objection({"ops/cpu/matmul.cpp", "matmul.h", false}));
  EXPECT_TRUE(objection({"ops/reference/linear.cpp", "dnnl.hpp", true}));
  EXPECT_TRUE(objection({"parallel/mesh.cpp", "mpi.h", true}));
  EXPECT_TRUE(objection({"comm/threads.cpp", "cuda_runtime_api.h", true}));
  EXPECT_TRUE(objection({"parallel/staging.cpp", "nccl.h", true}));
  EXPECT_TRUE(objection({"core/clock.h", "omp.h", true}));
  EXPECT_TRUE(objection({"data/download.cpp", "toml++/toml.h", true}));
}

TEST(House, AllowsWhatGoesDown) {
  EXPECT_FALSE(objection({"main.cpp", "cli/cli.h", false}));
  EXPECT_FALSE(objection({"train/loop.cpp", "model/config.h", false}));
  EXPECT_FALSE(objection({"ops/cpu/matmul.cpp", "ops/cpu/matmul.h", false}));
  EXPECT_FALSE(objection({"ops/cpu/matmul.cpp", "dnnl.hpp", true}));
  EXPECT_FALSE(objection({"comm/mpi/mpi.cpp", "mpi.h", true}));
  EXPECT_FALSE(objection({"model/gpt.cpp", "vector", true}));
}

}  // namespace
