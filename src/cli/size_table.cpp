#include "cli/size_table.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <iterator>
#include <sstream>

#include "cli/sizes.h"
#include "config/layout.h"
#include "core/error.h"
#include "core/text.h"
#include "train/disk_space.h"

namespace shoal::cli {
namespace {

struct Size {
  int layers, heads, width;
  bool operator==(const Size&) const = default;
};

// The models in minGPT's example for DDP and FSDP, from its own model to GPT-2 large.
constexpr Size kSizes[] = {{8, 8, 512},    {8, 8, 768},    {12, 8, 768},   {12, 12, 768},
                           {12, 8, 1024},  {16, 8, 1024},  {16, 16, 1024}, {24, 8, 1024},
                           {24, 16, 1024}, {24, 32, 1024}, {36, 16, 1024}, {36, 20, 1280}};

const char* name_of(const Size& size) {
  if (size == Size{12, 12, 768}) return " GPT-2";
  if (size == Size{24, 16, 1024}) return " medium";
  if (size == Size{36, 20, 1280}) return " large";
  return size == Size{48, 25, 1600} ? " xl" : "";
}

// "12/12/768"
Size parse_size(const std::string& text) {
  Size size{};
  const char* at = text.data();
  const char* const end = at + text.size();
  for (int* number : {&size.layers, &size.heads, &size.width}) {
    if (number != &size.layers && (at == end || *at++ != '/')) break;
    const auto read = std::from_chars(at, end, *number);
    if (read.ec != std::errc()) break;
    at = read.ptr;
  }
  if (at != end || size.layers < 1 || size.heads < 1 || size.width < 1) {
    fail_user("--sizes: '{}' is not allowed; it takes layers/heads/width, e.g. 12/12/768,24/16/1024", text);
  }
  if (size.width % size.heads != 0) {
    fail_user("--sizes: '{}' has {} heads, which do not divide its width of {}", text, size.heads,
              size.width);
  }
  return size;
}

std::vector<Size> parse_sizes(const std::string& list) {
  if (list.empty()) return {std::begin(kSizes), std::end(kSizes)};
  std::vector<Size> sizes;
  std::istringstream parts(list + ',');
  for (std::string part; std::getline(parts, part, ',');) sizes.push_back(parse_size(part));
  return sizes;
}

// The config where none is given: a character model, with the vocabulary of Shakespeare's works.
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
  if (options.file.find('=') != std::string::npos) {  // the first word is a setting: no config is given
    options.settings.insert(options.settings.begin(), options.file);
    options.file.clear();
  }
  return options.file.empty() ? parse_config(kDefaults, "shoal size --table", options.settings)
                              : options.load();
}

}  // namespace

void print_size_table(const ConfigOptions& options, int ranks, const std::string& list) {
  const auto sizes = parse_sizes(list);
  Config config = load(options);
  const auto source = resolve_vocabulary(config);
  config.parallel.data = 0;
  // The batch is raised so that every rank has work.
  const auto least = std::int64_t{ranks} * std::max(config.train.micro_batch, 1);
  auto batch = std::max(std::int64_t{config.train.global_batch}, least);
  // All workers must have equally many micro-batches.
  if (config.parallel.engine == EngineKind::gossip) batch = (batch + least - 1) / least * least;
  if (batch > kMostInt) {
    fail_user(
        "{} ranks with micro-batches of {} have a batch of {}, which exceeds {}; lower --ranks or "
        "train.micro_batch",
        with_commas(ranks), with_commas(config.train.micro_batch), with_commas(batch), with_commas(kMostInt));
  }
  config.train.global_batch = static_cast<int>(batch);
  resolve_layout(config, ranks);
  std::vector<RunPlan> plans;
  for (const auto& size : sizes) {
    apply_arguments(config, std::vector{fmt::format("model.n_layer={}", size.layers),
                                        fmt::format("model.n_head={}", size.heads),
                                        fmt::format("model.n_embd={}", size.width)});
    plans.push_back(make_plan(config));
  }
  fmt::print("block {}, vocabulary {} ({})\nmicro-batches of {} x {} tokens, {}, recompute {}\n\n",
             config.model.block_size, with_commas(config.model.vocab_size), source, config.train.micro_batch,
             config.model.block_size, name_of(config.train.dtype), name_of(config.train.recompute));
  const auto mesh = mesh_text(plans.front());
  fmt::print("{:>48}  memory of {} of {}{}\n", "",
             plans.front().backend == BackendKind::cuda ? "the GPU of a rank" : "a rank", ranks,
             mesh.empty() ? "" : ": " + mesh);
  fmt::print("layers heads width    parameters   float32 checkpoint");
  for (int zero = 0; zero <= 3; ++zero) fmt::print("{:>10}", fmt::format("ZeRO-{}", zero));
  fmt::print("\n");
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    const auto& size = sizes[i];
    auto& plan = plans[i];
    const auto units = gpt_units(plan.model);
    const double file = parameter_file_bytes(units);
    fmt::print("{:>6} {:>5} {:>5} {:>13} {:>9} {:>10}", size.layers, size.heads, size.width,
               with_commas(parameter_count(units)), format_bytes(file),
               format_bytes(checkpoint_bytes(plan) / plan.mesh.workers));
    for (int zero = 0; zero <= 3; ++zero) {
      plan.engine.zero = zero;
      fmt::print(" {:>9}", format_bytes(estimate_memory(plan, RankCounts::as_threads(ranks)).of_device()));
    }
    fmt::print("{}\n", name_of(size));
  }
  fmt::print(
      "\nfloat32: a file of the parameters alone; checkpoint: with the optimizer's {}\n"
      "GPT-2, medium, large, xl: the models of that name have blocks of this size\n",
      optimizer_text(plans.front()));
}

}  // namespace shoal::cli
