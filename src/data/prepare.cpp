#include "data/prepare.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <functional>
#include <limits>
#include <thread>

#include "core/error.h"
#include "core/progress.h"
#include "core/text.h"
#include "data/documents.h"
#include "data/openwebtext.h"
#include "data/plays.h"
#include "data/prepare_parts.h"
#include "data/staged_folder.h"
#include "data/token_pipeline.h"
#include "data/tokenizer.h"

namespace shoal {
namespace {

namespace fs = std::filesystem;

std::int64_t count_characters(std::string_view text) {
  return std::count_if(text.begin(), text.end(),
                       [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; });
}

// The offset of character number `index` in bytes.
std::size_t character_offset(std::string_view text, std::int64_t index) {
  for (std::size_t i = 0; i < text.size(); ++i) {
    if ((static_cast<unsigned char>(text[i]) & 0xC0) != 0x80 && index-- == 0) return i;
  }
  return text.size();
}

// The path without symbolic links and without a trailing slash.
fs::path plain(const fs::path& path) {
  auto result = fs::weakly_canonical(path);
  return result.has_filename() ? result : result.parent_path();
}

// Refuses splits that share files: a loss on text that the model was trained on says nothing.
void refuse_shared_files(const std::vector<fs::path>& split, const std::vector<fs::path>& other) {
  const auto within = [](const fs::path& path, const fs::path& folder) {
    return std::mismatch(folder.begin(), folder.end(), path.begin(), path.end()).first == folder.end();
  };
  for (const auto& a : split) {
    for (const auto& b : other) {
      const auto one = plain(a), two = plain(b);
      if (!within(one, two) && !within(two, one)) continue;
      fail_user("{} and {} are given for two splits and share text; give every split files of its own",
                a.string(), b.string());
    }
  }
}

constexpr std::int64_t kAll = std::numeric_limits<std::int64_t>::max();

// Calls `visit` for the pieces of the first `characters` characters of options.inputs (as train), then for
// the pieces of options.val and options.test. When it returns false, the rest of that split is left out.
void read_texts(const PrepareOptions& options, std::int64_t characters, bool report_skipped,
                Progress& progress, const std::function<bool(const DocumentPiece&, Split)>& visit) {
  const std::vector<fs::path>* const given[] = {&options.inputs, &options.val, &options.test};
  double total = 0, before = 0;
  std::vector<double> sizes;
  for (const auto* paths : given) total += sizes.emplace_back(input_size(*paths));
  progress.set_total(total);
  for (const auto split : {Split::train, Split::val, Split::test}) {
    const auto index = static_cast<std::size_t>(split);
    const auto& paths = *given[index];
    if (paths.empty()) continue;
    bool found = false;
    read_documents(paths, {.field = options.field, .report_skipped = report_skipped},
                   [&](const DocumentPiece& piece) {
                     found = true;
                     progress.update(before + piece.input_bytes);
                     if (split != Split::train || characters == kAll) return visit(piece, split);
                     const auto count = count_characters(piece.text);
                     if (count < characters) {
                       characters -= count;
                       return visit(piece, split);
                     }
                     auto rest = piece;
                     rest.text = piece.text.substr(0, character_offset(piece.text, characters));
                     rest.last = true;
                     visit(rest, split);
                     return false;
                   });
    if (!found) fail_user("no text found in {}", paths.front().string());
    before += sizes[index];
  }
}

// Facts about the documents that must be known before tokenizing starts.
struct Survey {
  std::int64_t characters = kAll;                   // of the inputs that are used
  std::int64_t documents = 0;                       // counted only as far as the split needs it
  std::vector<std::int64_t> document_characters{};  // of the first kCutDocuments

  bool each_is_cut() const { return documents <= kCutDocuments; }
};

std::int64_t truncated_characters(const PrepareOptions& options) {
  if (options.truncate == 1) return kAll;
  std::int64_t characters = 0;
  Progress progress("counting", 0, "B");
  read_texts(options, kAll, false, progress, [&](const DocumentPiece& piece, Split split) {
    if (split == Split::train) characters += count_characters(piece.text);
    return split == Split::train;
  });
  progress.finish();
  const auto kept = static_cast<std::int64_t>(options.truncate * static_cast<double>(characters));
  if (kept == 0) {
    throw PrepareError(
        PrepareError::Fault::nothing_left,
        fmt::format("a share of {:g} leaves none of the {} characters", options.truncate, characters));
  }
  return kept;
}

Survey survey_documents(const PrepareOptions& options, CharVocabulary* vocabulary) {
  Survey survey{.characters = truncated_characters(options)};
  const auto enough = std::max(few_documents(options.val_fraction), kCutDocuments + 1);
  Progress progress("reading", 0, "B");
  read_texts(options, survey.characters, false, progress, [&](const DocumentPiece& piece, Split split) {
    if (split == Split::train) {
      survey.documents += piece.first ? 1 : 0;
      if (survey.documents <= kCutDocuments) {
        survey.document_characters.resize(static_cast<std::size_t>(survey.documents));
        survey.document_characters.back() += count_characters(piece.text);
      }
    }
    if (vocabulary == nullptr) {
      return split == Split::train && options.val.empty() && survey.documents < enough;
    }
    try {
      vocabulary->add(piece.text);
    } catch (const UserError& error) {
      const auto from =
          piece.offset == 0 ? "" : fmt::format(" (counting from byte {})", with_commas(piece.offset));
      fail_user("{}{}: {}", piece.name, from, error.what());
    }
    return true;
  });
  progress.finish();
  return survey;
}

std::vector<SplitWriter> open_splits(const fs::path& folder, std::size_t count, int bytes_per_token) {
  std::vector<SplitWriter> splits;
  for (std::size_t i = 0; i < count; ++i) {
    splits.emplace_back(folder / fmt::format("{}.bin", kSplitNames[i]), bytes_per_token);
  }
  return splits;
}

// The dataset being written.
struct Output {
  // `count` splits: train, val and perhaps test.
  Output(const fs::path& folder, std::size_t count, const Tokenizer& tokenizer, int threads)
      : bytes_per_token(token_width(tokenizer)),
        splits(open_splits(folder, count, bytes_per_token)),
        pipeline(tokenizer, splits, threads) {}

  int bytes_per_token;
  std::vector<SplitWriter> splits;
  TokenPipeline pipeline;
};

void tokenize_documents(const PrepareOptions& options, const Survey& survey, const Tokenizer& tokenizer,
                        Output& out) {
  const auto end_of_text = tokenizer.end_of_text();
  const SplitRule rule(options.seed, options.val_fraction, survey.documents);
  std::int64_t document = -1, characters = 0;
  Progress progress("tokenizing", 0, "B");
  const auto cut = [&](const DocumentPiece& piece) {
    if (piece.first && document > 0 && end_of_text) {
      for (const auto split : {Split::train, Split::val}) out.pipeline.add_end_of_text(split);
    }
    if (piece.first) characters = 0;
    const auto all = static_cast<double>(survey.document_characters[static_cast<std::size_t>(document)]);
    const auto of_train = static_cast<std::int64_t>((1 - options.val_fraction) * all);
    const auto at = character_offset(piece.text, std::max<std::int64_t>(of_train - characters, 0));
    characters += count_characters(piece.text);
    out.pipeline.add(piece.text.substr(0, at), Split::train, std::string(piece.name));
    out.pipeline.add(piece.text.substr(at), Split::val, std::string(piece.name));
  };
  read_texts(options, survey.characters, true, progress, [&](const DocumentPiece& piece, Split split) {
    if (split == Split::train && options.val.empty()) {
      document += piece.first ? 1 : 0;
      if (survey.each_is_cut()) return cut(piece), true;
      split = rule(document);
    }
    out.pipeline.add(piece.text, split, std::string(piece.name));
    if (piece.last && end_of_text) out.pipeline.add_end_of_text(split);
    return true;
  });
  out.pipeline.finish();
  progress.finish();
}

std::string split_rule(const PrepareOptions& options, const Survey& survey) {
  const auto percent = fmt::format("{:g} %", 100 * options.val_fraction);
  const auto val = !options.val.empty()    ? "the files given for val are val"
                   : survey.documents == 1 ? fmt::format("the last {} of the characters are val", percent)
                   : survey.each_is_cut()
                       ? fmt::format("the last {} of each document's characters are val", percent)
                       : fmt::format("{} of the documents, drawn with the seed, are val", percent);
  const auto used = options.truncate < 1
                        ? fmt::format("the first {:g} % of the characters are used, ", 100 * options.truncate)
                        : "";
  return used + val + (options.test.empty() ? "" : ", those given for test are test");
}

std::unique_ptr<Tokenizer> load_gpt2(const FetchOptions& options) try {
  return load_bpe_tokenizer(fetch_gpt2_vocabulary(options));
} catch (const UserError& error) {
  throw PrepareError(PrepareError::Fault::vocabulary_not_found, error.what());
}

DatasetMeta prepare_texts(const PrepareOptions& options, int threads, std::vector<std::string> sources) {
  if (options.inputs.empty())
    fail_user("prepare text: name the files, folders or archives that hold the text");
  refuse_shared_files(options.inputs, options.val);
  refuse_shared_files(options.inputs, options.test);
  refuse_shared_files(options.val, options.test);
  StagedFolder folder(options.out, replaces_dataset(options));
  const auto& name = options.tokenizer;
  if (name != "gpt2" && name != "char" && name != "bytes") {
    fail_user("the tokenizer \"{}\" is unknown; it must be gpt2, char or bytes", name);
  }
  CharVocabulary vocabulary;
  // Done before the vocabulary is fetched, so that faults of the input are reported first.
  const auto survey = survey_documents(options, name == "char" ? &vocabulary : nullptr);
  const auto tokenizer = name == "gpt2"    ? load_gpt2(options.fetch)
                         : name == "bytes" ? make_byte_tokenizer()
                                           : vocabulary.build();

  Output out(folder.path(), options.test.empty() ? 2 : 3, *tokenizer, threads);
  tokenize_documents(options, survey, *tokenizer, out);
  DatasetMeta meta;
  meta.sources = std::move(sources);
  meta.split_rule = split_rule(options, survey);
  finish_dataset(options, *tokenizer, out.bytes_per_token, out.splits, folder, meta);
  return meta;
}

DatasetMeta prepare_text(const PrepareOptions& options, int threads) {
  std::vector<std::string> sources;
  for (const auto& input : options.inputs) sources.push_back(input.string());
  for (const auto& file : options.val) sources.push_back("val: " + file.string());
  for (const auto& file : options.test) sources.push_back("test: " + file.string());
  return prepare_texts(options, threads, std::move(sources));
}

DatasetMeta prepare_shakespeare(const PrepareOptions& given, int threads) {
  const auto& file = remote_file("tinyshakespeare.txt");
  auto options = given;
  options.inputs = {fetch(file, options.fetch)};
  options.tokenizer = options.dataset == "shakespeare" ? "gpt2" : "char";
  return prepare_texts(options, threads, {std::string(file.url)});
}

DatasetMeta prepare_synthetic(const PrepareOptions& options, int threads) {
  if (options.size < 1) fail_user("a size of {} characters is too small; at least 1", options.size);
  StagedFolder folder(options.out, replaces_dataset(options));
  const auto grammar = make_play_grammar();
  const auto tokenizer = make_char_tokenizer(grammar->alphabet());
  Output out(folder.path(), 2, *tokenizer, threads);

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
    {.name = "synthetic", .prepare = prepare_synthetic},
    {.name = "shakespeare-char", .takes_truncate = true, .prepare = prepare_shakespeare},
    {.name = "shakespeare", .takes_truncate = true, .prepare = prepare_shakespeare},
    {.name = "text",
     .takes_inputs = true,
     .takes_splits = true,
     .takes_truncate = true,
     .prepare = prepare_text},
    {.name = "openwebtext", .takes_inputs = true, .prepare = prepare_openwebtext},
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
  if (!scheme->takes_splits && (!options.val.empty() || !options.test.empty())) {
    fail_user("{} takes no files for val and test", options.dataset);
  }
  const int threads = options.threads > 0
                          ? options.threads
                          : std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
  return scheme->prepare(options, threads);
}

}  // namespace shoal
