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
  int ranks = 0;      // 0: as many as the hosts have room for
  std::string hosts;  // empty: this machine, or what the batch system gave us
  int max_restarts = 0;
  int min_ranks = 0;  // 0: as many as at first
  std::string remote_shell = "ssh";
  std::string mpirun;
  std::vector<std::string> command;
};

// How all ranks together ended.
struct Outcome {
  ChildEnd end;
  std::optional<RankDeath> death;
  bool explained = false;  // the program has said why
  bool stopped = false;    // because we were asked to
};

// An mpirun may end with 0 all the same: MPICH's where ranks fail together
// (github.com/pmodels/mpich/issues/7057), Open MPI 5's where a host is gone. Then what it or a rank has said
// counts.
bool failed(const Outcome& outcome) {
  return outcome.end.signal != 0 || outcome.end.code != 0 || outcome.explained || outcome.death;
}

std::string name_of_signal(int signal) {
  const char* name = ::sigabbrev_np(signal);
  return name ? fmt::format("SIG{}", name) : fmt::format("signal {}", signal);
}

// That ended a rank; 0: none, as far as mpirun says. Where it says nothing else, it ends with 128 + signal;
// higher codes are its own. What it says without a rank may be of those that it ended itself, after one that
// has said why.
int signal_of(const Outcome& outcome) {
  const auto& [end, death, explained, stopped] = outcome;
  if (explained && (!death || death->rank < 0)) return 0;
  const bool by_signal = end.code > 128 && end.code <= 128 + SIGSYS;
  return death ? death->signal : by_signal ? end.code - 128 : 0;
}

// mpirun knows the hosts then: it runs within a Slurm job, or a cluster's operator has written them down.
bool hosts_are_given() {
  return std::getenv("SLURM_JOB_ID") || std::getenv("OMPI_MCA_orte_default_hostfile") ||
         std::getenv("PRTE_MCA_prte_default_hostfile");
}

void print(std::FILE* stream, const std::string& text) {
  std::fwrite(text.data(), 1, text.size(), stream);
  std::fflush(stream);
}

// Open MPI's mpirun may hang for good when a rank dies while it starts: it is ended so many seconds after its
// last process.
constexpr double kEndsAfter = 10, kLookEvery = 2;

class Launcher {
 public:
  explicit Launcher(LaunchOptions options);
  int run();  // returns the exit code

 private:
  Outcome attempt(int ranks, const std::vector<std::string>& command);
  void on_signal(int signal, Child& child, int stop_signal);
  void check_start();
  std::string drop_silent_hosts();
  std::string drop_worker(const std::optional<RankDeath>& death);
  int ranks_for_restart(const std::string& died, const Outcome& outcome);
  std::string what_died(const Outcome& outcome) const;
  int conclude(const Outcome& outcome, int restarts, int fruitless) const;

  LaunchOptions options_;
  Mpirun mpirun_;
  std::vector<Host> hosts_;
  int room_ = 0;  // for ranks
  std::string program_ = std::filesystem::read_symlink("/proc/self/exe").string();
  std::optional<RunToRestart> run_;
  CaughtSignals signals_;
  int signals_seen_ = 0;
  Stopwatch since_kill_;
};

Launcher::Launcher(LaunchOptions options) : options_(std::move(options)) {
  if (!options_.hosts.empty()) hosts_ = parse_hosts(options_.hosts);
  if (options_.ranks == 0) options_.ranks = total_slots(hosts_);
  if (options_.ranks == 0) fail_user("say how many ranks to start: shoal launch -n N -- train CONFIG");
  if (!hosts_.empty() && options_.ranks > total_slots(hosts_)) {
    fail_user("-n {}, but --hosts has room for {}; write how many ranks each host takes, e.g. --hosts {}:{}",
              options_.ranks, total_slots(hosts_), hosts_.front().name, options_.ranks);
  }
  room_ = options_.ranks;
  if (options_.min_ranks > options_.ranks)
    fail_user("--min-ranks {} is more than -n {}", options_.min_ranks, options_.ranks);
  for (const auto& word : options_.command) {
    if (word == "--ranks" || word.starts_with("--ranks="))
      fail_user("--ranks starts threads, and launch starts MPI ranks: leave --ranks out");
  }
  run_ = RunToRestart::of(options_.command, options_.ranks, fewest_on_a_host(hosts_, options_.ranks));
  if (options_.min_ranks == 0) {
    const int workers = run_ ? 2 * run_->ranks_of_worker() : 0;
    options_.min_ranks = workers > 0 ? std::min(workers, options_.ranks) : options_.ranks;
  }
  mpirun_ = find_mpirun(options_.mpirun);
  check_start();
}

void Launcher::check_start() {
  const auto objections = check_hosts(hosts_, options_.remote_shell, program_);
  for (std::size_t i = 0; i < hosts_.size(); ++i) {
    if (!objections[i].empty())
      fail_user("host {} {}; fix that or leave it out of --hosts", hosts_[i].name, objections[i]);
  }
  const int cores = static_cast<int>(std::thread::hardware_concurrency());
  if (hosts_.empty() && options_.ranks > cores && !hosts_are_given())
    log::info("{} ranks share {} core{}", options_.ranks, cores, cores == 1 ? "" : "s");
}

int Launcher::run() {
  auto command = options_.command;
  int ranks = options_.ranks, restarts = 0;
  int fruitless = 0;  // attempts in a row that left no new checkpoint
  auto step = run_ ? run_->latest_step() : std::nullopt;
  while (true) {
    const auto outcome = attempt(ranks, command);
    const bool died = failed(outcome) && outcome.end.code != 2;
    if (!died || outcome.stopped || !run_) return conclude(outcome, 0, 0);
    const auto before = std::exchange(step, run_->latest_step());
    fruitless = step == before ? fruitless + 1 : 0;
    if (restarts == options_.max_restarts) return conclude(outcome, restarts, fruitless);

    const auto cause = what_died(outcome);
    ranks = ranks_for_restart(cause, outcome);
    if (signals_seen_ > 0) return conclude(outcome, 0, 0);
    ++restarts;
    command = run_->restart_command(ranks);
    log::warn("{}; restart {} of {}, on {} rank{}, {}{}", cause, restarts, options_.max_restarts, ranks,
              ranks == 1 ? "" : "s", step ? fmt::format("from step {}", *step) : "from the beginning",
              fruitless > 1 ? fmt::format(" (no new checkpoint in {} attempts)", fruitless) : "");
  }
}

Outcome Launcher::attempt(int ranks, const std::vector<std::string>& command) {
  std::vector<std::string> program = {program_};
  program.insert(program.end(), command.begin(), command.end());
  const auto call = mpirun_call(mpirun_, ranks, hosts_, options_.remote_shell, program);
  OutputFilter out, err;
  Child child(call.arguments, call.environment);
  Stopwatch alone;  // mpirun, after its last process
  for (bool ended = false, started = false; !ended;) {
    const auto heard = child.hear(kLookEvery, &signals_);
    ended = heard.ended;
    print(stdout, out.feed(heard.out));
    print(stderr, err.feed(heard.err));
    if (heard.signal != 0) on_signal(heard.signal, child, call.stop_signal);
    if (signals_seen_ > 1 && since_kill_.seconds() > 4) child.send(SIGKILL);
    const bool running = child.has_children();
    started |= running;
    if (running || !started) alone.restart();
    if (!ended && alone.seconds() > kEndsAfter) child.send(SIGKILL);
  }
  print(stdout, out.finish());
  print(stderr, err.finish());
  return {.end = child.end(),
          .death = err.death() ? err.death() : out.death(),
          .explained = err.saw_error(),
          .stopped = signals_seen_ > 0};
}

// The first is passed on, so that the ranks save and end well; the second ends them.
void Launcher::on_signal(int signal, Child& child, int stop_signal) {
  if (++signals_seen_ == 1) {
    log::info("{}: the ranks are asked to save and stop; once more ends them at once",
              name_of_signal(signal));
    child.send(stop_signal);
  } else if (signals_seen_ == 2) {
    since_kill_.restart();
    child.send(SIGTERM);
  } else {
    child.send(SIGKILL);
  }
}

// The names of the hosts that do not answer any more, which are not used again.
std::string Launcher::drop_silent_hosts() {
  const auto objections = check_hosts(hosts_, options_.remote_shell, program_);
  std::vector<Host> left;
  std::string gone;
  for (std::size_t i = 0; i < hosts_.size(); ++i) {
    if (objections[i].empty()) {
      left.push_back(hosts_[i]);
    } else {
      log::warn("host {} {}: it is left out from now on", hosts_[i].name, objections[i]);
      gone += (gone.empty() ? "" : ", ") + hosts_[i].name;
    }
  }
  hosts_ = std::move(left);
  if (!gone.empty()) room_ = std::min(room_, total_slots(hosts_));
  return gone;
}

// The place of the worker that died is not used again. Returns its name.
std::string Launcher::drop_worker(const std::optional<RankDeath>& death) {
  const int ranks = run_->ranks_of_worker();
  room_ -= ranks;
  const auto host = std::ranges::find(hosts_, death ? death->host : "", &Host::name);
  if (host != hosts_.end() && host->slots > ranks) {
    host->slots -= ranks;
  } else if (host != hosts_.end() && hosts_.size() > 1) {
    hosts_.erase(host);
  }
  if (!hosts_.empty()) room_ = std::min(room_, total_slots(hosts_));
  return death && death->rank >= 0 ? fmt::format("worker {}", death->rank / ranks) : "the worker that died";
}

// Ranks of one model can take each other's place, so all start again where hosts answer. A worker of gossip
// is alone with its model: where one died without a word, the others go on without it, if they may be fewer.
int Launcher::ranks_for_restart(const std::string& died, const Outcome& outcome) {
  auto without = drop_silent_hosts();
  const int least = options_.min_ranks, worker = run_->ranks_of_worker();
  const bool killed = signal_of(outcome) != 0 || !outcome.explained;
  const bool drops_worker =
      without.empty() && killed && worker > 0 && worker < room_ && least < options_.ranks;
  if (drops_worker) without = drop_worker(outcome.death);
  const auto objection_to = [&](int ranks) {
    return run_->objection_to(ranks, fewest_on_a_host(hosts_, ranks));
  };
  int ranks = room_;
  while (ranks >= least && !objection_to(ranks).empty()) --ranks;
  const auto room =
      fmt::format("without {} there is room for {} rank{}", without, room_, room_ == 1 ? "" : "s");
  if (room_ < least) fail("{}, and {} only, which --min-ranks {} does not allow", died, room, least);
  const auto objection = objection_to(room_);
  if (ranks < least) {
    fail("{}, and {}, but {}; nor would any other number down to --min-ranks {}{}", died, room, objection,
         least, drops_worker ? fmt::format("; with --min-ranks {} all start again", options_.ranks) : "");
  }
  if (drops_worker || !objection.empty()) {
    log::warn("{}{}", room, objection.empty() ? "" : fmt::format(", but {}: {} go on", objection, ranks));
  }
  return ranks;
}

std::string Launcher::what_died(const Outcome& outcome) const {
  const auto& [end, death, explained, stopped] = outcome;
  const int signal = signal_of(outcome);
  const std::string who = death && death->rank >= 0 ? fmt::format("rank {}", death->rank) : "a rank";
  const std::string where = death && !death->host.empty() && hosts_.size() > 1 ? " on " + death->host : "";
  if (signal != 0) return fmt::format("{}{} was ended by {}", who, where, name_of_signal(signal));
  if (end.signal != 0) return fmt::format("mpirun was ended by {}", name_of_signal(end.signal));
  if (explained || death) return fmt::format("{}{} failed", who, where);
  return fmt::format("{} failed with exit code {}", mpirun_.path, end.code);
}

int Launcher::conclude(const Outcome& outcome, int restarts, int fruitless) const {
  const auto& end = outcome.end;
  if (!failed(outcome) || end.code == 2) return end.code;
  if (fruitless > 1) {
    log::warn("the last {} attempts died without a new checkpoint: the same failure is likely to come again",
              fruitless);
  }
  if (outcome.explained || outcome.stopped) return 1;
  fail("{}{}", what_died(outcome),
       restarts > 0 ? fmt::format(", after {} restart{}", restarts, restarts == 1 ? "" : "s")
       : run_       ? "; --max-restarts K goes on from the latest checkpoint when that happens"
                    : "");
}

}  // namespace

void add_launch(CLI::App& app) {
  auto options = std::make_shared<LaunchOptions>();
  auto* command = add_command(
      app, "launch", "Train on MPI ranks, on one host or many, and start again when one dies",
      {{"shoal launch -n 4 -- train configs/quickstart.toml", "four processes on this machine"},
       {"shoal launch --hosts a:2,b:2 -- train configs/quickstart.toml run.name=two-hosts",
        "two on each of two hosts, which share this folder and are reached through ssh"},
       {"shoal launch --hosts a:2,b:2 --max-restarts 10 --min-ranks 2 -- train configs/quickstart.toml",
        "goes on from the latest checkpoint when a rank dies, on what is left when a host is gone"}});
  command
      ->add_option("-n,--ranks", options->ranks, "Ranks to start (default: as many as --hosts has room for)")
      ->check(takes_integer(1, 1'000'000));
  command->add_option("--hosts", options->hosts, "HOST:RANKS, ...; HOST alone takes one rank")
      ->option_text("a:2,b:2");
  command
      ->add_option("--max-restarts", options->max_restarts,
                   "Number of restarts, from the latest whole checkpoint, when a rank dies")
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
    if (const int code = Launcher(*options).run(); code != 0) throw CLI::RuntimeError(code);
  });
}

}  // namespace shoal::cli
