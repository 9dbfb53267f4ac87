// shoal launch: MPI ranks of this program, started again when one dies.
#include <fmt/format.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <memory>
#include <thread>
#include <utility>

#include "cli/command.h"
#include "core/clock.h"
#include "core/error.h"
#include "core/log.h"
#include "launch/hosts.h"
#include "launch/mpirun.h"
#include "launch/output_filter.h"
#include "launch/process.h"
#include "launch/run_to_restart.h"

namespace shoal::cli {
namespace {

struct LaunchOptions {
  int ranks = 0;      // 0: the total of the hosts' ranks
  std::string hosts;  // empty: this machine, or the hosts of the batch system
  int max_restarts = 0;
  int min_ranks = 0;  // 0: see --help
  std::string remote_shell = "ssh";
  std::string mpirun;
  std::vector<std::string> command;
};

// The end of one attempt, all ranks together.
struct Outcome {
  ExitStatus end;
  std::optional<RankDeath> death;
  bool explained = false;  // the program has printed its error
  bool stopped = false;    // a signal asked to stop
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
  const auto& [end, death, explained, stopped] = outcome;
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

class RankSupervisor {
 public:
  explicit RankSupervisor(LaunchOptions options);
  int run();  // returns the exit code

 private:
  Outcome attempt(int ranks, const std::vector<std::string>& command);
  void on_signal(int signal, ChildProcess& child, int stop_signal);
  void check_start();
  std::string drop_unreachable_hosts();
  std::string drop_worker(const std::optional<RankDeath>& death);
  int ranks_for_restart(const std::string& died, const Outcome& outcome);
  std::string describe_failure(const Outcome& outcome) const;
  int report_outcome(const Outcome& outcome, int restarts, int fruitless) const;

  LaunchOptions options_;
  Mpirun mpirun_;
  std::vector<Host> hosts_;
  int capacity_ = 0;  // number of ranks that the remaining hosts take
  std::string program_ = std::filesystem::read_symlink("/proc/self/exe").string();
  std::optional<RunToRestart> run_;
  CaughtSignals signals_;
  int signals_seen_ = 0;
  Stopwatch since_kill_;
};

RankSupervisor::RankSupervisor(LaunchOptions options) : options_(std::move(options)) {
  if (!options_.hosts.empty()) hosts_ = parse_hosts(options_.hosts);
  if (options_.ranks == 0) options_.ranks = total_slots(hosts_);
  if (options_.ranks == 0) fail_user("give the number of ranks: shoal launch -n N -- train CONFIG");
  if (!hosts_.empty() && options_.ranks > total_slots(hosts_)) {
    fail_user("-n {}, but --hosts has room for {}; give the number of ranks of each host, e.g. --hosts {}:{}",
              options_.ranks, total_slots(hosts_), hosts_.front().name, options_.ranks);
  }
  capacity_ = options_.ranks;
  if (options_.min_ranks > options_.ranks)
    fail_user("--min-ranks {} is more than -n {}", options_.min_ranks, options_.ranks);
  for (const auto& word : options_.command) {
    if (word == "--ranks" || word.starts_with("--ranks="))
      fail_user("--ranks starts threads, and launch starts MPI ranks: leave --ranks out");
  }
  if (options_.command.front() == "train") std::signal(SIGPIPE, SIG_IGN);  // as train itself does
  run_ = RunToRestart::of(options_.command, options_.ranks, fewest_on_a_host(hosts_, options_.ranks));
  if (options_.min_ranks == 0) {
    const int workers = run_ ? 2 * run_->ranks_of_worker() : 0;
    options_.min_ranks = workers > 0 ? std::min(workers, options_.ranks) : options_.ranks;
  }
  mpirun_ = find_mpirun(options_.mpirun);
  check_start();
}

void RankSupervisor::check_start() {
  const auto objections = check_hosts(hosts_, options_.remote_shell, program_);
  for (std::size_t i = 0; i < hosts_.size(); ++i) {
    if (!objections[i].empty())
      fail_user("host {} {}; fix that or leave it out of --hosts", hosts_[i].name, objections[i]);
  }
  const int cores = static_cast<int>(std::thread::hardware_concurrency());
  if (hosts_.empty() && options_.ranks > cores && !hosts_are_given())
    log::info("{} ranks share {} core{}", options_.ranks, cores, cores == 1 ? "" : "s");
}

int RankSupervisor::run() {
  auto command = options_.command;
  int ranks = options_.ranks, restarts = 0;
  int fruitless = 0;  // attempts in a row that left no new checkpoint
  auto step = run_ ? run_->latest_step() : std::nullopt;
  while (true) {
    const auto outcome = attempt(ranks, command);
    const bool died = failed(outcome) && outcome.end.code != 2;
    if (!died || outcome.stopped || !run_) return report_outcome(outcome, 0, 0);
    run_->wait_until_unused();
    const auto before = std::exchange(step, run_->latest_step());
    fruitless = step == before ? fruitless + 1 : 0;
    if (restarts == options_.max_restarts) return report_outcome(outcome, restarts, fruitless);

    const auto cause = describe_failure(outcome);
    ranks = ranks_for_restart(cause, outcome);
    if (signals_seen_ > 0) return report_outcome(outcome, 0, 0);
    ++restarts;
    command = run_->restart_command(ranks);
    log::warn("{}; restart {} of {}, on {} rank{}, {}{}{}", cause, restarts, options_.max_restarts, ranks,
              ranks == 1 ? "" : "s", step ? fmt::format("from step {}", *step) : "from the beginning",
              run_->in_memory() ? ", or a newer state in memory" : "",
              fruitless > 1 ? fmt::format(" (no new checkpoint in {} attempts)", fruitless) : "");
  }
}

Outcome RankSupervisor::attempt(int ranks, const std::vector<std::string>& command) {
  std::vector<std::string> program = {program_};
  program.insert(program.end(), command.begin(), command.end());
  const auto call = mpirun_call(mpirun_, ranks, hosts_, options_.remote_shell, program);
  OutputFilter out, err;
  ChildProcess child(call.arguments, call.environment);
  Stopwatch alone;  // mpirun, after its last process
  for (bool ended = false, started = false; !ended;) {
    const auto events = child.wait_for_events(kPollInterval, &signals_);
    ended = events.ended;
    print(stdout, out.feed(events.out));
    print(stderr, err.feed(events.err));
    if (events.signal != 0) on_signal(events.signal, child, call.stop_signal);
    if (signals_seen_ > 1 && since_kill_.seconds() > 4) child.send(SIGKILL);
    const bool running = child.has_children();
    started |= running;
    if (running || !started) alone.restart();
    if (!ended && alone.seconds() > kHangLimit) child.send(SIGKILL);
  }
  print(stdout, out.finish());
  print(stderr, err.finish());
  return {.end = child.end(),
          .death = err.death() ? err.death() : out.death(),
          .explained = err.saw_error(),
          .stopped = signals_seen_ > 0};
}

// Forwards the first signal, so that the ranks save and stop. The second ends them.
void RankSupervisor::on_signal(int signal, ChildProcess& child, int stop_signal) {
  if (++signals_seen_ == 1) {
    log::info("{}: the ranks save and stop; a second signal ends them at once", signal_name(signal));
    child.send(stop_signal);
  } else if (signals_seen_ == 2) {
    since_kill_.restart();
    child.send(SIGTERM);
  } else {
    child.send(SIGKILL);
  }
}

// Removes the hosts that no longer answer and returns their names.
std::string RankSupervisor::drop_unreachable_hosts() {
  const auto objections = check_hosts(hosts_, options_.remote_shell, program_);
  std::vector<Host> left;
  std::string gone;
  for (std::size_t i = 0; i < hosts_.size(); ++i) {
    if (objections[i].empty()) {
      left.push_back(hosts_[i]);
    } else {
      log::warn("host {} {}: it is no longer used", hosts_[i].name, objections[i]);
      gone += (gone.empty() ? "" : ", ") + hosts_[i].name;
    }
  }
  hosts_ = std::move(left);
  if (!gone.empty()) capacity_ = std::min(capacity_, total_slots(hosts_));
  return gone;
}

// Gives up the slots of the worker that died, and returns its name.
std::string RankSupervisor::drop_worker(const std::optional<RankDeath>& death) {
  const int ranks = run_->ranks_of_worker();
  capacity_ -= ranks;
  const auto host = std::ranges::find(hosts_, death ? death->host : "", &Host::name);
  if (host != hosts_.end() && host->slots > ranks) {
    host->slots -= ranks;
  } else if (host != hosts_.end() && hosts_.size() > 1) {
    hosts_.erase(host);
  }
  if (!hosts_.empty()) capacity_ = std::min(capacity_, total_slots(hosts_));
  return death && death->rank >= 0 ? fmt::format("worker {}", death->rank / ranks) : "the worker that died";
}

// The number of ranks of the next attempt. Ranks of one model can replace each other, so all restart on the
// hosts that answer. A gossip worker has its own model: where one died without an error message, the others
// continue without it, if --min-ranks allows.
int RankSupervisor::ranks_for_restart(const std::string& died, const Outcome& outcome) {
  auto without = drop_unreachable_hosts();
  const int least = options_.min_ranks, worker = run_->ranks_of_worker();
  const bool killed = killing_signal(outcome) != 0 || !outcome.explained;
  const bool drops_worker =
      without.empty() && killed && worker > 0 && worker < capacity_ && least < options_.ranks;
  if (drops_worker) without = drop_worker(outcome.death);
  const auto objection_to = [&](int ranks) {
    return run_->objection_to(ranks, fewest_on_a_host(hosts_, ranks));
  };
  int ranks = capacity_;
  while (ranks >= least && !objection_to(ranks).empty()) --ranks;
  const auto room =
      fmt::format("without {} there is room for {} rank{}", without, capacity_, capacity_ == 1 ? "" : "s");
  if (capacity_ < least) fail("{}, and {} only, which --min-ranks {} does not allow", died, room, least);
  const auto objection = objection_to(capacity_);
  if (ranks < least) {
    fail("{}, and {}, but {}; nor would any other number down to --min-ranks {}{}", died, room, objection,
         least, drops_worker ? fmt::format("; with --min-ranks {} all start again", options_.ranks) : "");
  }
  if (drops_worker || !objection.empty()) {
    log::warn("{}{}", room, objection.empty() ? "" : fmt::format(", but {}: {} continue", objection, ranks));
  }
  return ranks;
}

std::string RankSupervisor::describe_failure(const Outcome& outcome) const {
  const auto& [end, death, explained, stopped] = outcome;
  const int signal = killing_signal(outcome);
  const std::string who = death && death->rank >= 0 ? fmt::format("rank {}", death->rank) : "a rank";
  const std::string where = death && !death->host.empty() && hosts_.size() > 1 ? " on " + death->host : "";
  if (signal != 0) return fmt::format("{}{} was ended by {}", who, where, signal_name(signal));
  if (end.signal != 0) return fmt::format("mpirun was ended by {}", signal_name(end.signal));
  if (explained || death) return fmt::format("{}{} failed", who, where);
  return fmt::format("{} failed with exit code {}", mpirun_.path, end.code);
}

int RankSupervisor::report_outcome(const Outcome& outcome, int restarts, int fruitless) const {
  const auto& end = outcome.end;
  if (!failed(outcome) || end.code == 2) return end.code;
  if (fruitless > 1) {
    log::warn("the last {} attempts died without a new checkpoint: the same failure is likely to come again",
              fruitless);
  }
  if (outcome.explained || outcome.stopped) return 1;
  fail("{}{}", describe_failure(outcome),
       restarts > 0 ? fmt::format(", after {} restart{}", restarts, restarts == 1 ? "" : "s")
       : run_       ? "; --max-restarts K restarts from the latest checkpoint when a rank dies"
                    : "");
}

}  // namespace

void add_launch(CLI::App& app) {
  auto options = std::make_shared<LaunchOptions>();
  auto* command = add_command(
      app, "launch", "Train on MPI ranks, on one host or many, and restart when one dies",
      {{"shoal launch -n 4 -- train configs/quickstart.toml", "four processes on this machine"},
       {"shoal launch --hosts a:2,b:2 -- train configs/quickstart.toml run.name=two-hosts",
        "two on each of two hosts, which share this folder and are reached through ssh"},
       {"shoal launch --hosts a:2,b:2 --max-restarts 10 --min-ranks 2 -- train configs/quickstart.toml",
        "restarts from the latest checkpoint when a rank dies, on the remaining hosts when a host is lost"}});
  command->add_option("-n,--ranks", options->ranks, "Ranks to start (default: the total of --hosts)")
      ->check(takes_integer(1, 1'000'000));
  command->add_option("--hosts", options->hosts, "HOST:RANKS, ...; HOST alone takes one rank")
      ->option_text("a:2,b:2");
  command
      ->add_option("--max-restarts", options->max_restarts,
                   "Number of restarts, from the latest complete checkpoint, when a rank dies")
      ->check(takes_integer(0, 1'000'000))
      ->capture_default_str();
  command
      ->add_option("--min-ranks", options->min_ranks,
                   "Smallest number of ranks to continue with when a host stops answering or a gossip worker "
                   "dies (default: all ranks; with gossip two workers)")
      ->check(takes_integer(1, 1'000'000));
  command->add_option("--remote-shell", options->remote_shell, "Program that runs a command on a host")
      ->capture_default_str();
  command->add_option("--mpirun", options->mpirun, "The mpirun to use (default: the first in PATH)")
      ->option_text("PROGRAM");
  command->add_option("COMMAND", options->command, "After --: a shoal command without the word shoal")
      ->required()
      ->option_text("-- train CONFIG.toml [section.key=value ...]");
  command->callback([options] {
    if (const int code = RankSupervisor(*options).run(); code != 0) throw CLI::RuntimeError(code);
  });
}

}  // namespace shoal::cli
