#include "cli/rank_supervisor.h"

#include <fmt/format.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <limits>
#include <optional>
#include <set>
#include <thread>
#include <utility>

#include "cli/rank_layout.h"
#include "config/layout.h"
#include "core/clock.h"
#include "core/error.h"
#include "core/log.h"
#include "core/text.h"
#include "launch/host_watch.h"
#include "launch/mpirun.h"
#include "launch/output_filter.h"
#include "launch/placement.h"
#include "launch/process.h"
#include "launch/run_to_restart.h"

namespace shoal::cli {
namespace {

// The end of one attempt, all ranks together.
struct Outcome {
  ExitStatus end;
  std::optional<RankDeath> death;
  bool explained = false;  // the program has printed its error
  bool stopped = false;    // a signal asked to stop
  bool moved = false;      // the supervisor asked, to use other hosts
};

// mpirun may exit with 0 after a failure: MPICH's when several ranks fail at once
// (github.com/pmodels/mpich/issues/7057), Open MPI 5's when a host is lost. So its messages and the ranks'
// errors count, too.
bool failed(const Outcome& outcome) {
  return outcome.end.signal != 0 || outcome.end.code != 0 || outcome.explained || outcome.death;
}

std::string signal_name(int signal) {
  const char* name = ::sigabbrev_np(signal);
  return name ? fmt::format("SIG{}", name) : fmt::format("signal {}", signal);
}

// The signal that killed a rank; 0: none that mpirun reports. Without a message, mpirun exits with 128 +
// signal; higher codes have other meanings. A message that names no rank may be about ranks that mpirun
// itself killed after another one had reported its error.
int killing_signal(const Outcome& outcome) {
  const auto& [end, death, explained, stopped, moved] = outcome;
  if (explained && (!death || death->rank < 0)) return 0;
  const bool by_signal = end.code > 128 && end.code <= 128 + SIGSYS;
  return death ? death->signal : by_signal ? end.code - 128 : 0;
}

// Whether mpirun knows the hosts itself: in a Slurm job, or from the cluster's default host file.
bool hosts_are_given() {
  return std::getenv("SLURM_JOB_ID") || std::getenv("OMPI_MCA_orte_default_hostfile") ||
         std::getenv("PRTE_MCA_prte_default_hostfile");
}

void print(std::FILE* stream, const std::string& text) {
  std::fwrite(text.data(), 1, text.size(), stream);
  std::fflush(stream);
}

// Open MPI's mpirun may hang forever when a rank dies during startup. It is killed kHangLimit seconds after
// its last child has ended.
constexpr double kHangLimit = 10, kPollInterval = 2;
constexpr double kEndOfRanks = 10;  // ranks end within it, after their launcher

class RankSupervisor {
 public:
  explicit RankSupervisor(LaunchOptions options);
  int run();  // returns the exit code

 private:
  Outcome attempt(const RankPlacement& where, const std::vector<std::string>& command);
  bool asks_to_move(const RankPlacement& where);
  void on_signal(int signal, ChildProcess& child, int stop_signal, bool asked);
  void check_start();
  bool names_hosts() const { return !options_.hosts.empty() || !options_.hosts_file.empty(); }
  int room_on(const std::vector<Host>& hosts) const;
  RankPlacement place(const std::vector<Host>& hosts) const;
  std::optional<RankPlacement> first_placement();
  std::optional<RankPlacement> next_placement(const std::string& died, const std::string& worker);
  std::string drop_worker(const std::optional<RankDeath>& death);
  bool refused(const Outcome& outcome) const;
  struct Progress {
    std::int64_t done = 0, logged = 0;  // steps
  };
  Progress progress() const { return {run_->steps_done(), run_->logged_step()}; }
  bool trained_since(const Progress& before) const;
  bool await_unused_run(bool over);
  AttemptEnd judge(const Outcome& outcome, const RankPlacement& where, bool refusal,
                   std::int64_t done_before);
  std::string describe_failure(const Outcome& outcome) const;
  int report_outcome(const Outcome& outcome, int restarts, int fruitless) const;

  LaunchOptions options_;
  Mpirun mpirun_;
  std::string program_ = std::filesystem::read_symlink("/proc/self/exe").string();
  HostWatch hosts_;
  int most_ = 0;                  // ranks
  bool elastic_;                  // hosts may come and go
  bool may_start_less_;           // even at the start
  std::set<std::string> proven_;  // hosts of attempts that progressed, until they are lost
  std::vector<Host> considered_;  // the hosts that asks_to_move() has thought of
  std::optional<RunToRestart> run_;
  std::optional<CaughtSignals> signals_;  // since run(): before, a signal ends the launcher
  int signals_seen_ = 0;
  int stop_signal_ = 0;  // the first
  Stopwatch since_kill_;
};

std::string ranks_text(int ranks) { return fmt::format("{} rank{}", ranks, ranks == 1 ? "" : "s"); }

RankSupervisor::RankSupervisor(LaunchOptions options)
    : options_(std::move(options)),
      hosts_({.hosts = options_.hosts.empty() ? std::vector<Host>{} : parse_hosts(options_.hosts),
              .file = options_.hosts_file,
              .remote_shell = options_.remote_shell,
              .program = program_,
              .interval = options_.watch}),
      elastic_(!options_.hosts_file.empty() || options_.min_ranks > 0 || options_.max_restarts > 0),
      may_start_less_(!options_.hosts_file.empty() || (!options_.hosts.empty() && options_.min_ranks > 0)) {
  const auto hosts = hosts_.listed();
  const bool from_file = !options_.hosts_file.empty();
  if (options_.ranks == 0 && !from_file) options_.ranks = total_slots(hosts);
  if (options_.ranks == 0 && !from_file)
    fail_user("give the number of ranks: shoal launch -n N -- train CONFIG");
  if (!hosts.empty() && !from_file && options_.ranks > total_slots(hosts)) {
    fail_user("-n {}, but --hosts has room for {}; give the number of ranks of each host, e.g. --hosts {}:{}",
              options_.ranks, total_slots(hosts), hosts.front().name, options_.ranks);
  }
  most_ = options_.ranks > 0 ? options_.ranks : std::numeric_limits<int>::max();
  if (options_.min_ranks > most_)
    fail_user("--min-ranks {} is more than -n {}", options_.min_ranks, options_.ranks);
  for (const auto& word : options_.command) {
    if (word == "--ranks" || word.starts_with("--ranks="))
      fail_user("--ranks starts threads, and launch starts MPI ranks: leave --ranks out");
  }
  if (options_.command.front() == "train") std::signal(SIGPIPE, SIG_IGN);  // as train itself does
  run_ = RunToRestart::of(options_.command);
  if (run_ && from_file && options_.ranks == 0 && run_->config().parallel.data > 0) {
    const auto& parallel = run_->config().parallel;
    most_ = static_cast<int>(parallel.data * ranks_of_model(parallel));
  }
  if (run_ && !from_file) run_->require_layout(options_.ranks, fewest_on_a_host(hosts, options_.ranks));
  if (options_.min_ranks == 0) {
    const int workers = run_ ? 2 * run_->ranks_of_worker() : 0;
    options_.min_ranks = workers > 0 ? std::min(workers, most_) : from_file ? 1 : options_.ranks;
  }
  if (from_file) {
    if (const auto all = place(hosts); !all.objection.empty() && all.ranks == 0)
      fail_user("the hosts of {} have room for {}, but {}", options_.hosts_file, ranks_text(room_on(hosts)),
                all.objection);
  }
  mpirun_ = find_mpirun(options_.mpirun);
}

int RankSupervisor::room_on(const std::vector<Host>& hosts) const {
  return names_hosts() ? std::min(most_, total_slots(hosts)) : most_;
}

RankPlacement RankSupervisor::place(const std::vector<Host>& hosts) const {
  const auto layout_of = [&](int ranks, int ranks_per_host) {
    return run_ ? layout_of_ranks(*run_, ranks, ranks_per_host) : RankLayout{};
  };
  return place_ranks(hosts, room_on(hosts), options_.min_ranks, layout_of, run_ ? run_->most_ranks() : most_);
}

void RankSupervisor::check_start() {
  const auto hosts = hosts_.listed();
  const auto objections = check_hosts(hosts, options_.remote_shell, program_);
  for (std::size_t i = 0; i < hosts.size(); ++i) {
    if (!objections[i].empty())
      fail_user("host {} {}; fix that or leave it out of --hosts", hosts[i].name, objections[i]);
  }
  const int cores = static_cast<int>(std::thread::hardware_concurrency());
  if (hosts.empty() && options_.ranks > cores && !hosts_are_given())
    log::info("{} ranks share {} core{}", options_.ranks, cores, cores == 1 ? "" : "s");
}

std::optional<RankPlacement> RankSupervisor::first_placement() {
  if (may_start_less_) {
    hosts_.check();
    return next_placement("", "");
  }
  check_start();
  return RankPlacement{filled_hosts(hosts_.listed(), options_.ranks), options_.ranks};
}

// The next attempt's placement, on the hosts that answered the last check; waits for others where these are
// too few. nullopt: a signal came. `died` is the reason for a restart; `worker` was left out.
std::optional<RankPlacement> RankSupervisor::next_placement(const std::string& died,
                                                            const std::string& worker) {
  constexpr double kTellInterval = 60;
  const int least = options_.min_ranks;
  std::optional<Stopwatch> waiting;
  double told = 0;
  for (;; hosts_.check()) {
    const auto usable = hosts_.usable();
    const int room = room_on(usable);
    auto where = place(usable);
    const auto missing = worker.empty() ? hosts_.missing() : worker;
    const auto there_is_room = fmt::format(
        "{}there is room for {}", missing.empty() ? "" : "without " + missing + " ", ranks_text(room));
    if (where.ranks > 0) {
      if (!where.objection.empty()) {
        log::warn("{}, but {}: {} continue", there_is_room, where.objection, where.ranks);
      } else if (!worker.empty()) {
        log::warn("{}", there_is_room);
      }
      return where;
    }
    const auto reason =
        room < least ? fmt::format("{} only, which --min-ranks {} does not allow", there_is_room, least)
                     : fmt::format("{}, but {}; nor would any other number down to --min-ranks {}{}",
                                   there_is_room, where.objection, least,
                                   worker.empty() ? ""
                                                  : fmt::format("; with --min-ranks {} all start again",
                                                                room + run_->ranks_of_worker()));
    const bool others_may_come = worker.empty() && (!missing.empty() || !options_.hosts_file.empty());
    const double waited = waiting ? waiting->seconds() : 0;
    if (!others_may_come || waited >= options_.max_wait)
      fail("{}{}", died.empty() ? "" : died + ", and ", reason);
    if (!waiting) {
      log::warn("{}: waiting for hosts, {} at most", reason, format_duration(options_.max_wait));
      waiting.emplace();
    } else if (waited - told >= kTellInterval) {
      told = waited;
      log::info("waiting for hosts{}: {} of {}", missing.empty() ? "" : " " + missing,
                format_duration(waited), format_duration(options_.max_wait));
    }
    stop_signal_ = signals_->wait(std::min(options_.watch, options_.max_wait - waited));
    if (stop_signal_ != 0) {
      log::info("{}: stopped while waiting for hosts; the run is unchanged", signal_name(stop_signal_));
      return std::nullopt;
    }
  }
}

int RankSupervisor::run() {
  signals_.emplace();
  auto where = first_placement();
  if (!where) return 128 + stop_signal_;
  if (may_start_less_) {
    log::info("starts on {}: {}{}", ranks_text(where->ranks), to_string(where->hosts),
              where->layout.mesh.empty() ? "" : ", as " + where->layout.mesh);
  }
  auto command = options_.command;
  command.insert(command.end(), where->layout.settings.begin(), where->layout.settings.end());
  int restarts = 0;
  int fruitless = 0;  // attempts in a row that left no new checkpoint
  auto step = run_ ? run_->latest_step() : std::nullopt;
  while (true) {
    const auto before = run_ ? progress() : Progress{};
    const auto outcome = attempt(*where, command);
    if (!run_) return report_outcome(outcome, 0, 0);
    const bool refusal = refused(outcome) && !trained_since(before);
    const bool over = !elastic_ || outcome.stopped || refusal;  // no other attempt will follow
    const bool waits = !refusal && (failed(outcome) || outcome.moved);
    const bool unused = !waits || await_unused_run(over);
    if (!over && stop_signal_ != 0) {
      log::info("{}: stopped while waiting for {}; the run is unchanged", signal_name(stop_signal_),
                run_->holder());
      return 128 + stop_signal_;
    }
    const auto end = judge(outcome, *where, refusal, before.done);
    const auto next = next_attempt(end);
    if (next == NextAttempt::none) return report_outcome(outcome, 0, 0);
    const auto step_before = std::exchange(step, run_->latest_step());
    fruitless = step == step_before && !outcome.moved ? fruitless + 1 : 0;
    const bool counted = next == NextAttempt::counted;
    if (counted && restarts == options_.max_restarts) return report_outcome(outcome, restarts, fruitless);

    if (next == NextAttempt::without) {
      for (const auto& host : where->hosts) {
        if (!proven_.contains(host.name)) hosts_.leave_out(host.name);
      }
    }
    const auto cause = describe_failure(outcome);
    if (!unused) {
      fail("{}, and {} is still in use by {}; when that has ended, go on with init.from=auto", cause,
           run_->folder(), run_->holder());
    }
    // Ranks of one model can replace each other, so all restart on the hosts that answer. A gossip worker has
    // its own model: where one died without an error message, the others continue without it, if --min-ranks
    // allows.
    const int worker = run_->ranks_of_worker();
    const bool killed = killing_signal(outcome) != 0 || !outcome.explained;
    const bool drops_worker = counted && !end.lost_host && killed && worker > 0 && worker < where->ranks &&
                              options_.min_ranks < where->ranks;
    where = next_placement(cause, drops_worker ? drop_worker(outcome.death) : "");
    if (!where) return 128 + stop_signal_;
    if (counted) ++restarts;
    command = run_->restart_command(where->layout.settings);
    log::warn("{}; restart{}, on {}, {}{}{}{}", cause,
              counted ? fmt::format(" {} of {}", restarts, options_.max_restarts) : "",
              ranks_text(where->ranks), step ? fmt::format("from step {}", *step) : "from the beginning",
              where->layout.mesh.empty() ? "" : ", as " + where->layout.mesh,
              run_->in_memory() ? ", or a newer state in memory" : "",
              fruitless > 1 ? fmt::format(" (no new checkpoint in {} attempts)", fruitless) : "");
  }
}

// Whether the ranks ended because of a mistake of the user's. MPICH's mpirun combines the ranks' exit codes
// by OR: 3 is 2 of the rank that reports and 1 of the others. Without a report, 3 is SIGQUIT.
bool RankSupervisor::refused(const Outcome& outcome) const {
  const int code = outcome.end.code;
  return code == 2 || (code == 3 && mpirun_.kind == MpiKind::hydra && outcome.explained);
}

// A disk that fails in the middle of a run is reported as a file that the user may mend, but may work again.
bool RankSupervisor::trained_since(const Progress& before) const {
  const auto now = progress();
  return now.done > before.done || now.logged != before.logged;
}

// Waits until the ranks of an attempt have given up the run: they may end after their launcher, and a network
// file system keeps the lock of a lost host until its lease is over (NFSv4: 90 s), for which only another
// attempt waits. Returns false after that time, or where a signal came.
bool RankSupervisor::await_unused_run(bool over) {
  constexpr double kQuiet = 1, kInterval = 0.1;
  const double limit = over ? kEndOfRanks : std::max(kEndOfRanks, options_.max_wait);
  const Stopwatch waiting;
  for (bool told = over; run_->in_use();) {
    if (waiting.seconds() >= limit) return false;
    if (!told && waiting.seconds() >= kQuiet) {
      log::warn("{} is still in use by {}: waiting for it to end, {} at most", run_->folder(), run_->holder(),
                format_duration(limit));
      told = true;
    }
    if (const int signal = signals_->wait(kInterval); signal != 0) {
      if (stop_signal_ == 0) stop_signal_ = signal;
      return false;
    }
  }
  return true;
}

// Judges how an attempt ended, and checks the hosts where another one may follow.
AttemptEnd RankSupervisor::judge(const Outcome& outcome, const RankPlacement& where, bool refusal,
                                 std::int64_t done_before) {
  const bool progressed = run_->steps_done() > done_before;
  AttemptEnd end{.failed = failed(outcome),
                 .explained = outcome.explained,
                 .refused = refusal,
                 .stopped = outcome.stopped,
                 .moved = outcome.moved,
                 .progressed = progressed};
  const auto is_proven = [&](const Host& host) { return proven_.contains(host.name); };
  end.new_host = std::ranges::any_of(where.hosts, is_proven) && !std::ranges::all_of(where.hosts, is_proven);
  if (progressed) {
    for (const auto& host : where.hosts) proven_.insert(host.name);
  }
  if (!elastic_ || !(end.failed || end.moved) || end.stopped || end.refused) return end;
  const auto usable = hosts_.check();
  for (const auto& host : where.hosts) {
    if (std::ranges::find(usable, host.name, &Host::name) != usable.end()) continue;
    end.lost_host = true;
    proven_.erase(host.name);
  }
  return end;
}

// Whether hosts came or left that the running ranks should use or leave; says so.
bool RankSupervisor::asks_to_move(const RankPlacement& where) {
  auto usable = hosts_.look(where.hosts);
  if (usable == considered_) return false;
  considered_ = std::move(usable);
  const auto possible = place(considered_);
  if (possible.ranks == 0) {
    log::warn("the hosts that are left have room for {}, {}: the run goes on as it is",
              ranks_text(room_on(considered_)),
              possible.objection.empty() ? fmt::format("and --min-ranks is {}", options_.min_ranks)
                                         : "but " + possible.objection);
  }
  if (!should_move(where, possible, considered_)) return false;
  log::info("hosts have come or gone: the ranks save and stop, to go on on {}", to_string(possible.hosts));
  return true;
}

Outcome RankSupervisor::attempt(const RankPlacement& where, const std::vector<std::string>& command) {
  std::vector<std::string> program = {program_};
  program.insert(program.end(), command.begin(), command.end());
  const auto call = mpirun_call(mpirun_, where.ranks, where.hosts, options_.remote_shell, program);
  OutputFilter out, err;
  ChildProcess child(call.arguments, call.environment);
  Stopwatch alone;  // mpirun, after its last process
  Stopwatch age;
  bool moved = false, shown = false;
  considered_ = where.hosts;
  const bool watches = run_ && elastic_ && names_hosts();
  const double poll_interval = watches ? std::min(kPollInterval, options_.watch) : kPollInterval;
  for (bool ended = false, started = false; !ended;) {
    const auto events = child.wait_for_events(poll_interval, &*signals_);
    ended = events.ended;
    for (auto [stream, text] : {std::pair{stdout, out.feed(events.out)}, {stderr, err.feed(events.err)}}) {
      print(stream, text);
      shown |= !text.empty();
    }
    // Open MPI's mpirun forgets a signal that comes before it has ranks to forward it to.
    const int stop_signal = shown ? call.stop_signal : SIGTERM;
    if (events.signal != 0) on_signal(events.signal, child, stop_signal, moved);
    if (watches && !ended && !moved && signals_seen_ == 0 && age.seconds() >= options_.watch &&
        asks_to_move(where)) {
      moved = true;
      child.send(stop_signal);
    }
    if (signals_seen_ > 1 && since_kill_.seconds() > 4) child.send(SIGKILL);
    const bool running = child.has_children();
    started |=
        running || err.saw_error() || err.death() || out.death();  // or it has ended before the first look
    if (running || !started) alone.restart();
    if (!ended && alone.seconds() > kHangLimit) child.send(SIGKILL);
  }
  print(stdout, out.finish());
  print(stderr, err.finish());
  return {.end = child.end(),
          .death = err.death() ? err.death() : out.death(),
          .explained = err.saw_error(),
          .stopped = signals_seen_ > 0,
          .moved = moved};
}

// Forwards the first signal, so that the ranks save and stop, unless they were asked already. The second ends
// them.
void RankSupervisor::on_signal(int signal, ChildProcess& child, int stop_signal, bool asked) {
  if (++signals_seen_ == 1) {
    stop_signal_ = signal;
    log::info("{}: the ranks save and stop; a second signal ends them at once", signal_name(signal));
    if (!asked) child.send(stop_signal);
  } else if (signals_seen_ == 2) {
    since_kill_.restart();
    child.send(SIGTERM);
  } else {
    child.send(SIGKILL);
  }
}

// Gives up the slots of the worker that died, and returns its name.
std::string RankSupervisor::drop_worker(const std::optional<RankDeath>& death) {
  const int ranks = run_->ranks_of_worker();
  const int room = room_on(hosts_.listed());
  const bool taken = death && hosts_.take_slots(death->host, ranks);
  if (!taken || options_.hosts_file.empty()) most_ = room - ranks;
  return death && death->rank >= 0 ? fmt::format("worker {}", death->rank / ranks) : "the worker that died";
}

std::string RankSupervisor::describe_failure(const Outcome& outcome) const {
  const auto& [end, death, explained, stopped, moved] = outcome;
  const int signal = killing_signal(outcome);
  const std::string who = death && death->rank >= 0 ? fmt::format("rank {}", death->rank) : "a rank";
  const std::string where =
      death && !death->host.empty() && hosts_.listed().size() > 1 ? " on " + death->host : "";
  if (moved && !explained) return "hosts have come or gone";
  if (signal != 0) return fmt::format("{}{} was ended by {}", who, where, signal_name(signal));
  if (end.signal != 0) return fmt::format("mpirun was ended by {}", signal_name(end.signal));
  if (explained || death) return fmt::format("{}{} failed", who, where);
  return fmt::format("{} failed with exit code {}", mpirun_.path, end.code);
}

int RankSupervisor::report_outcome(const Outcome& outcome, int restarts, int fruitless) const {
  if (outcome.stopped && !outcome.explained) {
    const bool saved = !failed(outcome) && (!run_ || run_->latest_step());
    return saved ? 0 : 128 + stop_signal_;
  }
  if (!failed(outcome)) return 0;
  if (refused(outcome)) return 2;
  if (fruitless > 1) {
    log::warn("the last {} attempts died without a new checkpoint: the same failure is likely to come again",
              fruitless);
  }
  if (outcome.explained) return 1;
  fail("{}{}", describe_failure(outcome),
       restarts > 0 ? fmt::format(", after {} restart{}", restarts, restarts == 1 ? "" : "s")
       : run_       ? "; --max-restarts K restarts from the latest checkpoint when a rank dies"
                    : "");
}

}  // namespace

int supervise_ranks(LaunchOptions options) { return RankSupervisor(std::move(options)).run(); }

}  // namespace shoal::cli
