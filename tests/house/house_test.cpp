// The walls of the house: an include goes downward only, and a vendor's header stays within the folder that
// wraps it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <optional>
#include <regex>
#include <set>
#include <sstream>
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

// From the top to the bottom: an arrow goes down. What a room may include is what its library links.
const std::vector<std::string> kRooms = {"cli",        "launch",   "planner",  "train", "report", "config",
                                         "serve",      "generate", "parallel", "optim", "model",  "data",
                                         "checkpoint", "comm",     "ops",      "core"};

using Links = std::map<std::string, std::set<std::string>>;

// The lines "shoal_room(NAME ... USES shoal_OTHER ...)" of the build, with what is linked indirectly.
Links links_of(std::istream& build) {
  static const std::regex kRoom(R"(shoal_room\((\w+)(/\w+)? .*USES (.*)\))"), kUsed(R"(shoal_([a-z]+))");
  Links links;
  for (std::string line; std::getline(build, line);) {
    std::smatch found;
    if (!std::regex_search(line, found, kRoom)) continue;
    auto& room = links[found[1]];
    const std::string used = found[3];
    for (std::sregex_iterator it(used.begin(), used.end(), kUsed), end; it != end; ++it) {
      const std::string other = (*it)[1];
      if (other == found[1] || !links.contains(other)) continue;
      room.insert(other);
      room.insert(links[other].begin(), links[other].end());
    }
  }
  return links;
}

const Links& links() {
  static const Links read = [] {
    std::ifstream build(fs::path(SHOAL_SOURCE_DIR) / "CMakeLists.txt");
    return links_of(build);
  }();
  return read;
}

// Headers of vendors by how their names begin, and the folders that may include them.
const std::vector<std::pair<std::string, std::vector<std::string>>>& vendors() {
  static const std::vector<std::pair<std::string, std::vector<std::string>>> folders{
      {"immintrin.h", {"ops/cpu/"}},
      {"cuda", {"ops/cuda/", "comm/nccl/"}},
      {"cub/", {"ops/cuda/"}},
      {"cublas", {"ops/cuda/"}},
      {"cudnn", {"ops/cuda/"}},
      {"nccl", {"comm/nccl/"}},
      {"mpi", {"comm/mpi/"}},
      {"archive", {"data/"}},
      {"zlib", {"data/"}},
      {"curl/", {"data/"}},
      {"openssl/", {"data/"}},
      {"utf8proc", {"core/", "data/"}},
      {"CLI/", {"cli/"}},
      {"toml++/", {"config/"}},
      {"google/protobuf/", {"report/"}},
      {"spdlog/", {"core/"}},
      {"httplib.h", {"serve/"}},
      {"xxhash", {"data/", "checkpoint/"}},
      {"nlohmann/", {"data/", "checkpoint/", "config/", "report/", "train/", "serve/", "cli/"}},
  };
  return folders;
}

std::string room_of(const std::string& path) { return path.substr(0, path.find('/')); }

// The rule that an include breaks, if any.
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
  if (!links().contains(from)) return says("src/" + from + " is not a room of the house");
  if (!links().contains(to)) return says("headers of ours are named from src/ on, \"room/header.h\"");
  if (from != to && !links().at(from).contains(to)) return says(from + " does not link " + to);
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

TEST(House, RoomsLinkOnlyWhatIsBelow) {
  ASSERT_EQ(links().size(), kRooms.size());
  for (const auto& [room, used] : links()) {
    const auto place = std::ranges::find(kRooms, room);
    ASSERT_NE(place, kRooms.end()) << room;
    for (const auto& other : used) {
      EXPECT_NE(std::find(place, kRooms.end(), other), kRooms.end())
          << room << " links " << other << " above it";
    }
  }
}

// A header and its source are one: "ops/cpu/matmul".
std::string stem_of(const std::string& file) { return file.substr(0, file.rfind('.')); }

// The files on a way of includes that comes back to where it began; none where there is no such way.
std::vector<std::string> find_cycle(const std::vector<Include>& includes) {
  std::map<std::string, std::set<std::string>> edges;
  for (const auto& include : includes) {
    if (!include.angled && stem_of(include.file) != stem_of(include.header)) {
      edges[stem_of(include.file)].insert(stem_of(include.header));
    }
  }
  std::set<std::string> done;
  std::vector<std::string> way;
  const std::function<bool(const std::string&)> visit = [&](const std::string& file) {
    if (done.contains(file)) return false;
    if (const auto before = std::ranges::find(way, file); before != way.end()) {
      way.erase(way.begin(), before);
      way.push_back(file);
      return true;
    }
    way.push_back(file);
    for (const auto& next : edges[file]) {
      if (visit(next)) return true;
    }
    way.pop_back();
    done.insert(file);
    return false;
  };
  for (const auto& include : includes) {
    if (visit(stem_of(include.file))) return way;
  }
  return {};
}

TEST(House, NoFilesIncludeEachOther) {
  const auto cycle = find_cycle(includes_under(fs::path(SHOAL_SOURCE_DIR) / "src"));
  EXPECT_TRUE(cycle.empty()) << fmt::format("{}", fmt::join(cycle, " -> "));
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

// By shoal_precompile, which keeps ccache from them: it may return what was made of older headers.
TEST(House, HeadersArePrecompiledInOnePlace) {
  std::vector<std::string> calls;
  const fs::path root = SHOAL_SOURCE_DIR;
  for (const char* folder : {"cmake", "tests", "bench", "."}) {
    for (const auto& entry : fs::directory_iterator(root / folder)) {
      const auto name = entry.path().filename();
      if (name != "CMakeLists.txt" && name.extension() != ".cmake") continue;
      std::ifstream file(entry.path());
      for (std::string line; std::getline(file, line);) {
        const bool reuses = line.find("REUSE_FROM") != line.npos;
        if (line.find("target_precompile_headers(") != line.npos && !reuses) calls.push_back(line);
      }
    }
  }
  EXPECT_THAT(calls, testing::ElementsAre("  target_precompile_headers(${target} PRIVATE ${ARGN})"));
}

// The rules themselves, so that the test above is known to be able to fail.
TEST(House, RefusesWhatGoesUpOrLeaves) {
  EXPECT_TRUE(objection({"ops/kernels.h", "model/config.h", false}));
  EXPECT_TRUE(objection({"core/log.h", "ops/kernels.h", false}));
  EXPECT_TRUE(objection({"data/text.cpp", "config/config.h", false}));
  EXPECT_TRUE(objection({"train/loop.cpp", "cli/cli.h", false}));
  EXPECT_TRUE(objection({"data/text.cpp", "checkpoint/reader.h", false}));  // below, and not linked
  EXPECT_TRUE(objection({"ops/cuda/matmul.cpp", "matmul.h", false}));
  EXPECT_TRUE(objection({"ops/reference/linear.cpp", "immintrin.h", true}));
  EXPECT_TRUE(objection({"parallel/mesh.cpp", "mpi.h", true}));
  EXPECT_TRUE(objection({"comm/threads/threads.cpp", "cuda_runtime_api.h", true}));
  EXPECT_TRUE(objection({"parallel/staging.cpp", "nccl.h", true}));
  EXPECT_TRUE(objection({"data/download.cpp", "toml++/toml.h", true}));
}

TEST(House, ReadsLinksFromTheBuild) {
  std::istringstream build(
      "shoal_room(core USES fmt::fmt)\nshoal_room(ops/cpu USES shoal_core Threads::Threads)\n"
      "shoal_room(ops USES shoal_ops_cpu)\nshoal_room(model LIGHT USES shoal_ops)\n");
  EXPECT_EQ(links_of(build), (Links{{"core", {}}, {"ops", {"core"}}, {"model", {"core", "ops"}}}));
}

TEST(House, FindsCycles) {
  using testing::ElementsAre;
  EXPECT_THAT(find_cycle({{"a/x.h", "a/y.h", false}, {"a/y.cpp", "a/z.h", false}, {"a/z.h", "a/y.h", false}}),
              ElementsAre("a/y", "a/z", "a/y"));
  EXPECT_THAT(find_cycle({{"a/x.h", "a/y.h", false}, {"a/x.cpp", "a/x.h", false}}), ElementsAre());
}

TEST(House, AllowsWhatGoesDown) {
  EXPECT_FALSE(objection({"main.cpp", "cli/cli.h", false}));
  EXPECT_FALSE(objection({"train/loop.cpp", "model/config.h", false}));
  EXPECT_FALSE(objection({"ops/cuda/matmul.cpp", "ops/cuda/matmul.h", false}));
  EXPECT_FALSE(objection({"ops/cpu/simd.h", "immintrin.h", true}));
  EXPECT_FALSE(objection({"comm/mpi/mpi.cpp", "mpi.h", true}));
  EXPECT_FALSE(objection({"model/gpt.cpp", "vector", true}));
}

}  // namespace
