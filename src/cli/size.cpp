// shoal size: prints the parameters, files, memory and FLOPs of a model and its training.
#include <fmt/format.h>

#include <memory>

#include "cli/command.h"
#include "cli/size_fit.h"
#include "cli/size_table.h"
#include "cli/sizes.h"
#include "config/follow.h"
#include "config/layout.h"
#include "core/error.h"
#include "core/text.h"
#include "launch/ranks.h"
#include "train/disk_space.h"

namespace shoal::cli {
namespace {

void print_parameters(const GptConfig& model, const std::vector<UnitSpec>& units) {
  const auto total = parameter_count(units);
  const auto row = [&](const std::string& name, std::size_t first, std::size_t count,
                       const std::string& remark) {
    const auto parameters = parameter_count({units.begin() + static_cast<std::ptrdiff_t>(first),
                                             units.begin() + static_cast<std::ptrdiff_t>(first + count)});
    print_line(
        name, with_commas(parameters),
        fmt::format("{:5.1f} %{}{}", 100.0 * static_cast<double>(parameters) / static_cast<double>(total),
                    remark.empty() ? "" : "  ", remark));
  };
  const auto layers = static_cast<std::size_t>(model.n_layer);
  fmt::print("parameters\n");
  row("embedding", 0, 1, "tokens and positions");
  row(fmt::format("{} block{}", layers, layers == 1 ? "" : "s"), 1, layers,
      fmt::format("{} each", with_commas(parameter_count({units[1]}))));
  row("head", layers + 1, 1,
      model.tied ? "the final norm; its matrix is the embedding's" : "the final norm, a matrix of its own");
  if (model.lora.rank > 0) row("adapters", layers + 2, layers, fmt::format("of rank {}", model.lora.rank));
  print_line("total", with_commas(total), format_count(static_cast<double>(total)));
  const auto trained = trained_count(units);
  if (trained < total)
    print_line("trained", with_commas(trained),
               fmt::format("{:.2g} %", 100.0 * static_cast<double>(trained) / static_cast<double>(total)));
}

void print_files(const RunPlan& plan, const std::vector<UnitSpec>& units) {
  const double bytes = parameter_file_bytes(units);
  fmt::print("\nfiles\n");
  print_line("parameters alone", format_bytes(bytes), "float32");
  print_line("checkpoint", format_bytes(checkpoint_bytes(plan) / plan.mesh.workers),
             fmt::format("with the optimizer's {}", optimizer_text(plan)));
}

void print_compute(const Config& config, const GptConfig& model) {
  const double per_token = flops_per_token(model);
  const double tokens = static_cast<double>(config.train.global_batch) * model.block_size;
  fmt::print("\ncompute, forward and backward\n");
  const bool whole = model.frozen.empty();
  print_line("per token", flops_text(per_token), whole ? "6 N + 12 L C T" : "4 N + 2 N trained + 12 L C T");
  print_line("per step", flops_text(per_token * tokens),
             fmt::format("of {} x {} = {} tokens", config.train.global_batch, model.block_size,
                         with_commas(static_cast<std::int64_t>(tokens))));
}

void run(const ConfigOptions& options, int asked, const std::string& fit) {
  Config config = options.load();
  const int ranks = ranks_to_start(config, asked, {});
  resolve_layout(config, ranks);
  log_followed(config);
  note_automatic_plan(config);
  const auto source = resolve_vocabulary(config);
  const auto plan = make_plan(config);
  const auto& model = plan.model;
  const auto units = gpt_units(model);
  fmt::print("{}\n", describe(model, source));
  if (!fit.empty()) return print_size_fit(config, fit);
  fmt::print("\n");
  print_parameters(model, units);
  print_files(plan, units);
  print_memory(plan, config.data, RankCounts::as_threads(ranks));
  print_compute(config, model);
}

}  // namespace

void add_size(CLI::App& app) {
  struct Options : ConfigOptions {
    bool table = false;
    std::string sizes;  // models of the table; empty: the standard ones
    int ranks = 0;      // 0: not given
    std::string fit;    // memory of a rank; empty: not given
  };
  auto options = std::make_shared<Options>();
  auto* command = add_command(
      app, "size", "Print the parameters, files, memory and FLOPs of a model and its training",
      {{"shoal size configs/gpt2-124m.toml", "GPT-2; the data need not be there"},
       {"shoal size configs/gpt2-124m.toml train.micro_batch=2 train.recompute=block",
        "memory with smaller micro-batches and recomputation"},
       {"shoal size configs/gpt2-124m.toml --ranks 8 parallel.zero=3", "on each of 8 ranks"},
       {"shoal size configs/gpt2-124m.toml --ranks 8 parallel.pipeline=2 parallel.tensor=2", "in a mesh"},
       {"shoal size configs/gpt2-124m.toml --ranks 4 --fit 16GiB",
        "the largest batch that fits, with and without recomputation"},
       {"shoal size --table --ranks 4", "twelve models from 25M to 708M parameters"},
       {"shoal size --table --sizes 6/6/384,48/25/1600 --ranks 4", "models of your own choice"}});
  command->add_option("CONFIG", options->file, "The run's config, a TOML file (not needed with --table)")
      ->option_text("[CONFIG.toml]");
  add_settings(*command, options->settings);
  command->add_flag(
      "--table", options->table,
      "Twelve standard models: parameters, files, and memory of a rank with ZeRO 0, 1, 2 and 3");
  command
      ->add_option("--sizes", options->sizes,
                   "Models of the table in place of the twelve, as layers/heads/width: 12/12/768,24/16/1024")
      ->option_text("L/H/W,...");
  command
      ->add_option("--ranks", options->ranks,
                   "Ranks that share the run (default: as the config says; for the table 8)")
      ->check(takes_integer(1, 1 << 20));
  command
      ->add_option("--fit", options->fit,
                   "The largest micro-batch whose training fits this memory per rank, e.g. 16GiB")
      ->option_text("SIZE")
      ->excludes("--table", "--sizes");
  command->callback([options] {
    if (options->table || !options->sizes.empty()) {
      return print_size_table(*options, options->ranks > 0 ? options->ranks : 8, options->sizes);
    }
    if (options->file.empty()) fail_user("shoal size needs a config, or --table");
    run(*options, options->ranks, options->fit);
  });
}

}  // namespace shoal::cli
