// shoal-simulate: training runs among faults, in a simulated world. One seed is one scenario; the same seed
// is always the same.
#include <fmt/format.h>
#include <malloc.h>
#include <sched.h>
#include <sys/personality.h>
#include <sys/wait.h>
#include <unistd.h>
#include <CLI/CLI.hpp>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <sstream>
#include <thread>

#include "core/clock.h"
#include "core/error.h"
#include "core/file.h"
#include "core/log.h"
#include "simulate/run_seed.h"

namespace shoal::simulate {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

struct Range {
  std::uint64_t first = 1, last = 1;
  std::uint64_t count() const { return last - first + 1; }
};

Range parse_range(const std::string& text) {
  Range range;
  char colon = 0;
  std::istringstream in(text);
  if (!(in >> range.first)) fail_user("--seeds takes FIRST:LAST, and not {}", text);
  range.last = range.first;
  if (in >> colon && !(colon == ':' && in >> range.last))
    fail_user("--seeds takes FIRST:LAST, and not {}", text);
  if (range.last < range.first) fail_user("--seeds {}: the last is before the first", text);
  return range;
}

// Addresses decide the order of some containers, so they must be the same in every process.
void fix_addresses(char** arguments) {
  const int now = ::personality(0xffffffff);
  if (now < 0 || (now & ADDR_NO_RANDOMIZE) != 0) return;
  if (::personality(static_cast<unsigned long>(now) | ADDR_NO_RANDOMIZE) < 0) return;
  ::execv("/proc/self/exe", arguments);
}

// All threads of a simulation run on one core: they take turns, and waking one on another core takes longer.
void stay_on_core(int number) {
  cpu_set_t allowed, one;
  if (::sched_getaffinity(0, sizeof allowed, &allowed) != 0) return;
  int left = number % CPU_COUNT(&allowed);
  for (std::size_t core = 0; core < CPU_SETSIZE; ++core) {
    if (!CPU_ISSET(core, &allowed) || left-- > 0) continue;
    CPU_ZERO(&one);
    CPU_SET(core, &one);
    ::sched_setaffinity(0, sizeof one, &one);
    return;
  }
}

// A folder of this process, in memory where there is such a folder.
class Folder {
 public:
  Folder()
      : path_((::access("/dev/shm", W_OK) == 0 ? fs::path("/dev/shm") : fs::temp_directory_path()) /
              fmt::format("shoal-simulate-{:07}", ::getpid())),
        owner_(::getpid()) {
    fs::create_directories(path_);
  }
  ~Folder() {
    std::error_code ignored;
    if (::getpid() == owner_) fs::remove_all(path_, ignored);
  }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  const fs::path& path() const { return path_; }

 private:
  fs::path path_;
  pid_t owner_;
};

void replay(std::uint64_t seed, References& references, const fs::path& folder, bool trace, SeedEnd& end) {
  const auto scenario = draw_scenario(seed);
  if (trace) fmt::print("seed {}: {}\n", seed, to_string(scenario));
  end = run_seed(seed, scenario, references, folder / fmt::format("seed-{}", seed), trace);
}

// Runs every `stride`-th seed, and writes a line for each.
[[noreturn]] void work(Range range, std::uint64_t offset, std::uint64_t stride, References& references,
                       const fs::path& folder, int pipe) {
  const FileDescriptor out(pipe);
  for (std::uint64_t seed = range.first + offset; seed <= range.last; seed += stride) {
    SeedEnd end;
    replay(seed, references, folder, false, end);
    const json line = {{"seed", seed},
                       {"failure", end.failure.substr(0, 2000)},
                       {"happened", end.happened},
                       {"attempts", end.attempts}};
    const auto text = line.dump(-1, ' ', false, json::error_handler_t::replace) + "\n";
    write_all(out, std::as_bytes(std::span(text)), "the pipe");
  }
  ::_exit(0);
}

class Summary {
 public:
  explicit Summary(Range range) : range_(range) {}

  void add(const json& line) {
    ++done_;
    attempts_ += line["attempts"].get<int>();
    for (const auto& [kind, count] : line["happened"].items()) happened_[kind] += count.get<int>();
    const std::string failure = line["failure"];
    if (!failure.empty()) {
      failed_.push_back(line["seed"]);
      const auto scenario = to_string(draw_scenario(line["seed"]));
      fmt::print("{}seed {}: {}\n  {}\n", ::isatty(1) != 0 ? "\r\033[K" : "",
                 line["seed"].get<std::uint64_t>(), failure, scenario);
    }
    const double seconds = watch_.seconds();
    const double rate = static_cast<double>(done_) / seconds;
    if (::isatty(1) == 0) return;
    fmt::print("\r\033[K{} of {} seeds, {:.0f} a second, {} failed, {:.0f} s to go", done_, range_.count(),
               rate, failed_.size(), static_cast<double>(range_.count() - done_) / rate);
    std::fflush(stdout);
  }

  bool any_failed() const { return !failed_.empty(); }

  int end() const {
    if (::isatty(1) != 0) fmt::print("\r\033[K");
    fmt::print("{} seeds in {:.1f} s ({:.1f} a second), {} attempts\n", done_, watch_.seconds(),
               static_cast<double>(done_) / watch_.seconds(), attempts_);
    for (const auto& [kind, count] : happened_) fmt::print("  {:<14} {:>6}\n", kind, count);
    if (failed_.empty() && done_ < range_.count())
      fmt::print("{} seeds gave no answer\n", range_.count() - done_);
    if (failed_.empty() && done_ == range_.count()) return fmt::print("all hold\n"), 0;
    if (!failed_.empty()) {
      fmt::print("{} failed; again with shoal-simulate --seed {} --trace\n", failed_.size(), failed_.front());
    }
    return 1;
  }

 private:
  Range range_;
  Stopwatch watch_;
  std::uint64_t done_ = 0;
  int attempts_ = 0;
  std::map<std::string, int> happened_;
  std::vector<std::uint64_t> failed_;
};

int run_range(Range range, int jobs, bool fail_fast, References& references, const fs::path& folder) {
  int ends[2];
  if (::pipe(ends) != 0) fail("there is no pipe");
  Summary summary(range);
  std::vector<pid_t> workers;
  for (int job = 0; job < jobs; ++job) {
    std::fflush(nullptr);
    if (const pid_t worker = ::fork(); worker != 0) {
      workers.push_back(worker);
      continue;
    }
    ::close(ends[0]);
    stay_on_core(job);
    work(range, static_cast<std::uint64_t>(job), static_cast<std::uint64_t>(jobs), references, folder,
         ends[1]);
  }
  ::close(ends[1]);
  std::FILE* in = ::fdopen(ends[0], "r");
  char* line = nullptr;
  std::size_t size = 0;
  while (!(fail_fast && summary.any_failed()) && ::getline(&line, &size, in) > 0)
    summary.add(json::parse(line));
  for (const pid_t worker : workers) ::kill(worker, SIGTERM);  // if there are any left
  std::free(line);
  std::fclose(in);
  while (::wait(nullptr) > 0) {
  }
  return summary.end();
}

int run_one(std::uint64_t seed, bool trace, References& references, const fs::path& folder) {
  SeedEnd end;
  stay_on_core(0);
  replay(seed, references, folder, trace, end);
  if (end.failure.empty()) return fmt::print("seed {} holds\n", seed), 0;
  fmt::print("seed {}: {}\n", seed, end.failure);
  return 1;
}

int simulate(int count, char** arguments) {
  CLI::App app(
      "Training runs among faults, in a simulated world: killed and frozen ranks, lost hosts, late messages, "
      "full disks, "
      "power cuts, damaged checkpoints, other layouts. Each run has to end with the undisturbed one's "
      "bytes.");
  std::string seeds = "1:200";
  std::uint64_t seed = 0;
  bool trace = false, fail_fast = false;
  int jobs = static_cast<int>(std::thread::hardware_concurrency());
  auto* range = app.add_option("--seeds", seeds, "The scenarios FIRST:LAST")->capture_default_str();
  auto* one = app.add_option("--seed", seed, "One scenario")->excludes(range);
  app.add_flag("--trace", trace, "Print every message and change of a file")->needs(one);
  app.add_flag("--fail-fast", fail_fast, "Stop at the first scenario that fails");
  app.add_option("--jobs", jobs, "Scenarios at a time")->check(CLI::PositiveNumber)->capture_default_str();
  try {
    app.parse(count, arguments);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  log::set_level(log::Level::error);
  const Folder folder;
  References references(folder.path() / "references");
  for (const auto& training : trainings()) references.checkpoint(training);
  if (*one) return run_one(seed, trace, references, folder.path());
  return run_range(parse_range(seeds), jobs, fail_fast, references, folder.path());
}

}  // namespace
}  // namespace shoal::simulate

int main(int count, char** arguments) {
  shoal::simulate::fix_addresses(arguments);
  // One arena, since one thread runs at a time, and no page given back, since attempts are short.
  ::mallopt(M_ARENA_MAX, 1);
  ::mallopt(M_TRIM_THRESHOLD, 1 << 30);
  ::mallopt(M_TOP_PAD, 8 << 20);
  try {
    return shoal::simulate::simulate(count, arguments);
  } catch (const shoal::UserError& error) {
    fmt::print(stderr, "shoal-simulate: {}\n", error.what());
    return 2;
  } catch (const std::exception& error) {
    fmt::print(stderr, "shoal-simulate: {}\n", error.what());
    return 1;
  }
}
