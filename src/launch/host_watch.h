// The hosts that a run may use at a moment: those that are listed, by an argument or a file, and answer.
#pragma once

#include <deque>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "core/clock.h"
#include "launch/hosts.h"

namespace shoal {

class HostWatch {
 public:
  struct Options {
    std::vector<Host> hosts = {};
    std::filesystem::path file = {};  // lists the hosts instead; read again whenever they are checked
    std::string remote_shell, program;
    double interval = 10;  // seconds between two looks
  };
  // Throws UserError where the file cannot be used.
  explicit HostWatch(Options options);

  std::vector<Host> listed() const;
  // The listed hosts that can be used, by the last check.
  std::vector<Host> usable() const { return usable({}); }
  // The others: "b, c".
  std::string missing() const;

  // Checks all listed hosts and returns those that can be used. Logs what has changed, as look() does.
  std::vector<Host> check();
  // The same while ranks run on the hosts `used`, which are not checked: without waiting, every `interval`
  // seconds. In between, and until new hosts have answered, it returns the hosts that are known.
  std::vector<Host> look(const std::vector<Host>& used);

  // Leaves a host out for kLeftOut looks, or until the file no longer lists it.
  void leave_out(const std::string& host);
  // Leaves out slots of a host for good. Returns false, and does nothing, where it is not listed or has no
  // others, and there is no other host.
  bool take_slots(const std::string& host, int slots);

  static constexpr int kLeftOut = 60;

 private:
  struct State {
    bool checked = false;
    std::string objection = {};  // of the last check
    int taken_slots = 0;
    std::optional<Stopwatch> since_left_out = {};
  };

  // Warns, once, where the file cannot be used; the hosts stay as they were then.
  void read_again();
  void note(const std::string& host, const std::string& objection);
  std::vector<Host> usable(const std::vector<Host>& used) const;

  Options options_;
  std::vector<Host> hosts_;
  std::map<std::string, State> states_;
  std::vector<HostCheck> checks_;      // that have not answered yet
  std::deque<std::string> unchecked_;  // hosts of this look whose check has not begun
  std::string problem_;                // of the file, as the last look found it
  Stopwatch since_look_;
};

}  // namespace shoal
