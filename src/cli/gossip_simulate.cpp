// shoal gossip simulate: predicts step times of gossip and all-reduce on a described network.
#include <fmt/format.h>

#include <cmath>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "cli/gossip.h"
#include "config/schema.h"
#include "core/clock.h"
#include "core/error.h"
#include "core/progress.h"
#include "core/text.h"
#include "model/unit.h"
#include "planner/gossip_simulation.h"

namespace shoal::cli {
namespace {

struct SimulateOptions : TopologyOptions {
  std::string compute = "100", link = "1gbit,1ms", local_link = "50gbit,0.02ms", model = "gpt2",
              clip = "global";
  double bytes = 0;  // 0: not given
  int mtu = 1500;
  double bucket_mib = 25;
  int micro_batches = 1, interval = 0, fragments = 1, overlap = 0;
  std::string compress = "none";
  std::optional<int> steps, warm_up;
  std::uint64_t seed = 1;
  bool json = false;
};

template <typename Make>
auto of_option(const char* option, Make make) {
  try {
    return make();
  } catch (const UserError& error) {
    fail_user("{} {}", option, error.what());
  }
}

// Parses "BANDWIDTH,DELAY", two distributions. Commas inside a distribution are in parentheses.
SimulatedLink parse_link(const char* option, const std::string& text, std::uint32_t purpose) {
  int depth = 0;
  std::size_t comma = 0;
  for (; comma < text.size() && (text[comma] != ',' || depth > 0); ++comma) {
    depth += text[comma] == '(' ? 1 : text[comma] == ')' ? -1 : 0;
  }
  if (comma == text.size()) {
    fail_user("{} '{}': a link is BANDWIDTH,DELAY, e.g. 100mbit,5ms", option, text);
  }
  return of_option(option, [&] {
    return SimulatedLink{{text.substr(0, comma), bandwidth_units(), purpose},
                         {text.substr(comma + 1), time_units(), purpose + 1}};
  });
}

double model_bytes(const std::string& name) {
  std::vector<std::string> names;
  for (const auto& preset : model_presets()) {
    if (preset.name == name) {
      const GptConfig model{.n_layer = preset.n_layer, .n_head = preset.n_head, .n_embd = preset.n_embd};
      return 4.0 * static_cast<double>(parameter_count(gpt_units(model)));
    }
    names.emplace_back(preset.name);
  }
  fail_user("--model {}: there are {}; or give --bytes", name, fmt::join(names, ", "));
}

// None without --interval.
std::optional<OuterOptions> outer_of(const SimulateOptions& options) {
  if (options.interval == 0) {
    if (options.fragments > 1 || options.overlap > 0 || options.compress != "none")
      fail_user("--fragments, --overlap and --compress are of an outer optimizer; give --interval too");
    return std::nullopt;
  }
  if (options.clip == "bucket")
    fail_user("--clip bucket does not go with --interval, whose moves are of all");
  OuterOptions outer{.interval = options.interval, .overlap = options.overlap};
  const auto sent = outer_sent(options.compress);
  if (!sent) fail_user("--compress '{}' is not none, bfloat16, int4 or topk:SHARE", options.compress);
  outer.sent = *sent;
  const std::map<std::string_view, int> values = {
      {"interval", options.interval}, {"fragments", options.fragments}, {"overlap", options.overlap}};
  const auto fault =
      fault_of_turns(options.interval, options.fragments, options.overlap,
                     [&](std::string_view name) { return fmt::format("--{} {}", name, values.at(name)); });
  if (!fault.empty()) fail_user("{}", fault);
  for (int f = 0; f < options.fragments; ++f) outer.fragment_of.push_back(f);
  return outer;
}

SimulatedRun to_run(const SimulateOptions& options) {
  SimulatedRun run;
  run.topology = options.load();
  run.per_host = options.per_node();
  run.compute = of_option("--step-ms", [&] { return Distribution(options.compute, time_units(), 0); });
  run.link = parse_link("--link", options.link, 1);
  run.local = parse_link("--local-link", options.local_link, 3);
  run.mtu = options.mtu;
  run.bytes = options.bytes > 0 ? options.bytes : model_bytes(options.model);
  const double buckets = std::max(1.0, std::ceil(run.bytes / (options.bucket_mib * (1 << 20))));
  constexpr double kMost = 2e9;  // bytes of the simulation's own memory: 8 per worker and bucket
  if (buckets * run.topology.workers * 8 > kMost) {
    fail_user("{} buckets on {} workers are more than this simulation can hold; give a larger --bucket-mib",
              buckets, run.topology.workers);
  }
  run.buckets = static_cast<int>(buckets);
  run.micro_batches = options.micro_batches;
  run.clip_by_bucket = options.clip == "bucket";
  run.outer = outer_of(options);
  if (run.outer && run.outer->sent.kind != OuterSent::Kind::all && !run.topology.is_complete())
    fail_user("--compress {} needs the topology complete: in groups workers send whole models",
              options.compress);
  run.steps = options.steps.value_or(std::max(200, 4 * options.interval));
  if (run.steps < options.interval)
    fail_user("--steps {} are less than --interval {}: nothing would be sent", run.steps, options.interval);
  run.warm_up = options.warm_up;
  if (run.first_measured() >= run.steps) {
    fail_user("--warm-up {} leaves none of the {} steps to measure", run.first_measured(), run.steps);
  }
  run.seed = options.seed;
  return run;
}

std::string milliseconds(double ms) {
  if (ms >= 60e3) return format_duration(ms / 1e3);
  return ms >= 10e3 ? fmt::format("{:.1f} s", ms / 1e3) : fmt::format("{:.4g} ms", ms);
}

// The effect of averaging at every step, without updates.
void print_consensus(const SimulatedRun& run, const SimulatedScheme& gossip, const Consensus& consensus) {
  fmt::print("\nconsensus of {}\n", run.topology.name);
  if (consensus.steps_to_thousandth > 0) {
    fmt::print("  a difference between the workers is down to a thousandth after {} step{}, {}\n",
               consensus.steps_to_thousandth, consensus.steps_to_thousandth == 1 ? "" : "s",
               milliseconds(consensus.steps_to_thousandth * gossip.step_ms));
  } else {
    fmt::print(
        "  a difference between the workers shrinks by {:.3g} per step: not a thousandfold in {} steps\n",
        consensus.decay, run.steps);
  }
  fmt::print("  independent updates leave the workers {:.3g} updates from their mean (rms)\n",
             consensus.updates_apart);
}

void print_json(const SimulatedRun& run, const std::vector<SimulatedScheme>& schemes,
                const Consensus& consensus) {
  nlohmann::ordered_json json{
      {"workers", run.topology.workers}, {"per_host", run.per_host}, {"bytes", run.bytes},
      {"buckets", run.buckets},          {"steps", run.steps},       {"seed", run.seed}};
  for (const auto& [name, step_ms, idle, apart_ms] : schemes) {
    json["schemes"].push_back({{"name", name}, {"step_ms", step_ms}, {"idle", idle}, {"apart_ms", apart_ms}});
  }
  json["consensus"] = {{"decay", consensus.decay},
                       {"steps_to_thousandth", consensus.steps_to_thousandth},
                       {"updates_apart", consensus.updates_apart}};
  fmt::print("{}\n", json.dump(2));
}

void simulate_and_print(const SimulateOptions& options) {
  const auto run = to_run(options);
  Stopwatch watch;
  Progress progress("simulating", run.steps, "steps");
  const auto schemes = simulate(run, [&](int steps) { progress.update(steps); });
  progress.clear();
  const auto consensus = consensus_of(run.topology, run.steps, run.seed);
  if (options.json) return print_json(run, schemes, consensus);
  fmt::print("{}; {} in {} bucket{}; step-ms {}; link {}{}\n\n",
             workers_text(run.topology.workers, run.per_host), format_bytes(run.bytes), run.buckets,
             run.buckets == 1 ? "" : "s", options.compute, options.link,
             run.per_host > 1 ? fmt::format("; on a node {}", options.local_link) : "");
  std::size_t width = 0;
  for (const auto& scheme : schemes) width = std::max(width, scheme.name.size());
  fmt::print("{:<{}}  {:>10}  {:>6}  {} is\n", "", width, "step", "idle", run.outer ? "outer" : "gossip");
  for (const auto& [name, step_ms, idle, apart] : schemes) {
    fmt::print(
        "{:<{}}  {:>10}  {:>4.1f} %{}\n", name, width, milliseconds(step_ms), 100 * idle,
        &name == &schemes[0].name ? "" : fmt::format("  {:.2f} x as fast", step_ms / schemes[0].step_ms));
  }
  run.outer ? fmt::print("\n") : print_consensus(run, schemes[0], consensus);
  fmt::print("  the first worker is {} ahead of the last\n", milliseconds(schemes[0].apart_ms));
  fmt::print(
      "\n{} steps simulated in {}, all but the first {} measured; docs/gossip.md has the model of costs\n",
      run.steps, format_duration(watch.seconds()), run.first_measured());
}

}  // namespace

void add_gossip_simulate(CLI::App& gossip) {
  auto options = std::make_shared<SimulateOptions>();
  auto* command = add_command(
      gossip, "simulate", "Predict step times and consensus on a network, beside all-reduce",
      {{"shoal gossip simulate --workers 8 --topology exp --step-ms 500 --link 100mbit,5ms",
        "a slow network"},
       {"shoal gossip simulate --workers 65536 --topology alternating-exp-ring --step-ms "
        "\"lognormal(3s, 0.1) + mix(0.999: 0, 0.001: 5s)\" --link \"each(lognormal(1gbit, 0.5)), 20ms + "
        "exp(10ms)\"",
        "uneven hosts and occasional stragglers"},
       {"shoal gossip simulate --workers 8 --topology exp --step-ms \"at(3: 200, 100)\" --link 1gbit,1ms",
        "one slow worker"},
       {"shoal gossip simulate --workers 8 --topology complete --step-ms 500 --link 10mbit,50ms --interval "
        "30 "
        "--fragments 4 --overlap 5",
        "an outer optimizer, whose exchanges go on beside the steps"}});
  command->footer(
      command->get_footer() +
      "\n\nDistributions: 100, normal(MEAN, SD), uniform(LOW, HIGH), exp(MEAN), lognormal(MEDIAN, SIGMA),\n"
      "  mix(0.9: DIST, 0.1: DIST), DIST + DIST, DIST * DIST; drawn anew at every step, but\n"
      "  each(DIST) once per worker or host; at(3: DIST, DIST): the first for number 3 only.\n"
      "Units: us, ms, s (plain numbers are ms); kbit, mbit, gbit per second (plain: mbit).");
  const auto text = [&](const char* name, std::string& value, const char* what, const char* form) {
    return command->add_option(name, value, what)->option_text(form);
  };
  command->add_option("--workers", options->workers, "Workers")
      ->required()
      ->check(takes_integer(1, 1 << 20))
      ->option_text("N");
  text("--topology", options->name, "A topology's name or file, as for `shoal gossip topology`",
       "NAME|FILE.toml")
      ->required();
  add_local_size(*command, *options);
  text("--step-ms", options->compute, "A worker's time to compute a step, updates included", "DIST")
      ->capture_default_str();
  text("--link", options->link, "Network between hosts: bandwidth and delay of a message", "DIST,DIST")
      ->capture_default_str();
  text("--local-link", options->local_link, "The same between the workers of a host", "DIST,DIST")
      ->capture_default_str();
  command->add_option("--mtu", options->mtu, "Bytes of a packet between hosts; TCP/IP headers take 52")
      ->check(takes_integer(576, 65536))
      ->capture_default_str()
      ->option_text("N");
  text("--model", options->model, "A preset of model.preset", "NAME")->capture_default_str();
  command->add_option("--bytes", options->bytes, "Bytes of the parameters, instead of a model")
      ->check(takes_number({.low = 0, .low_open = true}))
      ->option_text("X");
  command->add_option("--bucket-mib", options->bucket_mib, "Size of an exchanged bucket")
      ->check(takes_number({.low = 0, .low_open = true}))
      ->capture_default_str()
      ->option_text("MIB");
  text("--clip", options->clip, "global: updates at the end of backward; bucket: in it", "global|bucket")
      ->check(takes_one_of({"global", "bucket"}))
      ->capture_default_str();
  command->add_option("--micro-batches", options->micro_batches, "Micro-batches of a step on each worker")
      ->check(takes_integer(1, 1 << 16))
      ->capture_default_str();
  command
      ->add_option("--interval", options->interval, "Steps between the moves of an outer optimizer; 0: none")
      ->check(takes_integer(0, 1 << 16))
      ->capture_default_str()
      ->option_text("N");
  command->add_option("--fragments", options->fragments, "As outer.fragments")
      ->check(takes_integer(1, 1 << 10))
      ->capture_default_str()
      ->option_text("N");
  command->add_option("--overlap", options->overlap, "As outer.overlap")
      ->check(takes_integer(0, 1 << 16))
      ->capture_default_str()
      ->option_text("N");
  text("--compress", options->compress, "As outer.compress", "none|bfloat16|int4|topk:SHARE")
      ->capture_default_str();
  command->add_option("--steps", options->steps, "Steps to simulate (default: 200, or four intervals)")
      ->check(takes_integer(2, 1 << 20))
      ->option_text("N");
  command
      ->add_option("--warm-up", options->warm_up,
                   "Steps at the beginning that are not measured (default: half)")
      ->check(takes_integer(0))
      ->option_text("N");
  command->add_option("--seed", options->seed, "Seed of the random draws")
      ->check(takes_integer(0, kMostInt64))
      ->capture_default_str();
  command->add_flag("--json", options->json, "Print the numbers as JSON");
  command->callback([options] { simulate_and_print(*options); });
}

}  // namespace shoal::cli
