// Runs the program as a user does, in a folder of its own, and captures its output.
#pragma once

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "data/temp_folder.h"

namespace shoal::test {

namespace fs = std::filesystem;

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr bool kSanitized = true;  // the program takes terabytes of addresses, and memory of its own
#else
inline constexpr bool kSanitized = false;
#endif

inline void write_file(const fs::path& path, std::string_view text) {
  fs::create_directories(fs::absolute(path).parent_path());
  std::ofstream(path, std::ios::binary) << text;
}

using TempDir = TempFolder;

// The number of occurrences of `word` in `text`.
inline int count(const std::string& text, const std::string& word) {
  int found = 0;
  for (auto at = text.find(word); at != std::string::npos; at = text.find(word, at + 1)) ++found;
  return found;
}

struct Result {
  int code = 0;  // 128 + signal when a signal ended it
  std::string out, err;
  double peak_bytes = 0;  // the largest resident size
};

// A running program. The destructor kills it unless it has been waited for.
class Process {
 public:
  // `environment` adds "NAME=value" entries to the test's own; "NAME" removes one.
  Process(const std::vector<std::string>& arguments, const fs::path& folder,
          const std::vector<std::string>& environment = {}) {
    pid_ = ::fork();
    if (pid_ == 0) exec(arguments, folder, environment);
  }
  ~Process() {
    if (pid_ > 0) ::kill(pid_, SIGKILL), ::waitpid(pid_, nullptr, 0);
  }
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;

  void signal(int number) const { ::kill(pid_, number); }
  bool has_ended() const {
    siginfo_t info{};
    return ::waitid(P_PID, static_cast<id_t>(pid_), &info, WEXITED | WNOHANG | WNOWAIT) == 0 &&
           info.si_pid != 0;
  }
  // Whether the program has installed a handler for a signal.
  bool catches(int number) const {
    const auto status = read_file("/proc/" + std::to_string(pid_) + "/status");
    const auto at = status.find("SigCgt:");
    return at != std::string::npos &&
           (std::stoull(status.substr(at + 7), nullptr, 16) >> (number - 1) & 1) != 0;
  }
  std::string out_so_far() const { return read_file(logs_ / "out"); }
  std::string err_so_far() const { return read_file(logs_ / "err"); }

  Result wait() {
    int status = 0;
    struct rusage usage {};
    ::wait4(pid_, &status, 0, &usage);
    pid_ = -1;
    return {WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status), out_so_far(), err_so_far(),
            1024.0 * static_cast<double>(usage.ru_maxrss)};
  }

 private:
  [[noreturn]] void exec(const std::vector<std::string>& arguments, const fs::path& folder,
                         const std::vector<std::string>& environment) {
    const auto redirect = [&](const char* name, int to) {
      ::dup2(::open((logs_ / name).c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600), to);
    };
    ::signal(SIGINT,
             SIG_DFL);  // a script's jobs in the background have it ignored, and the program keeps that
    redirect("out", STDOUT_FILENO);
    redirect("err", STDERR_FILENO);
    for (const auto& entry : environment) ::putenv(const_cast<char*>(entry.c_str()));
    std::vector<char*> argv = {const_cast<char*>("shoal")};
    for (const auto& argument : arguments) argv.push_back(const_cast<char*>(argument.c_str()));
    argv.push_back(nullptr);
    if (::chdir(folder.c_str()) == 0) ::execv(SHOAL_BINARY, argv.data());
    ::_exit(127);
  }

  TempDir logs_;
  pid_t pid_ = -1;
};

inline Result run(const std::vector<std::string>& arguments,
                  const fs::path& folder = fs::temp_directory_path(),
                  const std::vector<std::string>& environment = {}) {
  return Process(arguments, folder, environment).wait();
}

// Expects the result of a user's mistake: exit code 2, no standard output, and one line that starts with
// "shoal: error:" and contains the given words.
template <typename... Words>
void expect_user_error(const Result& result, const Words&... words) {
  EXPECT_EQ(result.code, 2) << result.err;
  EXPECT_EQ(result.out, "");
  EXPECT_THAT(result.err, testing::StartsWith("shoal: error: "));
  EXPECT_EQ(std::count(result.err.begin(), result.err.end(), '\n'), 1) << result.err;
  for (const std::string& word : {std::string(words)...}) EXPECT_THAT(result.err, testing::HasSubstr(word));
}

}  // namespace shoal::test
