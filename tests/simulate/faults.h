// The faults of an attempt. Each happens at the n-th message, the n-th change of a file or the n-th rename,
// of all ranks.
#pragma once

#include <cstdint>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "simulate/scheduler.h"

namespace shoal::simulate {

struct Fault {
  enum class Kind : std::uint8_t {
    kill_rank,     // the one that makes this call
    kill_host,     // all ranks of its host
    freeze,        // it stands still for `seconds`
    late_message,  // this message takes so much longer
    full_disk,     // from this call on nothing can be written, for so long
    stop_signal,   // SIGTERM to all
    power_cut,     // of all hosts and of the disk
  };
  enum class At : std::uint8_t { message, file, rename };

  Kind kind;
  At at;
  std::int64_t event;  // counted from 0
  double seconds = 0;
};

std::string to_string(const Fault& fault);

class Faults {
 public:
  // `ranks` must outlive this. With `trace`, prints every event.
  Faults(Scheduler& scheduler, std::span<Process> ranks, std::vector<Fault> faults, bool trace);

  // Called by a rank before it sends. What kills it does not return.
  void at_message(std::string_view what);
  // Before it changes a file. Returns false where the disk is full.
  bool at_file(std::string_view what);
  // The further delay of the message that was told last.
  Time delay_of_message() const { return delay_; }

  const std::set<int>& lost_hosts() const { return lost_hosts_; }
  bool power_is_cut() const { return power_is_cut_; }
  std::int64_t messages() const { return messages_; }
  std::int64_t file_changes() const { return file_changes_; }
  const std::vector<Fault>& happened() const { return happened_; }
  void tell(std::string_view what) const;

 private:
  void at(Fault::At place, std::int64_t event);
  void happen(const Fault& fault);
  void kill(Process& process);
  void stop_all();

  Scheduler& scheduler_;
  std::span<Process> ranks_;
  std::vector<Fault> faults_, happened_;
  bool trace_;
  bool power_is_cut_ = false;
  std::set<int> lost_hosts_;
  std::int64_t messages_ = 0, file_changes_ = 0, renames_ = 0;
  Time delay_ = 0, full_until_ = 0;
};

}  // namespace shoal::simulate
