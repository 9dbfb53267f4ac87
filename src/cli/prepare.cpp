// shoal prepare: text to token files.
#include "data/prepare.h"

#include <memory>

#include "cli/command.h"
#include "core/error.h"
#include "core/text.h"

namespace shoal::cli {
namespace {

void report(const PrepareOptions& options, const DatasetMeta& meta) {
  fmt::print("{}: {} train and {} val tokens, vocabulary {}\n", options.out.string(),
             with_commas(meta.splits.at("train").tokens), with_commas(meta.splits.at("val").tokens),
             meta.vocab_size);
  if (meta.entropy_per_token) {
    fmt::print("entropy of the grammar: {:.4f} nats per token, the floor of any model's expected loss\n",
               *meta.entropy_per_token);
  }
}

}  // namespace

void add_prepare(CLI::App& app) {
  auto options = std::make_shared<PrepareOptions>();
  auto* command = add_command(
      app, "prepare", "Turn text into a dataset",
      {{"shoal prepare synthetic --out data/synthetic", "little plays from a grammar; needs nothing"},
       {"shoal prepare shakespeare-char --out data/shakespeare-char", "TinyShakespeare, letter by letter"},
       {"shoal prepare text books/ more.zip --tokenizer gpt2 --out data/books", "your own text"}});
  command->add_option("dataset", options->dataset, "synthetic, shakespeare-char, shakespeare or text")
      ->required()
      ->check(CLI::IsMember({"synthetic", "shakespeare-char", "shakespeare", "text"}));
  command->add_option("inputs", options->inputs, "text: files, folders, .jsonl, .tar, .zip, .gz, .xz, .zst");
  command->add_option("--out", options->out, "The dataset's folder")->required();
  command->add_option("--tokenizer", options->tokenizer, "text: gpt2, char or bytes")
      ->check(CLI::IsMember({"gpt2", "char", "bytes"}))
      ->capture_default_str();
  command->add_option("--field", options->field, "text: the field of JSONL records that is the text")
      ->capture_default_str();
  command->add_option("--size", options->size, "synthetic: characters to write")
      ->check(CLI::Range(std::int64_t{1000}, std::int64_t{1} << 40))
      ->capture_default_str();
  command->add_option("--val-fraction", options->val_fraction, "Share of the documents that becomes val.bin")
      ->capture_default_str();
  command->add_option("--seed", options->seed, "Of the split, and of the synthetic text")
      ->capture_default_str();
  command->add_option("--from", options->fetch.from,
                      "Folder or URL where needed files are looked for first; $SHOAL_DATA_DIR by default");
  command->add_option("--threads", options->threads, "Threads that tokenize; 0 is all cores")
      ->capture_default_str();
  command->callback([options] {
    if (options->dataset != "text" && !options->inputs.empty()) {
      fail_user("{} takes no input files ({}); use `shoal prepare text` for text of your own",
                options->dataset, options->inputs.front().string());
    }
    if (options->dataset == "text" && options->inputs.empty()) {
      fail_user("give the files, folders or archives to read: shoal prepare text FILE ... --out {}",
                options->out.string());
    }
    report(*options, prepare(*options));
  });
}

}  // namespace shoal::cli
