// The scripts: where they take programs, packages and folders from.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/wait.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <regex>
#include <string>

namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

const fs::path kSources = SHOAL_SOURCE_DIR;

std::string text_of(const fs::path& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

// Runs scripts in a folder of its own, whose bin/ comes first in PATH.
class Scripts : public testing::Test {
 protected:
  Scripts() {
    std::string name = (fs::temp_directory_path() / "shoal-scripts-XXXXXX").string();
    folder_ = mkdtemp(name.data());
    fs::create_directories(folder_ / "bin");
  }
  ~Scripts() override { fs::remove_all(folder_); }

  void add_program(const std::string& name, const std::string& script) const {
    std::ofstream(folder_ / "bin" / name) << "#!/bin/sh\n" << script << "\n";
    fs::permissions(folder_ / "bin" / name, fs::perms::owner_all);
  }
  // Returns the exit code; what the line prints is in output().
  int run(const std::string& line) const {
    std::ofstream(folder_ / "line.sh") << "PATH=$PWD/bin:$PATH\n" << line << "\n";
    const int status = std::system(("cd '" + folder_.string() + "' && bash line.sh >output 2>&1").c_str());
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }
  std::string output() const { return text_of(folder_ / "output"); }
  static std::string quoted(const char* path) { return "'" + (kSources / path).string() + "' "; }

  fs::path folder_;
};

TEST_F(Scripts, OfSlurmTakeNoOtherProgramForOneThatIsNotThere) {
  add_program("shoal", "echo the one in PATH");
  add_program("srun", "while [ \"$1\" != bash ]; do shift; done; \"$@\"");
  for (const char* file : {"deploy/slurm/one-node.sbatch", "deploy/slurm/many-nodes.sbatch"}) {
    const auto job = "SLURM_JOB_ID=1 SLURM_CPUS_PER_TASK=1 bash " + quoted(file) + "a.toml";
    EXPECT_EQ(run("SHOAL=$PWD/mistyped " + job), 2) << file;
    EXPECT_THAT(output(), HasSubstr("mistyped is no program"));
    for (const char* set : {"unset SHOAL; ", "export SHOAL=; ", "export SHOAL=shoal; "}) {
      EXPECT_EQ(run(set + job), 0) << file << set << output();
      EXPECT_THAT(output(), HasSubstr("the one in PATH"));
    }
  }
  EXPECT_EQ(run("SHOAL_MANY_NODES=mistyped bash " + quoted("deploy/slurm/gpu-nodes.sbatch") + "a.toml"), 2);
  EXPECT_THAT(output(), HasSubstr("mistyped is not found"));
}

TEST_F(Scripts, FindPackagesOnHold) {
  add_program("dpkg-query", "printf 'hold ok installed'");
  add_program("apt-get", "echo asked; exit 1");
  add_program("sudo", "echo asked; exit 1");
  EXPECT_EQ(run(quoted("scripts/install-deps.sh")), 0) << output();
  EXPECT_EQ(output(), "");
  add_program("dpkg-query", "printf 'deinstall ok config-files'");
  EXPECT_NE(run(quoted("scripts/install-deps.sh")), 0);
}

// A relative path that begins with neither . nor / is looked up in CDPATH first.
TEST_F(Scripts, LeaveCdpathAside) {
  static const std::regex kCd(R"((^|[\n (;])cd [^0-9])");
  int found = 0;
  for (const char* folder : {"scripts", "bench", "tests", "deploy"}) {
    for (const auto& entry : fs::recursive_directory_iterator(kSources / folder)) {
      if (entry.path().extension() != ".sh") continue;
      const auto text = text_of(entry.path());
      const bool has_library = text.find("/lib.sh\"\n") != std::string::npos;  // which unsets it
      std::smatch cd;
      if (!std::regex_search(text, cd, kCd)) continue;
      ++found;
      const auto unset = text.find("\nunset CDPATH");
      EXPECT_TRUE(unset < static_cast<std::size_t>(cd.position()) ||
                  (has_library && text.find("cd \"$(dirname") == std::string::npos))
          << entry.path() << " needs `unset CDPATH` before cd";
    }
  }
  EXPECT_GT(found, 20);
}

}  // namespace
