// shoal launch: its options.
#include <memory>

#include "cli/command.h"
#include "cli/rank_supervisor.h"

namespace shoal::cli {

void add_launch(CLI::App& app) {
  auto options = std::make_shared<LaunchOptions>();
  auto* command = add_command(
      app, "launch", "Train on MPI ranks, on one host or many, and restart when one dies",
      {{"shoal launch -n 4 -- train configs/quickstart.toml", "four processes on this machine"},
       {"shoal launch --hosts a:2,b:2 -- train configs/quickstart.toml run.name=two-hosts",
        "two on each of two hosts, which share this folder and are reached through ssh"},
       {"shoal launch --hosts a:2,b:2 --max-restarts 10 --min-ranks 2 -- train configs/quickstart.toml",
        "restarts from the latest checkpoint when a rank dies, on the remaining hosts when a host is lost"},
       {"shoal launch --hosts-file hosts.txt --max-restarts 10 -- train configs/quickstart.toml",
        "on the hosts of a file that answer, while lines are added and removed"}});
  command
      ->add_option("-n,--ranks", options->ranks,
                   "Ranks to start; with --hosts-file an upper limit (default: all that the hosts take)")
      ->check(takes_integer(1, 1'000'000));
  command->add_option("--hosts", options->hosts, "HOST:RANKS, ...; HOST alone takes one rank")
      ->option_text("a:2,b:2");
  command
      ->add_option(
          "--hosts-file", options->hosts_file,
          "File of hosts, a HOST:RANKS per line, '#' for comments. It is watched: when hosts are added "
          "or removed, the ranks save, stop and go on on the others")
      ->option_text("FILE")
      ->excludes("--hosts");
  command
      ->add_option(
          "--max-restarts", options->max_restarts,
          "Number of restarts, from the latest complete checkpoint, when a rank dies; those for hosts "
          "that come or go do not count")
      ->check(takes_integer(0, 1'000'000))
      ->capture_default_str();
  command
      ->add_option("--min-ranks", options->min_ranks,
                   "Smallest number of ranks to start or continue with when hosts do not answer or a gossip "
                   "worker dies (default: all ranks, with --hosts-file 1; with gossip two workers)")
      ->check(takes_integer(1, 1'000'000));
  command
      ->add_option(
          "--max-wait", options->max_wait,
          "Longest wait for hosts when those that answer have no room for --min-ranks, and for a lost "
          "host to release the run, in seconds")
      ->check(takes_number({.low = 0, .high = 1e6}))
      ->capture_default_str();
  command
      ->add_option("--watch", options->watch,
                   "Seconds between two looks at the hosts file and at hosts that do not answer")
      ->check(takes_number({.low = 0.1, .high = 1e6}))
      ->capture_default_str();
  command->add_option("--remote-shell", options->remote_shell, "Program that runs a command on a host")
      ->capture_default_str();
  command->add_option("--mpirun", options->mpirun, "The mpirun to use (default: the first in PATH)")
      ->option_text("PROGRAM");
  command->add_option("COMMAND", options->command, "After --: a shoal command without the word shoal")
      ->required()
      ->option_text("-- train CONFIG.toml [section.key=value ...]");
  command->callback([options] {
    if (const int code = supervise_ranks(*options); code != 0) throw CLI::RuntimeError(code);
  });
}

}  // namespace shoal::cli
