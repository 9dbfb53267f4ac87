// shoal size: what a model and its training need, before any of it is taken.
#include <fmt/format.h>

#include <filesystem>
#include <memory>

#include "cli/command.h"
#include "core/text.h"
#include "data/dataset.h"
#include "model/unit.h"
#include "train/memory.h"

namespace shoal::cli {
namespace {

namespace fs = std::filesystem;

constexpr std::int64_t kGpt2Vocabulary = 50257;

void line(const std::string& name, const std::string& value, const std::string& remark = {}) {
  fmt::print("  {:<24} {:>16}{}{}\n", name, value, remark.empty() ? "" : "  ", remark);
}

// "859.3 MFLOP"
std::string flops_text(double flops) {
  auto text = format_count(flops);
  const auto digits = text.find_last_of("0123456789") + 1;
  return text.insert(digits, " ") + "FLOP";
}

// The vocabulary comes from the key or from the data, which need not be there yet.
std::string resolve_vocabulary(Config& config) {
  auto& size = config.model.vocab_size;
  if (size > 0) return "model.vocab_size";
  if (fs::exists(config.data.dir)) {
    size = Dataset(config.data.dir).vocab_size();
    return config.data.dir;
  }
  size = kGpt2Vocabulary;
  return fmt::format("GPT-2's: there is no {} yet; model.vocab_size=N sets another", config.data.dir);
}

void print_parameters(const GptConfig& model, const std::vector<UnitSpec>& units) {
  const auto total = parameter_count(units);
  const auto row = [&](const std::string& name, std::size_t first, std::size_t count,
                       const std::string& remark) {
    const auto parameters = parameter_count({units.begin() + static_cast<std::ptrdiff_t>(first),
                                             units.begin() + static_cast<std::ptrdiff_t>(first + count)});
    line(name, with_commas(parameters),
         fmt::format("{:5.1f} %{}{}", 100.0 * static_cast<double>(parameters) / static_cast<double>(total),
                     remark.empty() ? "" : "  ", remark));
  };
  const auto layers = static_cast<std::size_t>(model.n_layer);
  fmt::print("parameters\n");
  row("embedding", 0, 1, "tokens and positions");
  row(fmt::format("{} block{}", layers, layers == 1 ? "" : "s"), 1, layers,
      fmt::format("{} each", with_commas(parameter_count({units[1]}))));
  row("head", layers + 1, 1, "the final norm; its matrix is the embedding's");
  line("total", with_commas(total), format_count(static_cast<double>(total)));
}

void print_files(const std::vector<UnitSpec>& units) {
  // A tensor's entry in a safetensors header is about 80 bytes and its name.
  double data = 0, header = 0;
  for (const auto& unit : units) {
    for (const auto& parameter : unit.parameters) {
      data += 4.0 * static_cast<double>(parameter.shape.count());
      header += 80.0 + static_cast<double>(parameter.name.size());
    }
  }
  fmt::print("\nfiles\n");
  line("parameters alone", format_bytes(data + header), "float32");
  line("checkpoint", format_bytes(3 * (data + header)), "with AdamW's two moments");
}

double mapped_bytes(const fs::path& data) {
  double bytes = 0;
  for (const char* split : {"train.bin", "val.bin"}) {
    std::error_code error;
    const auto size = fs::file_size(data / split, error);
    if (!error) bytes += static_cast<double>(size);
  }
  return bytes;
}

void print_memory(const Config& config, const GptConfig& model) {
  const auto memory = estimate_memory(config, model);
  const auto part = [](const std::string& name, double bytes, const std::string& remark) {
    if (bytes > 0) line(name, format_bytes(bytes), remark);
  };
  fmt::print("\nmemory of training, micro-batches of {} x {} tokens, {}, recompute {}\n",
             config.train.micro_batch, model.block_size, config.train.dtype, config.train.recompute);
  part("weights", memory.weights, "float32");
  part("weights for products", memory.compute_copy, config.train.dtype);
  part("gradients", memory.gradients, "float32");
  part("optimizer", memory.optimizer, "two moments, float32");
  part("activations: blocks", memory.blocks,
       config.train.recompute == "block" ? "of one block; the others are recomputed"
                                         : "train.recompute=block keeps one block's");
  part("activations: stream", memory.streams, "float32, between the blocks");
  part("activations: workspace", memory.workspace, "gradients of activations");
  part("activations: head", memory.head, "one chunk of logits, never all");
  part("batches", memory.batches, "token ids, read ahead");
  part("kernels' scratch", memory.scratch, "tiles of attention, partial sums");
  part("checkpoint", memory.checkpoint, "the copy that is written in the background");
  part("program", memory.program, "with its libraries");
  const double available = available_memory();
  line("total", format_bytes(memory.total()),
       available > 0 ? fmt::format("of {} available{}", format_bytes(available),
                                   memory.total() > available ? ": it does not fit" : "")
                     : "");
  part("token files", mapped_bytes(config.data.dir), "mapped beside it: given back when memory is short");
}

void print_compute(const Config& config, const GptConfig& model) {
  const double per_token = flops_per_token(model);
  const double tokens = static_cast<double>(config.train.global_batch) * model.block_size;
  fmt::print("\ncompute, forward and backward\n");
  line("per token", flops_text(per_token), "6 N + 12 L C T");
  line("per step", flops_text(per_token * tokens),
       fmt::format("of {} x {} = {} tokens", config.train.global_batch, model.block_size,
                   with_commas(static_cast<std::int64_t>(tokens))));
}

void run(const ConfigOptions& options) {
  Config config = options.load();
  const auto source = resolve_vocabulary(config);
  const auto model = to_gpt_config(config.model);
  const auto units = gpt_units(model);
  fmt::print("{} layers, {} heads, width {}, block {}, vocabulary {} ({})\n\n", model.n_layer, model.n_head,
             model.n_embd, model.block_size, with_commas(model.vocab_size), source);
  print_parameters(model, units);
  print_files(units);
  print_memory(config, model);
  print_compute(config, model);
}

}  // namespace

void add_size(CLI::App& app) {
  auto options = std::make_shared<ConfigOptions>();
  auto* command =
      add_command(app, "size", "Say what a model and its training need: parameters, files, memory, FLOPs",
                  {{"shoal size configs/gpt2-124m.toml", "GPT-2; the data need not be there"},
                   {"shoal size configs/gpt2-124m.toml train.micro_batch=2 train.recompute=block",
                    "what would it save?"}});
  add_config_options(*command, *options);
  command->callback([options] { run(*options); });
}

}  // namespace shoal::cli
