// shoal prepare: turns text into token files.
#include "data/prepare.h"

#include <fmt/ranges.h>

#include <memory>

#include "cli/command.h"
#include "core/error.h"
#include "core/interrupt.h"
#include "core/log.h"
#include "core/text.h"
#include "data/openwebtext.h"

namespace shoal::cli {
namespace {

void warn_of_short_split(const char* name, std::int64_t tokens) {
  constexpr std::int64_t kUsualBlock = 1024;
  if (tokens > kUsualBlock) return;
  log::warn(
      "{}.bin has only {} tokens: training needs at least model.block_size + 1 (GPT-2: {}); prepare more "
      "text{}",
      name, with_commas(tokens), with_commas(kUsualBlock + 1),
      std::string_view(name) == "val" ? ", raise --val-fraction, or name files for validation with --val"
                                      : "");
}

void report(const PrepareOptions& options, const DatasetMeta& meta) {
  for (const auto* split : {"train", "val"}) warn_of_short_split(split, meta.splits.at(split).tokens);
  const auto tokens = [&](const char* split) { return with_commas(meta.splits.at(split).tokens); };
  const auto val_and_test = meta.splits.contains("test")
                                ? fmt::format(", {} val and {} test", tokens("val"), tokens("test"))
                                : fmt::format(" and {} val", tokens("val"));
  fmt::print("{}: {} train{} tokens, vocabulary {}\n", options.out.string(), tokens("train"), val_and_test,
             meta.vocab_size);
  if (meta.entropy_per_token) {
    fmt::print("entropy of the grammar: {:.4f} nats per token, the floor of any model's expected loss\n",
               *meta.entropy_per_token);
  }
}

const char* remedy(PrepareError::Fault fault) {
  switch (fault) {
    case PrepareError::Fault::folder_in_use:
      return "; choose another --out";
    case PrepareError::Fault::dataset_exists:
      return "; --force replaces it, another --out keeps it";
    case PrepareError::Fault::nothing_left:
      return "; raise --truncate";
    case PrepareError::Fault::empty_split:
      return "; use more text or another --val-fraction";
    case PrepareError::Fault::vocabulary_not_found:
      return "\nThe tokenizers char and bytes need no files: shoal prepare text ... --tokenizer char";
  }
  return "";
}

// The reason why `name` is no dataset; "" if it is one.
std::string dataset_problem(const std::string& name) {
  if (find_dataset_scheme(name) != nullptr) return "";
  std::error_code ignored;
  if (std::filesystem::exists(name, ignored)) {
    auto folder = std::filesystem::path(name).lexically_normal();
    if (!folder.has_filename()) folder = folder.parent_path();
    return fmt::format(
        "\"{}\" is no dataset but a {}; to prepare the text in it: shoal prepare text {} --out {}", name,
        std::filesystem::is_directory(name, ignored) ? "folder" : "file", name,
        ("data" / folder.filename().replace_extension()).string());
  }
  std::vector<std::string> known;
  for (const auto& scheme : dataset_schemes()) known.emplace_back(scheme.name);
  const auto near = nearest(name, known);
  return fmt::format("unknown dataset \"{}\"{}; there are {}", name,
                     near.empty() ? "" : ": did you mean " + near + "?", fmt::join(known, ", "));
}

void check_options(const PrepareOptions& options) {
  const auto& dataset = options.dataset;
  const bool corpus = dataset == "openwebtext";
  if (corpus && options.inputs.empty()) {
    fail_user("openwebtext: name the files or folders of the corpus: --from openwebtext.tar.xz");
  }
  if (corpus && options.tokenizer != "gpt2") {
    fail_user("openwebtext: the tokenizer is gpt2; for --tokenizer {} use `shoal prepare text`",
              options.tokenizer);
  }
  const auto& scheme = *find_dataset_scheme(dataset);
  if (options.truncate < 1 && !scheme.takes_truncate) {
    fail_user("{} takes no --truncate; `shoal prepare text` does", dataset);
  }
  if (!scheme.takes_splits && (!options.val.empty() || !options.test.empty())) {
    fail_user("{} takes no --val and no --test; `shoal prepare text` does", dataset);
  }
}

void run_prepare(const PrepareOptions& options) {
  check_options(options);
  try {
    report(options, prepare(options));
  } catch (const PrepareError& error) {
    fail_user("{}{}", error.what(), remedy(error.fault));
  }
}

}  // namespace

void add_prepare(CLI::App& app) {
  auto options = std::make_shared<PrepareOptions>();
  auto* command = add_command(
      app, "prepare", "Turn text into a dataset",
      {{"shoal prepare synthetic --out data/synthetic", "short plays from a grammar; needs no download"},
       {"shoal prepare shakespeare-char --out data/shakespeare-char",
        "TinyShakespeare, a token per character"},
       {"shoal prepare text books/ more.zip --tokenizer gpt2 --out data/books", "your own text"},
       {"shoal prepare text wiki.train.raw --val wiki.valid.raw --test wiki.test.raw --out data/wikitext",
        "text that comes in splits"},
       {"shoal prepare openwebtext --from openwebtext.tar.xz --out data/openwebtext",
        "GPT-2's corpus, rebuilt"}});
  std::vector<std::string_view> names, with_inputs;
  for (const auto& scheme : dataset_schemes()) {
    names.push_back(scheme.name);
    if (scheme.takes_inputs) with_inputs.push_back(scheme.name);
  }
  command->add_option("dataset", options->dataset, fmt::format("One of {}", fmt::join(names, ", ")))
      ->required()
      ->check([](const std::string& name) { return dataset_problem(name); });
  command->add_option(
      "inputs", options->inputs,
      fmt::format("{}: files, folders, .jsonl, .tar, .zip, .gz, .xz, .zst", fmt::join(with_inputs, ", ")));
  command
      ->add_option("--val", options->val,
                   "text: files, folders and archives for val.bin; all inputs go to train.bin then")
      ->option_text("FILE ...");
  command->add_option("--test", options->test, "text: the same for test.bin (shoal eval --split test)")
      ->option_text("FILE ...");
  command->add_option("--out", options->out, "The dataset's folder")->required()->option_text("DIR");
  command->add_flag("--force", options->force,
                    "Replace the dataset in --out, with everything in that folder");
  command->add_option("--tokenizer", options->tokenizer, "text: gpt2, char or bytes")
      ->check(takes_one_of({"gpt2", "char", "bytes"}))
      ->capture_default_str();
  command
      ->add_option("--field", options->field,
                   "text, openwebtext: the field of JSONL records that is the text")
      ->capture_default_str();
  command->add_option("--size", options->size, "synthetic: characters to write")
      ->check(takes_integer(1000, std::int64_t{1} << 40))
      ->capture_default_str();
  auto* share =
      command
          ->add_option("--val-fraction", options->val_fraction,
                       "Share of the documents that becomes val.bin (of up to 20 documents: the end of "
                       "each); openwebtext: 0.0005")
          ->check(takes_number({.low = 0, .high = 1, .low_open = true, .high_open = true}))
          ->capture_default_str();
  command
      ->add_option("--truncate", options->truncate,
                   "text, shakespeare*: share of the characters that is used, from the start")
      ->check(takes_number({.low = 0, .high = 1, .low_open = true}))
      ->capture_default_str();
  auto* seed = command
                   ->add_option("--seed", options->seed,
                                "Seed of the split and of the synthetic text; openwebtext: 2357")
                   ->check(takes_integer(0, kMostInt64))
                   ->capture_default_str();
  auto from = std::make_shared<std::vector<std::string>>();
  command->add_option(
      "--from", *from,
      "openwebtext: the corpus, files and folders of it as they are distributed (openwebtext.tar.xz, "
      "urlsf_subset*, .jsonl, .txt); its authors and hubs of datasets (as JSON lines) offer it. Other "
      "datasets: the folder or URL where needed files are looked for first (default: $SHOAL_DATA_DIR)");
  command
      ->add_option(
          "--save-every", options->save_every,
          "openwebtext: seconds between saves; an interrupted preparation continues from the last one")
      ->check(takes_number({.low = 0}))
      ->capture_default_str();
  command->add_option("--threads", options->threads, "Threads that tokenize; 0 is all cores")
      ->check(takes_integer(0))
      ->capture_default_str();
  command->callback([options, from, share, seed] {
    set_stop_message("stopped; no dataset was written");
    if (options->dataset == "openwebtext") {
      set_stop_message("stopped; the same command continues from its last save");
      options->inputs.insert(options->inputs.end(), from->begin(), from->end());
      if (share->count() == 0) options->val_fraction = kOpenWebTextValFraction;
      if (seed->count() == 0) options->seed = kOpenWebTextSeed;
      return run_prepare(*options);
    }
    if (from->size() > 1) fail_user("--from {}: only openwebtext takes more than one", from->at(1));
    if (!from->empty()) options->fetch.from = from->front();
    if (!find_dataset_scheme(options->dataset)->takes_inputs && !options->inputs.empty()) {
      fail_user("{} takes no input files ({}); use `shoal prepare text` for text of your own",
                options->dataset, options->inputs.front().string());
    }
    if (!options->val.empty() && share->count() > 0) {
      fail_user("--val and --val-fraction {} both choose the val split; leave one of them out",
                options->val_fraction);
    }
    if (options->dataset == "text" && options->inputs.empty()) {
      fail_user("give the files, folders or archives to read: shoal prepare text FILE ... --out {}",
                options->out.string());
    }
    run_prepare(*options);
  });
}

}  // namespace shoal::cli
