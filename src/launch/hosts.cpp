#include "launch/hosts.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <memory>
#include <set>
#include <sstream>

#include "core/clock.h"
#include "core/error.h"
#include "core/host.h"
#include "launch/process.h"

namespace shoal {
namespace {

Host parse_host(const std::string& text) {
  Host host{.name = text.substr(0, text.find(':'))};
  const bool has_slots = host.name.size() < text.size();
  const char *first = text.data() + host.name.size() + 1, *last = text.data() + text.size();
  const bool good = !has_slots || (std::from_chars(first, last, host.slots).ptr == last && first != last);
  // The remote shell would read a name that starts with a dash as an option.
  if (host.name.empty() || host.name.front() == '-' || !good || host.slots < 1) {
    fail_user(
        "--hosts: '{}' is not a host; write HOST or HOST:RANKS, separated by commas, e.g. --hosts a:2,b:2",
        text);
  }
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

// Waits for the result of a check; returns why the host cannot be used, or "".
std::string check_result(ChildProcess& child, double seconds, const std::string& program) {
  Stopwatch watch;
  std::string said;
  for (bool ended = false; !ended;) {
    const double left = seconds - watch.seconds();
    const auto events = child.wait_for_events(std::max(left, 0.0));
    said += events.err;
    ended = events.ended;
    if (!ended && left <= 0) return "does not answer";
  }
  const auto end = child.end();
  if (end.signal == 0 && end.code == 0) return "";
  if (end.code == kNoFolder) {
    return fmt::format(
        "has no folder {}; every host needs the run's folders at the same path, on a shared disk",
        std::filesystem::current_path().string());
  }
  if (end.code == kNoProgram)
    return fmt::format("has no program {}; every host needs it at the same path", program);
  const auto line = last_line(said);
  return "does not answer" + (line.empty() ? "" : " (" + line + ")");
}

}  // namespace

std::vector<Host> parse_hosts(const std::string& text) {
  std::vector<Host> hosts;
  std::set<std::string> names;
  std::istringstream stream(text);
  for (std::string item; std::getline(stream, item, ',');) {
    hosts.push_back(parse_host(item));
    if (!names.insert(hosts.back().name).second)
      fail_user("--hosts names {} twice; write {}:RANKS", hosts.back().name, hosts.back().name);
  }
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
  int fewest = 0;
  for (auto host = hosts.begin(); host != hosts.end() && ranks > 0; ++host) {
    const int here = std::min(host->slots, ranks);
    fewest = fewest == 0 ? here : std::min(fewest, here);
    ranks -= here;
  }
  return fewest;
}

std::vector<std::string> check_hosts(const std::vector<Host>& hosts, const std::string& remote_shell,
                                     const std::string& program, double seconds) {
  Stopwatch watch;
  std::vector<std::unique_ptr<ChildProcess>> checks;
  for (const auto& host : hosts) {
    checks.push_back(is_this_machine(host.name)
                         ? nullptr
                         : std::make_unique<ChildProcess>(check_command(host.name, remote_shell, program)));
  }
  std::vector<std::string> objections;
  for (const auto& child : checks) {
    objections.push_back(child ? check_result(*child, seconds - watch.seconds(), program) : "");
  }
  return objections;
}

}  // namespace shoal
