// shoal gossip: prints and checks topologies; gossip simulate is in gossip_simulate.cpp.
#include "cli/gossip.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <memory>

#include "cli/sizes.h"
#include "config/topology_file.h"
#include "core/error.h"
#include "core/terminal.h"
#include "core/text.h"
#include "parallel/gossip/topology_schemes.h"

namespace shoal::cli {
namespace {

// The width for rounds: the terminal's, or a page's where the output is not a terminal.
std::size_t columns_of_rounds() {
  const int columns = terminal_columns(STDOUT_FILENO);
  return columns > 0 ? static_cast<std::size_t>(std::clamp(columns, 60, 110)) : 110;
}
constexpr int kMostRounds = 40;

// "{0-3}", "{0 4}": three or more neighbouring numbers are a range.
std::string group_text(const Topology::Group& group) {
  std::string text = "{";
  for (std::size_t i = 0; i < group.size() && text.size() < columns_of_rounds();) {
    std::size_t end = i + 1;
    while (end < group.size() && group[end] == group[end - 1] + 1) ++end;
    if (end - i < 3) end = i + 1;
    text += fmt::format("{}{}", i > 0 ? " " : "", group[i]);
    if (end - i > 1) text += fmt::format("-{}", group[end - 1]);
    i = end;
  }
  return text + "}";
}

// Prints a round, and returns whether groups were left out.
bool print_round(const Topology& topology, int round) {
  const auto& groups = topology.rounds[static_cast<std::size_t>(round)];
  std::string line = fmt::format("round {:<2}", round);
  const std::size_t room = columns_of_rounds() - 24;
  for (std::size_t i = 0; i < groups.size(); ++i) {
    auto text = group_text(groups[i]);
    if (text.size() > room)
      text = fmt::format("{{{} ... {}: {} workers}}", groups[i].front(), groups[i].back(),
                         with_commas(std::ssize(groups[i])));
    if (line.size() + text.size() > room && i > 0) {
      fmt::print("{} ... and {} more groups\n", line, with_commas(std::ssize(groups) - static_cast<int>(i)));
      return true;
    }
    line += " " + text;
  }
  fmt::print("{}\n", line);
  return false;
}

void print_rounds(const Topology& topology, bool all) {
  bool cut = false;
  for (int round = 0; round < topology.period(); ++round) {
    if (all) {
      std::string line = fmt::format("round {:<2}", round);
      for (const auto& group : topology.rounds[static_cast<std::size_t>(round)]) {
        line += fmt::format(" {{{}}}", fmt::join(group, " "));
      }
      fmt::print("{}\n", line);
    } else if (round == kMostRounds) {
      fmt::print("... and {} more rounds\n", topology.period() - round);
      cut = true;
      break;
    } else {
      cut |= print_round(topology, round);
    }
  }
  if (cut) fmt::print("\nThe rounds are cut; --all prints them whole.\n");
}

std::string average_text(const Topology& topology, const TopologyFacts& facts) {
  const int rounds = facts.rounds_to_average;
  if (rounds == 0) return fmt::format("not within {} rounds", with_commas(facts.rounds_tried));
  return fmt::format("after {} round{}{}", rounds, rounds == 1 ? "" : "s",
                     rounds == topology.period() ? ", one period" : "");
}

// The mean number of models that a worker sends per step: each part of its model to another member of the
// group, then the mean of its own part to all.
double sent_per_step(const Topology& topology) {
  double sent = 0;
  for (const auto& round : topology.rounds) {
    for (const auto& group : round) sent += 2.0 * (static_cast<double>(group.size()) - 1);
  }
  return sent / topology.period() / topology.workers;
}

void print_topology(const TopologyOptions& options, bool all) {
  const auto topology = options.load();
  fmt::print("{}: {}, a period of {} round{}\n\n", topology.name,
             workers_text(topology.workers, options.per_node()), topology.period(),
             topology.period() == 1 ? "" : "s");
  print_rounds(topology, all);
  const auto facts = facts_of(topology);
  const auto yes_or_no = [](bool yes) { return yes ? "yes" : "NO"; };
  fmt::print("\nmatrix W of every round\n");
  print_line("symmetric", yes_or_no(facts.symmetric));
  print_line("doubly stochastic", yes_or_no(facts.doubly_stochastic));
  fmt::print("\naveraging without updates\n");
  print_line("exact average", average_text(topology, facts));
  print_line("spectral gap", fmt::format("{:.6g}", facts.spectral_gap),
             "of the product of a period's matrices");
  print_line("distance to the mean", fmt::format("x {:.10g}", facts.consensus_decay),
             "per round, over the period and the start where it shrinks least");
  print_line("sent per step", fmt::format("{:.3g} x", sent_per_step(topology)),
             "the model's size, by a worker on average");
}

}  // namespace

int TopologyOptions::per_node() const {
  return local_size > 0 ? local_size : default_per_node(name, workers);
}

Topology TopologyOptions::load() const {
  const int number = workers == 0 && is_topology_file(name) ? read_topology(name).workers : workers;
  if (number == 0) fail_user("the number of workers is missing; give --workers N");
  return find_topology(name, number, per_node());
}

void add_local_size(CLI::App& command, TopologyOptions& options) {
  command
      .add_option("--local-size", options.local_size,
                  "Workers on a node; by default 1, for alternating-exp-ring 8, 4 or 2")
      ->check(takes_integer(1, 1 << 20))
      ->option_text("L");
}

std::string workers_text(int workers, int per_node) {
  const int nodes = (workers + per_node - 1) / per_node;
  return fmt::format("{} worker{}{}", with_commas(workers), workers == 1 ? "" : "s",
                     per_node == 1 ? ""
                                   : fmt::format(" on {} node{} of {}", with_commas(nodes),
                                                 nodes == 1 ? "" : "s", with_commas(per_node)));
}

void add_gossip(CLI::App& app) {
  auto* command =
      add_command(app, "gossip", "Print topologies of decentralised training, or predict their speed",
                  {{"shoal gossip topology exp --workers 8", "the groups that average in each round"},
                   {"shoal gossip simulate --workers 64 --topology exp --step-ms 100 --link 1gbit,1ms",
                    "step times of gossip and of all-reduce"}});
  command->callback([command] {
    if (command->get_subcommands().empty()) {
      fail_user(
          "no action is given: use `shoal gossip topology NAME --workers N` or `shoal gossip simulate ...`");
    }
  });
  struct Options : TopologyOptions {
    bool all = false;
  };
  auto options = std::make_shared<Options>();
  auto* topology = add_command(
      *command, "topology", "Print the rounds of a topology, check them, and compute how fast they average",
      {{"shoal gossip topology exp --workers 8", "one partner per round, 1, 2, 4 away"},
       {"shoal gossip topology alternating-exp-ring --workers 16 --local-size 4", "four nodes of four"},
       {"shoal gossip topology mine.toml", "your own: rounds = [[[0, 1], [2, 3]], [[0, 2], [1, 3]]]"}});
  topology
      ->add_option(
          "NAME", options->name,
          fmt::format("{}; or a TOML file with rounds of your own", fmt::join(topology_names(), ", ")))
      ->required()
      ->option_text("NAME|FILE.toml");
  topology->add_option("--workers", options->workers, "Number of workers (a file has its own)")
      ->check(takes_integer(1, 1 << 20))
      ->option_text("N");
  add_local_size(*topology, *options);
  topology->add_flag("--all", options->all, "Print every group of every round, however many");
  topology->callback([options] { print_topology(*options, options->all); });
  add_gossip_simulate(*command);
}

}  // namespace shoal::cli
