#include "launch/hosts.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>
#include <string_view>
#include <system_error>
#include <thread>
#include <utility>

#include "core/error.h"
#include "core/host.h"
#include "core/text.h"
#include "launch/process.h"

namespace shoal {
namespace {

constexpr int kMostRanks = 1'000'000;  // on all hosts, as of -n

// A host of `where` after those in `hosts`. `form`: how hosts are written there.
Host parse_host(const std::string& text, const std::vector<Host>& hosts, const std::string& where,
                std::string_view form) {
  Host host{.name = text.substr(0, text.find(':'))};
  bool good = true, too_large = false;
  if (host.name.size() < text.size()) {
    const char *first = text.data() + host.name.size() + 1, *last = text.data() + text.size();
    const auto [end, error] = std::from_chars(first, last, host.slots);
    good = end == last && first != last;
    too_large = error == std::errc::result_out_of_range;
  }
  // The remote shell would read a name that starts with a dash as an option.
  const bool named =
      !host.name.empty() && host.name.front() != '-' && host.name.find_first_of(" \t,") == std::string::npos;
  if (!named || !good || host.slots < 1)
    fail_user("{}: '{}' is not a host; write HOST or HOST:RANKS, {}", where, text, form);
  if (too_large || host.slots > kMostRanks - total_slots(hosts))
    fail_user("{}: '{}' makes more than {} ranks in all; lower its number", where, text,
              with_commas(kMostRanks));
  return host;
}

bool is_this_machine(const std::string& name) {
  const auto full = host_name();
  return name == "localhost" || name == "127.0.0.1" || name == full || name == full.substr(0, full.find('.'));
}

std::string quoted(const std::string& text) {
  std::string result = "'";
  for (const char c : text) result += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return result + "'";
}

constexpr int kNoFolder = 91, kNoProgram = 92;  // exit codes that neither shells nor ssh use

std::vector<std::string> check_command(const std::string& host, const std::string& remote_shell,
                                       const std::string& program) {
  std::vector<std::string> words;
  std::istringstream stream(remote_shell);
  for (std::string word; stream >> word;) words.push_back(word);
  if (words.size() == 1 && std::filesystem::path(words[0]).filename() == "ssh") {
    words.insert(words.end(), {"-o", "BatchMode=yes", "-o", "ConnectTimeout=5"});
  }
  words.push_back(host);
  words.push_back(fmt::format("cd {} || exit {}; test -x {} || exit {}",
                              quoted(std::filesystem::current_path().string()), kNoFolder, quoted(program),
                              kNoProgram));
  return words;
}

std::string last_line(std::string text) {
  while (!text.empty() && (text.back() == '\n' || text.back() == '\r')) text.pop_back();
  return text.substr(text.find_last_of('\n') + 1);
}

std::string does_not_answer(const std::string& said) {
  const auto line = last_line(said);
  return "does not answer" + (line.empty() ? "" : " (" + line + ")");
}

std::string objection_of(const ExitStatus& end, const std::string& said, const std::string& program) {
  if (end.signal == 0 && end.code == 0) return "";
  if (end.code == kNoFolder) {
    return fmt::format(
        "has no folder {}; every host needs the run's folders at the same path, on a shared disk",
        std::filesystem::current_path().string());
  }
  if (end.code == kNoProgram)
    return fmt::format("has no program {}; every host needs it at the same path", program);
  return does_not_answer(said);
}

std::string without_comment(const std::string& line) {
  const auto text = line.substr(0, line.find('#'));
  const auto first = text.find_first_not_of(" \t\r");
  return first == std::string::npos ? "" : text.substr(first, text.find_last_not_of(" \t\r") + 1 - first);
}

}  // namespace

std::vector<Host> parse_hosts(const std::string& text) {
  std::vector<Host> hosts;
  std::set<std::string> names;
  std::istringstream stream(text);
  for (std::string item; std::getline(stream, item, ',');) {
    hosts.push_back(parse_host(item, hosts, "--hosts", "separated by commas, e.g. --hosts a:2,b:2"));
    if (!names.insert(hosts.back().name).second)
      fail_user("--hosts names {} twice; write {}:RANKS", hosts.back().name, hosts.back().name);
  }
  return hosts;
}

std::vector<Host> read_hosts(const std::filesystem::path& file) {
  std::ifstream stream(file);
  if (!stream) fail_user("{}: cannot read the hosts: {}", file.string(), std::strerror(errno));
  std::vector<Host> hosts;
  int number = 0;
  for (std::string line; std::getline(stream, line);) {
    ++number;
    const auto text = without_comment(line);
    if (text.empty()) continue;
    const auto where = fmt::format("{}:{}", file.string(), number);
    const auto host = parse_host(text, hosts, where, "one per line");
    if (std::ranges::find(hosts, host.name, &Host::name) != hosts.end())
      fail_user("{}: {} is named twice; write {}:RANKS once", where, host.name, host.name);
    hosts.push_back(host);
  }
  if (stream.bad()) fail_user("{}: cannot read the hosts: {}", file.string(), std::strerror(errno));
  if (hosts.empty()) fail_user("{} names no host; write HOST or HOST:RANKS, one per line", file.string());
  return hosts;
}

std::string to_string(const std::vector<Host>& hosts) {
  std::string text;
  for (const auto& host : hosts)
    text += fmt::format("{}{}:{}", text.empty() ? "" : ",", host.name, host.slots);
  return text;
}

int total_slots(const std::vector<Host>& hosts) {
  int slots = 0;
  for (const auto& host : hosts) slots += host.slots;
  return slots;
}

int fewest_on_a_host(const std::vector<Host>& hosts, int ranks) {
  const auto filled = filled_hosts(hosts, ranks);
  return filled.empty() ? 0 : std::ranges::min_element(filled, {}, &Host::slots)->slots;
}

std::vector<Host> filled_hosts(const std::vector<Host>& hosts, int ranks) {
  std::vector<Host> filled;
  for (auto host = hosts.begin(); host != hosts.end() && ranks > 0; ++host) {
    filled.push_back({host->name, std::min(host->slots, ranks)});
    ranks -= filled.back().slots;
  }
  return filled;
}

HostCheck::HostCheck(std::string host, const std::string& remote_shell, std::string program)
    : host_(std::move(host)), program_(std::move(program)) {
  if (is_this_machine(host_)) return;
  command_ = check_command(host_, remote_shell, program_);
  start();
}

// A check cannot start while the launcher has too many files or processes; a later call tries again.
void HostCheck::start() {
  try {
    child_ = std::make_unique<ChildProcess>(command_);
    said_.clear();
  } catch (const Error& error) {
    said_ = error.what();
  }
}

HostCheck::~HostCheck() = default;
HostCheck::HostCheck(HostCheck&&) noexcept = default;
HostCheck& HostCheck::operator=(HostCheck&&) noexcept = default;

std::optional<std::string> HostCheck::objection(double seconds) {
  constexpr double kRetry = 0.1;
  if (command_.empty()) return "";
  const Stopwatch waiting;
  while (true) {
    const double left = std::max(std::min(seconds - waiting.seconds(), kLimit - watch_.seconds()), 0.0);
    if (!child_) start();
    if (child_) {
      const auto events = child_->wait_for_events(left);
      said_ += events.err;
      if (events.ended) return objection_of(child_->end(), said_, program_);
    } else {
      std::this_thread::sleep_for(std::chrono::duration<double>(std::min(left, kRetry)));
    }
    if (watch_.seconds() >= kLimit) return child_ ? "does not answer" : does_not_answer(said_);
    if (waiting.seconds() >= seconds) return std::nullopt;
  }
}

std::vector<std::string> check_hosts(const std::vector<Host>& hosts, const std::string& remote_shell,
                                     const std::string& program) {
  std::vector<std::string> objections;
  while (objections.size() < hosts.size()) {
    std::vector<HostCheck> checks;
    for (auto i = objections.size(); i < hosts.size() && checks.size() < HostCheck::kMost; ++i)
      checks.emplace_back(hosts[i].name, remote_shell, program);
    for (auto& check : checks) objections.push_back(*check.objection(HostCheck::kLimit));
  }
  return objections;
}

}  // namespace shoal
