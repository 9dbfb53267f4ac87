// The documents: every file that they name is there, and the changelog begins with the version.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <string_view>
#include <vector>

namespace {

namespace fs = std::filesystem;
using testing::ElementsAre;
using testing::HasSubstr;

const fs::path kRoot = SHOAL_SOURCE_DIR;

std::string read(const fs::path& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

bool in_path(char c) {
  return std::isalnum(static_cast<unsigned char>(c)) ||
         std::string_view("_./-*").find(c) != std::string_view::npos;
}

// Files of the project that a text names by their path from the root: "configs/quickstart.toml".
std::vector<std::string> named_files(const std::string& text) {
  std::vector<std::string> names;
  for (const std::string folder : {"configs/", "docs/", "scripts/", "deploy/", "bench/", "tests/", "src/"}) {
    for (auto at = text.find(folder); at != std::string::npos; at = text.find(folder, at + 1)) {
      if (at > 0 && in_path(text[at - 1])) continue;
      const auto end = std::find_if_not(text.begin() + static_cast<std::ptrdiff_t>(at), text.end(), in_path);
      std::string name(text.begin() + static_cast<std::ptrdiff_t>(at), end);
      while (name.ends_with('.')) name.pop_back();
      const bool pattern = name.find('*') != std::string::npos;
      if (!pattern && fs::path(name).has_extension()) names.push_back(name);
    }
  }
  return names;
}

// Targets of a Markdown text's links, but for those on other hosts: [words](target).
std::vector<std::string> linked_files(const std::string& text) {
  std::vector<std::string> names;
  for (auto at = text.find("]("); at != std::string::npos; at = text.find("](", at + 1)) {
    auto name = text.substr(at + 2, text.find(')', at) - at - 2);
    if (name.find("://") == std::string::npos) names.push_back(name.substr(0, name.find('#')));
  }
  return names;
}

std::vector<fs::path> files_with(const std::vector<std::string>& extensions,
                                 const std::vector<std::string>& folders) {
  std::vector<fs::path> files;
  for (const auto& folder : folders) {
    for (const auto& entry : fs::recursive_directory_iterator(kRoot / folder)) {
      if (std::ranges::count(extensions, entry.path().extension().string()) > 0)
        files.push_back(entry.path());
    }
  }
  return files;
}

TEST(Documents, NameFilesThatAreThere) {
  auto documents = files_with({".md", ".toml", ".sbatch", ".yaml"}, {"docs", "configs", "deploy"});
  for (const char* name : {"README.md", "CONTRIBUTING.md", "CHANGELOG.md", "Makefile"})
    documents.push_back(kRoot / name);
  std::size_t names = 0;
  for (const auto& document : documents) {
    const auto text = read(document);
    for (const auto& name : named_files(text)) {
      EXPECT_TRUE(fs::exists(kRoot / name)) << document.string() << " names " << name;
      ++names;
    }
    if (document.extension() != ".md") continue;
    for (const auto& name : linked_files(text))
      EXPECT_TRUE(fs::exists(document.parent_path() / name)) << document.string() << " links to " << name;
  }
  EXPECT_GT(names, 50u);
}

// Help, errors and scripts send readers to configs and documents.
TEST(Documents, AreThereWhereTheProgramNamesThem) {
  for (const auto& source : files_with({".cpp", ".h", ".sh"}, {"src", "scripts", "bench"})) {
    for (const auto& name : named_files(read(source))) {
      if (!name.starts_with("configs/") && !(name.starts_with("docs/") && name.ends_with(".md"))) continue;
      EXPECT_TRUE(fs::exists(kRoot / name)) << source.string() << " names " << name;
    }
  }
}

TEST(Documents, AreFoundInText) {
  EXPECT_THAT(
      named_files("see docs/a.md. `configs/b.toml`, build/docs/c.md, tests/cpu_*_test.cpp and src/ops/"),
      ElementsAre("configs/b.toml", "docs/a.md"));
  EXPECT_THAT(linked_files("[a](b.md), [c](https://d.org/e) and [f](../g.md#h)"),
              ElementsAre("b.md", "../g.md"));
}

TEST(Changelog, BeginsWithTheVersion) {
  const auto project = read(kRoot / "CMakeLists.txt");
  const auto at = project.find("project(shoal VERSION ") + 22;
  const auto version = project.substr(at, project.find(' ', at) - at);
  const auto changelog = read(kRoot / "CHANGELOG.md");
  const auto first = changelog.find("\n## [");
  ASSERT_NE(first, std::string::npos);
  EXPECT_EQ(changelog.substr(first + 5, changelog.find(']', first) - first - 5), version);
}

}  // namespace
