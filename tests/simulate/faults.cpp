#include "simulate/faults.h"

#include <fmt/format.h>

#include <csignal>
#include <cstdio>

namespace shoal::simulate {
namespace {

constexpr std::string_view kNames[] = {"kill rank", "kill host",   "freeze",   "late message",
                                       "full disk", "stop signal", "power cut"};
constexpr std::string_view kPlaces[] = {"message", "change of a file", "rename"};

}  // namespace

std::string to_string(const Fault& fault) {
  auto text = fmt::format("{} at {} {}", kNames[static_cast<std::size_t>(fault.kind)],
                          kPlaces[static_cast<std::size_t>(fault.at)], fault.event);
  if (fault.seconds > 0) text += fmt::format(" for {:.1f} s", fault.seconds);
  return text;
}

Faults::Faults(Scheduler& scheduler, std::span<Process> ranks, std::vector<Fault> faults, bool trace)
    : scheduler_(scheduler), ranks_(ranks), faults_(std::move(faults)), trace_(trace) {}

void Faults::tell(std::string_view what) const {
  if (!trace_) return;
  fmt::print("{:12.6f}  rank {:2}  {}\n", to_seconds(scheduler_.now()), scheduler_.process().rank, what);
  std::fflush(stdout);
}

void Faults::at_message(std::string_view what) {
  delay_ = 0;
  tell(what);
  at(Fault::At::message, messages_++);
}

bool Faults::at_file(std::string_view what) {
  tell(what);
  at(Fault::At::file, file_changes_++);
  if (what.starts_with("rename")) at(Fault::At::rename, renames_++);
  scheduler_.pass(0.5);
  return scheduler_.now() >= full_until_;
}

void Faults::at(Fault::At place, std::int64_t event) {
  for (const auto& fault : faults_) {
    if (fault.at == place && fault.event == event) happen(fault);
  }
}

void Faults::kill(Process& process) {
  if (process.ended) return;
  process.killed = true;
  scheduler_.end(process, 128 + SIGKILL);
}

void Faults::happen(const Fault& fault) {
  happened_.push_back(fault);
  tell(to_string(fault));
  auto& self = scheduler_.process();
  const Time length = from_seconds(fault.seconds);
  switch (fault.kind) {
    case Fault::Kind::freeze:
      self.frozen_until = scheduler_.now() + length;
      return scheduler_.pass(1);
    case Fault::Kind::late_message:
      delay_ = length;
      return;
    case Fault::Kind::full_disk:
      full_until_ = scheduler_.now() + length;
      return;
    case Fault::Kind::stop_signal:
      return stop_all();
    case Fault::Kind::kill_rank:
      break;
    case Fault::Kind::power_cut:
      power_is_cut_ = true;
      [[fallthrough]];
    case Fault::Kind::kill_host:
      lost_hosts_.insert(self.host);
      for (auto& process : ranks_) {
        if (&process != &self && (power_is_cut_ || process.host == self.host)) kill(process);
      }
      break;
  }
  kill(self);
}

// The ranks have one process here, and so one handler; where there is none yet, the signal ends them.
void Faults::stop_all() {
  struct sigaction action {};
  ::sigaction(SIGTERM, nullptr, &action);
  if (action.sa_handler != SIG_DFL) {
    ::raise(SIGTERM);
    return;
  }
  auto& self = scheduler_.process();
  for (auto& process : ranks_) {
    if (&process != &self) scheduler_.end(process, 128 + SIGTERM);
  }
  scheduler_.end(self, 128 + SIGTERM);
}

}  // namespace shoal::simulate
