#include "launch/host_watch.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "core/error.h"
#include "core/log.h"

namespace shoal {

HostWatch::HostWatch(Options options) : options_(std::move(options)), hosts_(options_.hosts) {
  if (!options_.file.empty()) hosts_ = read_hosts(options_.file);
}

std::vector<Host> HostWatch::listed() const {
  std::vector<Host> hosts;
  for (auto host : hosts_) {
    const auto state = states_.find(host.name);
    if (state != states_.end()) host.slots -= state->second.taken_slots;
    if (host.slots > 0) hosts.push_back(std::move(host));
  }
  return hosts;
}

std::string HostWatch::missing() const {
  std::string names;
  const auto there = usable({});
  for (const auto& host : listed()) {
    if (std::ranges::find(there, host.name, &Host::name) == there.end())
      names += (names.empty() ? "" : ", ") + host.name;
  }
  return names;
}

std::vector<Host> HostWatch::check() {
  read_again();
  checks_.clear();
  unchecked_.clear();
  const auto hosts = listed();
  const auto objections = check_hosts(hosts, options_.remote_shell, options_.program);
  for (std::size_t i = 0; i < hosts.size(); ++i) note(hosts[i].name, objections[i]);
  since_look_.restart();
  return usable({});
}

std::vector<Host> HostWatch::look(const std::vector<Host>& used) {
  std::erase_if(checks_, [&](HostCheck& check) {
    const auto objection = check.objection(0);
    if (objection) note(check.host(), *objection);
    return objection.has_value();
  });
  if (checks_.empty() && unchecked_.empty() && since_look_.seconds() >= options_.interval) {
    since_look_.restart();
    read_again();
    const auto known = usable(used);
    for (const auto& host : listed()) {
      if (std::ranges::find(known, host.name, &Host::name) == known.end()) unchecked_.push_back(host.name);
    }
  }
  for (; !unchecked_.empty() && checks_.size() < HostCheck::kMost; unchecked_.pop_front())
    checks_.emplace_back(unchecked_.front(), options_.remote_shell, options_.program);
  return usable(used);
}

void HostWatch::leave_out(const std::string& host) {
  log::warn("host {} is left out for {:.0f} s: the run fails since it takes part", host,
            kLeftOut * options_.interval);
  states_[host].since_left_out.emplace();
}

bool HostWatch::take_slots(const std::string& name, int slots) {
  const auto hosts = listed();
  const auto host = std::ranges::find(hosts, name, &Host::name);
  if (host == hosts.end() || (host->slots <= slots && hosts.size() == 1)) return false;
  states_[name].taken_slots += slots;
  return true;
}

void HostWatch::read_again() {
  if (options_.file.empty()) return;
  std::string problem;
  try {
    hosts_ = read_hosts(options_.file);
  } catch (const UserError& error) {
    problem = error.what();
  }
  if (!problem.empty() && problem != problem_) log::warn("{}; the hosts stay as they were", problem);
  problem_ = std::move(problem);
  std::erase_if(states_, [&](const auto& state) {
    return std::ranges::find(hosts_, state.first, &Host::name) == hosts_.end();
  });
}

void HostWatch::note(const std::string& host, const std::string& objection) {
  auto& [checked, before, taken_slots, left_out] = states_[host];
  if (!objection.empty() && before.empty()) log::warn("host {} {}: it is left out", host, objection);
  if (objection.empty() && !before.empty()) log::info("host {} answers again", host);
  before = objection;
  checked = true;
}

std::vector<Host> HostWatch::usable(const std::vector<Host>& used) const {
  std::vector<Host> hosts;
  for (auto& host : listed()) {
    const auto found = states_.find(host.name);
    const auto state = found == states_.end() ? State{} : found->second;
    const bool left_out =
        state.since_left_out && state.since_left_out->seconds() < kLeftOut * options_.interval;
    const bool answers = std::ranges::find(used, host.name, &Host::name) != used.end() ||
                         (state.checked && state.objection.empty());
    if (answers && !left_out) hosts.push_back(std::move(host));
  }
  return hosts;
}

}  // namespace shoal
