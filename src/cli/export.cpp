// shoal export: writes a model in another program's format.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <memory>

#include "checkpoint/huggingface.h"
#include "checkpoint/llmc.h"
#include "checkpoint/nanogpt.h"
#include "checkpoint/peft.h"
#include "cli/command.h"
#include "config/pretrained.h"
#include "core/error.h"
#include "core/file.h"
#include "core/interrupt.h"
#include "core/log.h"
#include "core/progress.h"
#include "core/text.h"
#include "data/bpe_tokenizer.h"
#include "data/staged_folder.h"
#include "train/model_io.h"

namespace shoal::cli {
namespace {

namespace fs = std::filesystem;

struct ExportOptions {
  std::string checkpoint, out;
  std::string format = "hf", dtype = "float32";
  std::string adapter;  // a folder of peft's
  bool unmerge = false, without_adapters = false;
};

constexpr std::string_view kPeft = "peft";

struct ExportFormat {
  std::string_view name, program;
  bool is_folder;  // else a file
  bool has_float16;
  bool needs_bias;
  bool needs_tied;
  std::optional<bool> gelu_tanh;  // the only GELU of the program
  std::uint64_t (*bytes)(const WeightsExport&);
  void (*write)(const WeightsExport&, SliceSource&, const fs::path&, const ExportProgress&);
};

constexpr ExportFormat kFormats[] = {
    {"hf", "Hugging Face's GPT-2", true, true, true, false, {}, hugging_face_bytes, write_hugging_face},
    {"nanogpt-safetensors", "nanoGPT", false, true, false, true, false, nanogpt_bytes, write_nanogpt},
    {"llmc", "llm.c", false, false, true, true, true, llmc_bytes, write_llmc}};

// The model to export: a checkpoint, or weights of another program.
struct ExportSource {
  WeightsExport what;
  std::string name;
  std::unique_ptr<CheckpointReader> checkpoint;
  std::unique_ptr<SliceSource> tensors;
  AdapterModel adapters;  // of the checkpoint; of rank 0: it has none
  std::unique_ptr<PeftReader> peft;
  std::unique_ptr<SliceSource> merged;
  std::unique_ptr<Tokenizer> tokenizer;

  SliceSource& weights() { return merged ? *merged : *tensors; }
};

// Puts adapters into the weights: a checkpoint's own, or those of --adapter.
void merge(const ExportOptions& options, ExportSource& source) {
  if (!options.adapter.empty()) {
    if (source.adapters.rank > 0)
      fail_user("{} has adapters of its own; leave --adapter out", options.checkpoint);
    source.peft = std::make_unique<PeftReader>(options.adapter);
    source.peft->require_blocks(source.what.model.n_layer);
    source.merged = std::make_unique<MergedSource>(*source.tensors, *source.peft, source.peft->model(),
                                                   options.unmerge ? -1 : 1);
  } else if (source.adapters.rank > 0 && !options.without_adapters) {
    source.merged = std::make_unique<MergedSource>(*source.tensors, *source.tensors, source.adapters);
  }
}

ExportSource open_source(const std::string& path) {
  ExportSource source;
  if (const auto named = weights_at(path)) {
    const auto weights = fetch_weights(*named);
    auto reader = open_weights(weights);
    source.what.model = reader->model();
    source.name = weights.path.filename().string();
    source.tokenizer = weights_tokenizer(weights);
    source.tensors = std::move(reader);
  } else {
    source.checkpoint = std::make_unique<CheckpointReader>(path);
    const auto gpt = model_of(*source.checkpoint);
    source.what = {.model = {.n_layer = gpt.n_layer,
                             .n_head = gpt.n_head,
                             .n_embd = gpt.n_embd,
                             .n_positions = gpt.block_size,
                             .vocab_size = gpt.vocab_size,
                             .bias = gpt.bias,
                             .gelu_tanh = gpt.gelu == Gelu::tanh,
                             .tied = gpt.tied},
                   .dropout = gpt.dropout};
    source.adapters = adapters_of(gpt);
    source.name = source.checkpoint->directory().filename().string();
    source.tokenizer = tokenizer_of(*source.checkpoint);
    source.tensors = std::make_unique<WorkerSource>(one_model_of(*source.checkpoint));
  }
  if (source.tokenizer) source.what.end_of_text = source.tokenizer->end_of_text();
  return source;
}

// Ends the export after a signal, which an InterruptGuard holds back: by an exception, so that the part that
// is written goes.
void stop_if_asked() {
  const char* signal = InterruptGuard::requested();
  if (!signal) return;
  log::info("stopped by {}; nothing was exported", signal);
  throw CLI::RuntimeError(InterruptGuard::exit_code(signal));
}

void write(const ExportFormat& format, ExportSource& source, const fs::path& path) {
  Progress progress("exporting " + source.name, static_cast<double>(format.bytes(source.what)), "B");
  format.write(source.what, source.weights(), path, [&](std::uint64_t done) {
    stop_if_asked();
    progress.update(static_cast<double>(done));
  });
  stop_if_asked();
  progress.finish();
}

// Returns whether there are files of a tokenizer.
bool write_folder(const ExportFormat& format, ExportSource& source, const fs::path& out) {
  StagedFolder staged(out);
  staged.begin();
  write(format, source, staged.path());
  const auto files = source.tokenizer ? bpe_files(*source.tokenizer) : std::map<std::string, std::string>();
  for (const auto& [name, text] : files) write_text(staged.path() / name, text);
  staged.commit();
  return !files.empty();
}

void print(const ExportOptions& options, const ExportFormat& format, const WeightsExport& what) {
  const auto& model = what.model;
  fmt::print("{}: {} layers, {} heads, width {}, {} positions, vocabulary {}; {} of {}\n", options.out,
             model.n_layer, model.n_head, model.n_embd, model.n_positions, with_commas(model.vocab_size),
             format_bytes(static_cast<double>(format.bytes(what))), options.dtype);
  if (!model.bias && format.needs_bias) {
    fmt::print("the model has no biases, which {} always has: they are written as zeros\n", format.program);
  }
  if (format.gelu_tanh && *format.gelu_tanh != model.gelu_tanh) {
    fmt::print("the model's GELU is {}, {}'s is {}: its losses are slightly higher there\n",
               model.gelu_tanh ? "the approximation by tanh" : "exact", format.program,
               model.gelu_tanh ? "exact" : "the approximation by tanh");
  }
}

void print_tokenizer(const Tokenizer* tokenizer, bool written) {
  if (written) {
    fmt::print("the tokenizer is {}: vocab.json and merges.txt are there too\n",
               tokenizer->name() == "gpt2" ? "GPT-2's" : "the data's own BPE");
  } else if (tokenizer) {
    fmt::print("no tokenizer is written: the model's is \"{}\", which Hugging Face's GPT-2 does not know\n",
               tokenizer->name());
  } else {
    fmt::print("no tokenizer is written: the data had none\n");
  }
}

// The checkpoint's adapters alone.
void export_peft(const ExportOptions& options) {
  auto source = open_source(options.checkpoint);
  const auto& model = source.adapters;
  if (model.rank == 0) {
    fail_user("{} has no adapters; --format hf writes its weights", options.checkpoint);
  }
  const auto tensors = weights_tensors(source.what.model);
  const auto shape_of = [&](const std::string& layer) {
    return std::ranges::find(tensors, fmt::format("h.0.{}.weight", layer), &WeightsTensor::name)->shape;
  };
  const InterruptGuard guard;
  StagedFolder staged(options.out);
  staged.begin();
  write_peft(model, source.what.model.n_layer, shape_of, *source.tensors, staged.path());
  stop_if_asked();
  staged.commit();
  fmt::print("{}: adapters of rank {}, alpha {}, on {} of {} blocks\n", options.out, model.rank, model.alpha,
             fmt::join(model.layers, ", "), source.what.model.n_layer);
}

void run_export(const ExportOptions& options) {
  const fs::path out = options.out;
  if (options.unmerge && options.adapter.empty())
    fail_user("--unmerge takes adapters out of weights that have them merged; name them, --adapter DIR");
  if (options.format == kPeft) {
    if (options.dtype != "float32") fail_user("--format peft takes --dtype float32");
    if (!options.adapter.empty() || options.without_adapters) {
      fail_user("--format peft writes the checkpoint's own adapters; leave {} out",
                options.adapter.empty() ? "--without-adapters" : "--adapter");
    }
    require_new_folder(out);
    return export_peft(options);
  }
  const auto& format = *std::ranges::find(kFormats, options.format, &ExportFormat::name);
  if (options.dtype == "float16" && !format.has_float16) {
    fail_user("--format {} takes --dtype float32 or bfloat16", format.name);
  }
  format.is_folder ? require_new_folder(out)
                   : require_new_file(fmt::format("--format {} writes a file, and --out", format.name), out);
  auto source = open_source(options.checkpoint);
  merge(options, source);
  if (format.needs_tied && !source.what.model.tied) {
    fail_user(
        "the model in {} has a head of its own (model.tie_embeddings = false), which {} does not have; "
        "--format hf can hold it",
        options.checkpoint, format.program);
  }
  source.what.dtype = options.dtype == "float16"    ? DType::f16
                      : options.dtype == "bfloat16" ? DType::bf16
                                                    : DType::f32;
  const InterruptGuard guard;
  if (format.is_folder) {
    const bool tokenizer = write_folder(format, source, out);
    print(options, format, source.what);
    print_tokenizer(source.tokenizer.get(), tokenizer);
    return;
  }
  std::error_code error;
  if (out.has_parent_path()) fs::create_directories(out.parent_path(), error);
  if (error) fail_user("{} cannot be created: {}", out.parent_path().string(), error.message());
  StagedFile staged(out);
  write(format, source, staged.path());
  staged.commit();
  print(options, format, source.what);
}

}  // namespace

void add_export(CLI::App& app) {
  auto options = std::make_shared<ExportOptions>();
  auto* command = add_command(
      app, "export", "Write a model for other programs",
      {{"shoal export --checkpoint runs/mine --out mine-hf",
        "the latest checkpoint of a run, as Hugging Face's transformers reads it"},
       {"shoal export --checkpoint runs/mine/checkpoints/best --out mine-hf --dtype bfloat16",
        "the best one, in half the size"},
       {"shoal export --checkpoint runs/mine --format llmc --out mine.bin", "as llm.c reads it"},
       {"shoal export --checkpoint nanogpt:ckpt.pt --out mine-hf", "a model of nanoGPT for transformers"},
       {"shoal export --checkpoint runs/mine --format peft --out mine-lora", "a run's adapters, for peft"},
       {"shoal export --checkpoint hf:gpt2 --adapter mine-lora --out merged",
        "weights with adapters merged"}});
  command
      ->add_option("--checkpoint", options->checkpoint,
                   "A run, one of its checkpoints, or weights: a folder in Hugging Face's format, a file of "
                   "nanoGPT or llm.c")
      ->required()
      ->option_text("PATH");
  command
      ->add_option("--out", options->out, "The new folder of hf and peft, the new file of the other formats")
      ->required()
      ->option_text("PATH");
  command
      ->add_option("--format", options->format,
                   "hf: Hugging Face's folder, config.json and model.safetensors. nanogpt-safetensors: "
                   "nanoGPT's state dict. llmc: a .bin of llm.c. peft: a run's adapters (lora.rank), "
                   "adapter_config.json and adapter_model.safetensors; the others merge them")
      ->check(takes_one_of({"hf", "nanogpt-safetensors", "llmc", "peft"}))
      ->capture_default_str();
  command->add_option("--dtype", options->dtype, "float32, bfloat16 or float16")
      ->check(takes_one_of({"float32", "bfloat16", "float16"}))
      ->capture_default_str();
  command
      ->add_option("--adapter", options->adapter,
                   "Adapters to merge into the weights: a folder that peft saved")
      ->option_text("DIR");
  command->add_flag("--unmerge", options->unmerge, "Take the adapters out of the weights instead");
  command->add_flag("--without-adapters", options->without_adapters,
                    "Leave out the adapters that a checkpoint has");
  command->callback([options] { run_export(*options); });
}

}  // namespace shoal::cli
