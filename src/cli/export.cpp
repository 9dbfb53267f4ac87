// shoal export: writes a checkpoint's model in another program's format.
#include <fmt/format.h>

#include <filesystem>
#include <memory>

#include "checkpoint/huggingface.h"
#include "cli/command.h"
#include "core/error.h"
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
};

HuggingFaceExport describe(const CheckpointReader& checkpoint, const Tokenizer* tokenizer, DType dtype) {
  const auto gpt = model_of(checkpoint);
  if (!gpt.tied) fail_user("models with model.tie_embeddings = false cannot be exported yet");
  HuggingFaceExport what{.model = {.n_layer = gpt.n_layer,
                                   .n_head = gpt.n_head,
                                   .n_embd = gpt.n_embd,
                                   .n_positions = gpt.block_size,
                                   .vocab_size = gpt.vocab_size,
                                   .gelu_tanh = gpt.gelu == Gelu::tanh},
                         .bias = gpt.bias,
                         .dtype = dtype,
                         .dropout = gpt.dropout};
  if (tokenizer) what.end_of_text = tokenizer->end_of_text();
  return what;
}

void print(const ExportOptions& options, const HuggingFaceExport& what, std::uint64_t bytes,
           const std::string& tokenizer) {
  fmt::print("{}: {} layers, {} heads, width {}, {} positions, vocabulary {}; {} of {}\n", options.out,
             what.model.n_layer, what.model.n_head, what.model.n_embd, what.model.n_positions,
             with_commas(what.model.vocab_size), format_bytes(static_cast<double>(bytes)), options.dtype);
  if (!what.bias) {
    fmt::print("the model has no biases, which Hugging Face's GPT-2 always has: they are written as zeros\n");
  }
  fmt::print("{}\n", tokenizer);
}

void run_export(const ExportOptions& options) {
  const fs::path out = options.out;
  require_new_folder(out);
  CheckpointReader checkpoint(options.checkpoint);
  const auto tokenizer = tokenizer_of(checkpoint);
  const auto what = describe(checkpoint, tokenizer.get(),
                             options.dtype == "float16"    ? DType::f16
                             : options.dtype == "bfloat16" ? DType::bf16
                                                           : DType::f32);
  auto model = one_model_of(checkpoint);
  const auto bytes = hugging_face_bytes(what);
  StagedFolder staged(out);
  Progress progress("exporting " + checkpoint.directory().filename().string(), static_cast<double>(bytes),
                    "B");
  write_hugging_face(what, model, staged.path(),
                     [&](std::uint64_t done) { progress.update(static_cast<double>(done)); });
  progress.finish();
  const auto files = tokenizer ? bpe_files(*tokenizer) : std::map<std::string, std::string>();
  for (const auto& [name, text] : files) write_text(staged.path() / name, text);
  staged.commit();
  print(options, what, bytes,
        !files.empty() ? fmt::format("the tokenizer is {}: vocab.json and merges.txt are there too",
                                     tokenizer->name() == "gpt2" ? "GPT-2's" : "the data's own BPE")
                       : fmt::format("no tokenizer is written: {}",
                                     tokenizer ? fmt::format("the model's is \"{}\", which Hugging Face's "
                                                             "GPT-2 does not know",
                                                             tokenizer->name())
                                               : "the data had none"));
}

}  // namespace

void add_export(CLI::App& app) {
  auto options = std::make_shared<ExportOptions>();
  auto* command =
      add_command(app, "export", "Write a checkpoint's model for other programs",
                  {{"shoal export --checkpoint runs/mine --out mine-hf",
                    "the latest checkpoint of a run, as Hugging Face's transformers reads it"},
                   {"shoal export --checkpoint runs/mine/checkpoints/best --out mine-hf --dtype bfloat16",
                    "the best one, in half the size"}});
  command->add_option("--checkpoint", options->checkpoint, "A run, or one of its checkpoints")
      ->required()
      ->option_text("DIR");
  command->add_option("--out", options->out, "The new folder")->required()->option_text("DIR");
  command->add_option("--format", options->format, "hf: Hugging Face's, config.json and model.safetensors")
      ->check(takes_one_of({"hf"}))
      ->capture_default_str();
  command->add_option("--dtype", options->dtype, "float32, bfloat16 or float16")
      ->check(takes_one_of({"float32", "bfloat16", "float16"}))
      ->capture_default_str();
  command->callback([options] { run_export(*options); });
}

}  // namespace shoal::cli
