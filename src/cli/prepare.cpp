// shoal prepare: turns text into token files.
#include "data/prepare.h"

#include <fmt/ranges.h>

#include <memory>
#include <set>
#include <string>

#include "cli/command.h"
#include "cli/command_table.h"
#include "core/error.h"
#include "core/interrupt.h"
#include "core/log.h"
#include "core/text.h"
#include "data/openwebtext.h"
#include "data/tokenizer_choice.h"

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
  if (std::filesystem::exists(options.out / "merges.txt")) {
    fmt::print("its tokenizer: vocab.json and merges.txt in {0}; --tokenizer {0} takes it for other text\n",
               options.out.string());
  }
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
      return "\nOther tokenizers need no files: --tokenizer char, bytes or bpe:8192 (learnt from the text)";
    case PrepareError::Fault::only_raw:
      return "; leave out --unk";
    case PrepareError::Fault::only_unk:
      return "; --unk takes it";
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

// The options as they were given on the command line.
struct Arguments {
  PrepareOptions options;
  std::vector<std::string> from;
  std::set<std::string> named;  // options on the command line, "--tokenizer"
  bool has(const char* option) const { return named.contains(option); }
};

bool is_url(const std::string& text) { return text.find("://") != std::string::npos; }

void check_options(const Arguments& given, const DatasetScheme& scheme) {
  const auto& options = given.options;
  const auto& dataset = options.dataset;
  if (options.truncate < 1 && !scheme.takes_truncate) {
    fail_user("{} takes no --truncate; `shoal prepare text` does", dataset);
  }
  if (!scheme.takes_splits && (!options.val.empty() || !options.test.empty())) {
    fail_user("{} takes no --val and no --test; `shoal prepare text` does", dataset);
  }
  if (options.unk && !scheme.is_wikitext)
    fail_user("{} takes no --unk; wikitext-2 and wikitext-103 do", dataset);
  if (given.has("--size") && dataset != "synthetic") fail_user("{} takes no --size; synthetic does", dataset);
  if (given.has("--save-every") && dataset != "openwebtext")
    fail_user("{} takes no --save-every; openwebtext does", dataset);
  if (given.has("--field") && dataset != "text" && dataset != "openwebtext")
    fail_user("{} takes no --field; text and openwebtext do", dataset);
  if (scheme.is_wikitext && given.has("--val-fraction")) {
    fail_user("{} comes in splits and takes no --val-fraction", dataset);
  }
  if (!options.val.empty() && given.has("--val-fraction")) {
    fail_user("--val and --val-fraction {} both choose the val split; leave one of them out",
              options.val_fraction);
  }
  if (!scheme.takes_inputs && !options.inputs.empty()) {
    fail_user("{} takes no input files ({}); use `shoal prepare text` for text of your own", dataset,
              options.inputs.front().string());
  }
  if (!scheme.tokenizer.empty() && given.has("--tokenizer") && options.tokenizer != scheme.tokenizer) {
    fail_user("{}: the tokenizer is {}; for --tokenizer {} use `shoal prepare text`", dataset,
              scheme.tokenizer, options.tokenizer);
  }
}

// Decides what --from names: the text, or the place where needed files are looked for first.
void assign_from(const std::vector<std::string>& from, const DatasetScheme& scheme, PrepareOptions& options) {
  const bool corpus = options.dataset == "openwebtext";
  const bool text = scheme.takes_inputs && options.inputs.empty();
  if (corpus || text || (scheme.is_wikitext && !from.empty() && !is_url(from.front()))) {
    options.inputs.insert(options.inputs.end(), from.begin(), from.end());
    return;
  }
  if (from.size() > 1) fail_user("--from {}: {} takes one folder or URL", from[1], options.dataset);
  if (!from.empty()) options.fetch.from = from.front();
}

void require_inputs(const PrepareOptions& options, const DatasetScheme& scheme) {
  if (!scheme.takes_inputs || !options.inputs.empty()) return;
  if (options.dataset == "openwebtext") {
    fail_user("openwebtext: name the files or folders of the corpus: --from openwebtext.tar.xz");
  }
  fail_user("give the files, folders or archives to read: shoal prepare text FILE ... --out {}",
            options.out.string());
}

void run_prepare(Arguments given) {
  auto& options = given.options;
  const auto& scheme = *find_dataset_scheme(options.dataset);
  set_stop_message("stopped; no dataset was written");
  if (options.dataset == "openwebtext") {
    set_stop_message("stopped; the same command continues from its last save");
    if (!given.has("--val-fraction")) options.val_fraction = kOpenWebTextValFraction;
    if (!given.has("--seed")) options.seed = kOpenWebTextSeed;
  }
  check_options(given, scheme);
  assign_from(given.from, scheme, options);
  require_inputs(options, scheme);
  try {
    report(options, prepare(options));
  } catch (const PrepareError& error) {
    fail_user("{}{}", error.what(), remedy(error.fault));
  }
}

// The reason why `text` names no tokenizer; "" if it names one.
std::string tokenizer_problem(const std::string& text) {
  try {
    parse_tokenizer_choice(text);
  } catch (const UserError& error) {
    return error.what();
  }
  return "";
}

}  // namespace

void add_prepare(CLI::App& app) {
  auto given = std::make_shared<Arguments>();
  auto* options = &given->options;
  auto* command = add_command(
      app, "prepare", "Turn text into a dataset",
      {{"shoal prepare synthetic --out data/synthetic", "short plays from a grammar; needs no download"},
       {"shoal prepare shakespeare-char --out data/shakespeare-char",
        "TinyShakespeare, a token per character"},
       {"shoal prepare text books/ more.zip --tokenizer bpe:8192 --out data/books",
        "your own text, and a tokenizer learnt from it"},
       {"shoal prepare text most.txt --val some.txt --test rest.txt --out data/mine",
        "text that comes in splits"},
       {"shoal prepare wikitext-103 --out data/wikitext-103", "articles of Wikipedia in GPT-2's tokens"},
       {"shoal prepare openwebtext --from openwebtext.tar.xz --out data/openwebtext",
        "GPT-2's corpus, rebuilt"}});
  std::vector<std::string> names;
  std::vector<std::string_view> with_inputs;
  for (const auto& scheme : dataset_schemes()) {
    names.emplace_back(scheme.name);
    if (scheme.takes_inputs) with_inputs.push_back(scheme.name);
  }
  command->add_option("dataset", options->dataset, fmt::format("One of {}", fmt::join(names, ", ")))
      ->required()
      ->option_text("DATASET")
      ->check([](const std::string& name) { return dataset_problem(name); }, choices_text(names));
  command->add_option("inputs", options->inputs,
                      fmt::format("{}: files, folders, .jsonl, .tar, .zip, .gz, .bz2, .xz, .zst",
                                  fmt::join(with_inputs, ", ")));
  command
      ->add_option("--val", options->val,
                   "text: files, folders and archives for val.bin; all inputs go to train.bin then")
      ->option_text("FILE ...");
  command->add_option("--test", options->test, "text: the same for test.bin (shoal eval --split test)")
      ->option_text("FILE ...");
  command->add_option("--out", options->out, "The dataset's folder")->required()->option_text("DIR");
  command->add_flag("--force", options->force,
                    "Replace the dataset in --out, with everything in that folder");
  command
      ->add_option("--tokenizer", options->tokenizer,
                   "text, wikitext-*: gpt2, char, bytes, bpe:SIZE (a byte-level BPE of SIZE tokens, learnt "
                   "from the train split), or a folder with vocab.json and merges.txt")
      ->check([](const std::string& text) { return tokenizer_problem(text); })
      ->option_text("NAME or DIR")
      ->capture_default_str();
  command
      ->add_option("--field", options->field,
                   "text, openwebtext: the field of JSONL records that is the text")
      ->capture_default_str();
  command->add_option("--size", options->size, "synthetic: characters to write")
      ->check(takes_integer(1000, std::int64_t{1} << 40))
      ->capture_default_str();
  command
      ->add_option("--val-fraction", options->val_fraction,
                   "Share of the documents that becomes val.bin (of up to 20 documents: the end of "
                   "each); openwebtext: 0.0005")
      ->check(takes_number({.low = 0, .high = 1, .low_open = true, .high_open = true}))
      ->capture_default_str();
  command
      ->add_option("--truncate", options->truncate,
                   "text, shakespeare*, wikitext-*: share of the (train) text's characters that is used, "
                   "from the start")
      ->check(takes_number({.low = 0, .high = 1, .low_open = true}))
      ->capture_default_str();
  command
      ->add_option("--seed", options->seed, "Seed of the split and of the synthetic text; openwebtext: 2357")
      ->check(takes_integer(0, kMostInt64))
      ->capture_default_str();
  command
      ->add_option(
          "--from", given->from,
          "text, openwebtext: the text, as inputs; OpenWebText as it is distributed "
          "(openwebtext.tar.xz, urlsf_subset*, .jsonl, .txt). wikitext-*: the .zip, or a folder with it or "
          "with wiki.train.raw and so on. In all other cases: a folder or URL to look in first "
          "for files that would be downloaded (default: $SHOAL_DATA_DIR)")
      ->option_text("FILE, DIR or URL ...");
  command->add_flag(
      "--unk", options->unk,
      "wikitext-*: the text with <unk> for rare words, to compare with papers of word-level models");
  command
      ->add_option(
          "--save-every", options->save_every,
          "openwebtext: seconds between saves; an interrupted preparation continues from the last one")
      ->check(takes_number({.low = 0}))
      ->capture_default_str();
  command->add_option("--threads", options->threads, "Threads that tokenize; 0 is all cores")
      ->check(takes_integer(0))
      ->capture_default_str();
  command->callback([given, command] {
    for (const auto* option : command->get_options())
      if (option->count() > 0) given->named.insert(option->get_name());
    run_prepare(*given);
  });
}

}  // namespace shoal::cli
