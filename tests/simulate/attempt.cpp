#include "simulate/attempt.h"

#include <fmt/format.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <nlohmann/json.hpp>

#include "checkpoint/store.h"
#include "comm/messages/run.h"
#include "core/error.h"
#include "core/file.h"
#include "simulate/network.h"
#include "simulate/posix.h"
#include "simulate/real.h"
#include "train/trainer.h"

namespace shoal::simulate {
namespace {

using nlohmann::json;

// Seconds of the system's clock after which an attempt is taken to be stuck outside of the simulation.
constexpr unsigned kRealLimit = 60;

// Trains as `shoal train` does on a rank that mpirun started.
void train(Process& process, Network& network, const std::vector<std::string>& command) {
  SimulatedTransport transport(network, process.rank);
  process.exit_code = 1;
  try {
    messages::run_rank(transport, {.deadline_seconds = kDeadline}, [&](World& world) {
      const auto config = load_config(command.at(1), std::span(command).subspan(2));
      process.exit_code = Trainer(config, world).run().exit_code;
    });
  } catch (const StoppedByPeer&) {
    process.exit_code = 1;
  } catch (const UserError& error) {
    process.exit_code = 2;
    process.error = error.what();
  } catch (const std::exception& error) {
    process.exit_code = 1;
    process.error = error.what();
  }
}

// Kills the other ranks a while after one has ended badly, as mpirun does.
void supervise(Scheduler& scheduler, std::span<Process> ranks, double patience) {
  Time bad_since = kNever;
  while (!std::ranges::all_of(ranks, &Process::ended)) {
    scheduler.sleep_until(scheduler.now() + from_seconds(0.02));
    const bool bad = std::ranges::any_of(
        ranks, [](const Process& process) { return process.ended && process.exit_code != 0; });
    if (bad && bad_since == kNever) bad_since = scheduler.now();
    if (!bad || patience < 0 || scheduler.now() < bad_since + from_seconds(patience)) continue;
    for (auto& process : ranks) {
      if (process.ended) continue;
      process.killed = true;
      scheduler.end(process, 128 + SIGKILL);
    }
  }
}

json to_json(const AttemptEnd& end) {
  json ranks = json::array();
  for (const auto& rank : end.ranks) ranks.push_back({rank.exit_code, rank.killed, rank.error});
  return {{"ranks", ranks},         {"happened", end.happened},     {"failure", end.failure},
          {"saved", end.saved},     {"lost_hosts", end.lost_hosts}, {"power_was_cut", end.power_was_cut},
          {"seconds", end.seconds}, {"messages", end.messages},     {"file_changes", end.file_changes}};
}

AttemptEnd from_json(const json& text) {
  AttemptEnd end{.happened = text["happened"],
                 .failure = text["failure"],
                 .saved = text["saved"],
                 .lost_hosts = text["lost_hosts"],
                 .power_was_cut = text["power_was_cut"],
                 .seconds = text["seconds"],
                 .messages = text["messages"],
                 .file_changes = text["file_changes"]};
  for (const auto& rank : text["ranks"]) end.ranks.push_back({rank[0], rank[1], rank[2]});
  return end;
}

// Ends this process with what there is to say.
[[noreturn]] void report(const AttemptEnd& end, int pipe) {
  const auto text = to_json(end).dump(-1, ' ', false, json::error_handler_t::replace);
  for (std::size_t done = 0; done < text.size();) {
    const auto written = real().write(pipe, text.data() + done, text.size() - done);
    if (written <= 0) break;
    done += static_cast<std::size_t>(written);
  }
  real().exit_now(0);
  __builtin_unreachable();
}

[[noreturn]] void simulate(const Attempt& attempt, int pipe) {
  ::signal(SIGTERM, SIG_DFL);
  ::alarm(kRealLimit);
  Scheduler scheduler(attempt.seed, from_seconds(kLimit),
                      [&](const std::string& why) { report({.failure = "hangs: " + why}, pipe); });
  std::vector<Process> ranks(static_cast<std::size_t>(attempt.ranks));
  for (int rank = 0; rank < attempt.ranks; ++rank) {
    auto& process = ranks[static_cast<std::size_t>(rank)];
    process.rank = rank;
    process.host = rank / attempt.ranks_per_host;
  }
  Disk disk(attempt.disk);
  Faults faults(scheduler, ranks, attempt.faults, attempt.trace);
  Network network(scheduler, faults, attempt.ranks);
  Process launcher;
  take_over_files(&disk, &faults);
  scheduler.run(launcher, [&] {
    for (auto& process : ranks) {
      scheduler.start(process, [&] { train(process, network, attempt.command); });
    }
    supervise(scheduler, ranks, attempt.patience);
  });
  take_over_files(nullptr, nullptr);
  std::string saved;
  if (faults.power_is_cut()) {
    const auto checkpoints = attempt.run / kCheckpointsName;
    std::error_code none;
    saved = std::filesystem::read_symlink(checkpoints / kLatestName, none).string();
    if (!std::filesystem::exists(checkpoints / saved)) saved.clear();  // it was damaged, and put aside
    disk.cut_power(scheduler.random());
  }
  AttemptEnd end{.saved = saved,
                 .lost_hosts = {faults.lost_hosts().begin(), faults.lost_hosts().end()},
                 .power_was_cut = faults.power_is_cut(),
                 .seconds = to_seconds(scheduler.now()),
                 .messages = faults.messages(),
                 .file_changes = faults.file_changes()};
  for (const auto& process : ranks) end.ranks.push_back({process.exit_code, process.killed, process.error});
  for (const auto& fault : faults.happened()) end.happened.push_back(to_string(fault));
  report(end, pipe);
}

std::string read_all(int pipe) {
  std::string text;
  char buffer[4096];
  for (ssize_t count = 0; (count = ::read(pipe, buffer, sizeof buffer)) > 0;) {
    text.append(buffer, static_cast<std::size_t>(count));
  }
  return text;
}

}  // namespace

bool AttemptEnd::succeeded() const {
  return failure.empty() &&
         std::ranges::all_of(ranks, [](const RankEnd& rank) { return rank.exit_code == 0; });
}

std::string AttemptEnd::errors() const {
  std::string text;
  for (const auto& rank : ranks) {
    if (rank.error.empty() || text.find(rank.error) != std::string::npos) continue;
    text += (text.empty() ? "" : "\n") + rank.error;
  }
  return text;
}

AttemptEnd run(const Attempt& attempt) {
  int ends[2];
  if (::pipe(ends) != 0) fail("there is no pipe");
  const FileDescriptor out(ends[0]);
  FileDescriptor in(ends[1]);
  std::fflush(nullptr);
  const pid_t child = ::fork();
  if (child == 0) {
    try {
      simulate(attempt, in.get());
    } catch (const std::exception& error) {
      report({.failure = fmt::format("is not simulated: {}", error.what())}, in.get());
    }
  }
  in = FileDescriptor();
  const auto text = read_all(out.get());
  int status = 0;
  ::waitpid(child, &status, 0);
  if (WIFSIGNALED(status) || text.empty()) {
    const int signal = WIFSIGNALED(status) ? WTERMSIG(status) : 0;
    return {.failure = signal == SIGALRM ? fmt::format("is stuck: nothing happened for {} s", kRealLimit)
                                         : fmt::format("crashes: {}", ::strsignal(signal))};
  }
  return from_json(json::parse(text));
}

}  // namespace shoal::simulate
