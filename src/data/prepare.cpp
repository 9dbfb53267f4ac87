#include "data/prepare.h"

#include <fmt/ranges.h>
#include <sys/stat.h>

#include <algorithm>
#include <map>
#include <thread>

#include "core/error.h"
#include "core/progress.h"
#include "data/dataset_output.h"
#include "data/documents.h"
#include "data/openwebtext.h"
#include "data/plays.h"
#include "data/prepare_texts.h"
#include "data/staged_folder.h"
#include "data/tokenizer.h"
#include "data/wikitext.h"

namespace shoal {
namespace {

namespace fs = std::filesystem;

// Both plain; a folder is within itself.
bool is_within(const fs::path& path, const fs::path& folder) {
  return std::mismatch(folder.begin(), folder.end(), path.begin(), path.end()).first == folder.end();
}

// Refuses splits that share files, also by links: a loss on text that the model was trained on says nothing.
void refuse_shared_files(const PrepareOptions& options) {
  if (options.val.empty() && options.test.empty()) return;
  std::map<std::pair<dev_t, ino_t>, fs::path> others;  // of test and val, which are small
  for (const auto* split : {&options.test, &options.val, &options.inputs}) {
    decltype(others) own;
    visit_files(*split, places_of(options.out), [&](const fs::path& file) {
      struct stat info {};
      if (::stat(file.c_str(), &info) != 0) return;  // reading it says why
      const std::pair id(info.st_dev, info.st_ino);
      if (const auto found = others.find(id); found != others.end()) {
        fail_user("{} and {} are one file: two splits would share text; give every split files of its own",
                  found->second.string(), file.string());
      }
      if (split != &options.inputs) own.emplace(id, file);
    });
    others.merge(own);
  }
}

// Refuses texts that would be removed with an old dataset or with what a killed process left of one.
void refuse_texts_in_output(const PrepareOptions& options) {
  std::error_code ignored;
  for (const auto& folder : places_of(options.out)) {
    if (!fs::is_directory(folder, ignored)) continue;
    for (const auto* texts : {&options.inputs, &options.val, &options.test}) {
      for (const auto& text : *texts) {
        if (!is_within(plain_path(text), folder)) continue;
        throw PrepareError(
            PrepareError::Fault::folder_in_use,
            fmt::format("{} is in {}, whose files the dataset replaces", text.string(), folder.string()));
      }
    }
  }
}

DatasetMeta prepare_text(const PrepareOptions& options, int threads) {
  if (options.inputs.empty())
    fail_user("prepare text: name the files, folders or archives that hold the text");
  refuse_shared_files(options);
  std::vector<std::string> origins;
  for (const auto& input : options.inputs) origins.push_back(input.string());
  for (const auto& file : options.val) origins.push_back("val: " + file.string());
  for (const auto& file : options.test) origins.push_back("test: " + file.string());
  return prepare_texts(options, {{{options.inputs}, {options.val}, {options.test}}}, threads,
                       std::move(origins));
}

DatasetMeta prepare_shakespeare(const PrepareOptions& given, int threads) {
  const auto& file = remote_file("tinyshakespeare.txt");
  auto options = given;
  options.tokenizer = find_dataset_scheme(options.dataset)->tokenizer;
  return prepare_texts(options, {{{{fetch(file, options.fetch)}}, {}, {}}}, threads, {std::string(file.url)});
}

DatasetMeta prepare_synthetic(const PrepareOptions& options, int threads) {
  if (options.size < 1) fail_user("a size of {} characters is too small; at least 1", options.size);
  StagedFolder folder(options.out, replaces_dataset(options));
  folder.begin();
  const auto grammar = make_play_grammar();
  const auto tokenizer = make_char_tokenizer(grammar->alphabet());
  DatasetOutput out(folder.path(), 2, *tokenizer, threads);

  double information[2] = {0, 0};
  std::int64_t characters[2] = {0, 0};
  Progress progress("writing plays", static_cast<double>(options.size), "tokens");
  std::string play;
  for (std::int64_t i = 0; characters[0] + characters[1] < options.size; ++i) {
    play.clear();
    const auto split = split_draw(options.seed, i) < options.val_fraction ? Split::val : Split::train;
    information[static_cast<int>(split)] +=
        grammar->generate(options.seed, static_cast<std::uint64_t>(i), play);
    characters[static_cast<int>(split)] += static_cast<std::int64_t>(play.size());
    out.pipeline.add(play, split, "synthetic play");
    progress.update(static_cast<double>(characters[0] + characters[1]));
  }
  out.pipeline.finish();
  progress.finish();

  DatasetMeta meta;
  meta.entropy_per_token = grammar->entropy_rate();
  meta.splits["train"].entropy = information[0] / static_cast<double>(characters[0]);
  meta.splits["val"].entropy = information[1] / static_cast<double>(characters[1]);
  meta.sources = {"plays written by Shoal's own grammar"};
  meta.split_rule =
      fmt::format("{:g} % of the plays, drawn with the seed, are val", 100 * options.val_fraction);
  finish_dataset(options, *tokenizer, out.bytes_per_token, out.splits, folder, meta);
  return meta;
}

constexpr DatasetScheme kDatasetSchemes[] = {
    {.name = "synthetic", .tokenizer = "char", .prepare = prepare_synthetic},
    {.name = "shakespeare-char", .tokenizer = "char", .takes_truncate = true, .prepare = prepare_shakespeare},
    {.name = "shakespeare", .tokenizer = "gpt2", .takes_truncate = true, .prepare = prepare_shakespeare},
    {.name = "text",
     .takes_inputs = true,
     .takes_splits = true,
     .takes_truncate = true,
     .prepare = prepare_text},
    {.name = "wikitext-2", .takes_truncate = true, .is_wikitext = true, .prepare = prepare_wikitext},
    {.name = "wikitext-103", .takes_truncate = true, .is_wikitext = true, .prepare = prepare_wikitext},
    {.name = "openwebtext", .tokenizer = "gpt2", .takes_inputs = true, .prepare = prepare_openwebtext},
};

}  // namespace

std::span<const DatasetScheme> dataset_schemes() { return kDatasetSchemes; }

const DatasetScheme* find_dataset_scheme(std::string_view name) {
  const auto* const found = std::ranges::find(kDatasetSchemes, name, &DatasetScheme::name);
  return found == std::end(kDatasetSchemes) ? nullptr : found;
}

DatasetMeta prepare(const PrepareOptions& options) {
  if (!(options.val_fraction > 0 && options.val_fraction < 1)) {
    fail_user("a validation share of {} is not above 0 and below 1", options.val_fraction);
  }
  if (!(options.truncate > 0 && options.truncate <= 1)) {
    fail_user("a share of {:g} of the text is not above 0 and at most 1", options.truncate);
  }
  const auto* const scheme = find_dataset_scheme(options.dataset);
  if (scheme == nullptr) fail_user("unknown dataset \"{}\"", options.dataset);
  if (options.truncate < 1 && !scheme->takes_truncate) {
    fail_user("{} cannot be truncated", options.dataset);
  }
  if (options.unk && !scheme->is_wikitext) fail_user("{} has no text with <unk>", options.dataset);
  if (!scheme->takes_splits && (!options.val.empty() || !options.test.empty())) {
    fail_user("{} takes no files for val and test", options.dataset);
  }
  refuse_texts_in_output(options);
  const int threads = options.threads > 0
                          ? options.threads
                          : std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
  return scheme->prepare(options, threads);
}

}  // namespace shoal
