#include "cli/size_table.h"

#include <fmt/format.h>

#include <algorithm>

#include "cli/sizes.h"
#include "core/text.h"
#include "train/layout.h"

namespace shoal::cli {
namespace {

// Three depths at each of four widths, heads 64 wide, between minGPT's usual (8, 8, 512) and GPT-2 large.
struct Size {
  int layers, heads, width;
  const char* name = "";
};
constexpr Size kSizes[] = {{8, 8, 512},    {12, 8, 512},   {16, 8, 512},   {12, 12, 768, "GPT-2"},
                           {18, 12, 768},  {24, 12, 768},  {18, 16, 1024}, {24, 16, 1024, "medium"},
                           {30, 16, 1024}, {24, 20, 1280}, {30, 20, 1280}, {36, 20, 1280, "large"}};

// Where no config is given: a character model, and its vocabulary in Shakespeare's works.
constexpr const char* kDefaults = R"(
run.name = "table"
data.dir = "none"
model.block_size = 128
model.vocab_size = 65
train.global_batch = 8
train.micro_batch = 8
train.steps = 1
)";

Config load(ConfigOptions options) {
  if (options.file.find('=') != std::string::npos) {  // a setting, with no config before it
    options.settings.insert(options.settings.begin(), options.file);
    options.file.clear();
  }
  return options.file.empty() ? parse_config(kDefaults, "shoal size --table", options.settings)
                              : options.load();
}

}  // namespace

void print_size_table(const ConfigOptions& options, int ranks) {
  Config config = load(options);
  const auto source = resolve_vocabulary(config);
  config.parallel.data = 0;
  // No rank is without work, however small the config's batch is.
  const int least = ranks * std::max(config.train.micro_batch, 1);
  config.train.global_batch = std::max(config.train.global_batch, least);
  // Nor does any worker have more than another.
  if (config.parallel.engine == "gossip")
    config.train.global_batch = (config.train.global_batch + least - 1) / least * least;
  resolve_layout(config, ranks);
  fmt::print("block {}, vocabulary {} ({})\nmicro-batches of {} x {} tokens, {}, recompute {}\n\n",
             config.model.block_size, with_commas(config.model.vocab_size), source, config.train.micro_batch,
             config.model.block_size, config.train.dtype, config.train.recompute);
  const auto mesh = mesh_text(config);
  fmt::print("{:>47}  memory of a rank of {}{}\n", "", ranks, mesh.empty() ? "" : ": " + mesh);
  fmt::print("layers heads width  parameters    float32 checkpoint");
  for (int zero = 0; zero <= 3; ++zero) fmt::print("{:>10}", fmt::format("ZeRO-{}", zero));
  fmt::print("\n");
  for (const auto& [layers, heads, width, name] : kSizes) {
    config.model.n_layer = layers;
    config.model.n_head = heads;
    config.model.n_embd = width;
    const auto model = to_gpt_config(config.model);
    check_mesh(config, model);
    const auto units = gpt_units(model);
    const double file = parameter_file_bytes(units);
    fmt::print("{:>6} {:>5} {:>5} {:>11} {:>10} {:>10}", layers, heads, width,
               with_commas(parameter_count(units)), format_bytes(file),
               format_bytes((1 + optimizer_tensors(config)) * file));
    for (int zero = 0; zero <= 3; ++zero) {
      config.parallel.zero = zero;
      const auto memory = estimate_memory(config, model, RankPlaces::as_threads(ranks));
      fmt::print(" {:>9}", format_bytes(memory.total()));
    }
    fmt::print("{}{}\n", *name ? "  " : "", name);
  }
  fmt::print(
      "\nfloat32: a file of the parameters alone; checkpoint: with the optimizer's {}\n"
      "GPT-2, medium, large: the models of that name have blocks of this size\n",
      optimizer_text(config));
}

}  // namespace shoal::cli
