#include "data/prepare.h"

#include <algorithm>
#include <optional>
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

// The byte where character number `index` starts.
std::size_t character_offset(std::string_view text, std::int64_t index) {
  for (std::size_t i = 0; i < text.size(); ++i) {
    if ((static_cast<unsigned char>(text[i]) & 0xC0) != 0x80 && index-- == 0) return i;
  }
  return text.size();
}

// What has to be known of the documents before the first is tokenized.
struct Survey {
  std::int64_t documents = 0;         // few_documents at most, unless the vocabulary was asked for
  std::int64_t first_characters = 0;  // of the first document
};

Survey survey_documents(const PrepareOptions& options, CharVocabulary* vocabulary) {
  Survey survey;
  Progress progress("reading", input_size(options.inputs), "B");
  read_documents(options.inputs, {options.field}, [&](const DocumentPiece& piece) {
    progress.update(piece.input_bytes);
    survey.documents += piece.first ? 1 : 0;
    if (survey.documents == 1) survey.first_characters += count_characters(piece.text);
    if (vocabulary == nullptr) return survey.documents < few_documents(options.val_fraction);
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
  if (survey.documents == 0) fail_user("no text found in {}", options.inputs.front().string());
  return survey;
}

// The dataset being written.
struct Output {
  Output(const fs::path& folder, const Tokenizer& tokenizer, int threads)
      : bytes_per_token(token_width(tokenizer)),
        train(folder / "train.bin", bytes_per_token),
        val(folder / "val.bin", bytes_per_token),
        pipeline(tokenizer, train, val, threads) {}

  int bytes_per_token;
  SplitWriter train, val;
  TokenPipeline pipeline;
};

void tokenize_documents(const PrepareOptions& options, const Survey& survey, const Tokenizer& tokenizer,
                        Output& out) {
  const bool single = survey.documents == 1;
  const auto end_of_text = single ? std::nullopt : tokenizer.end_of_text();
  const auto train_characters =
      static_cast<std::int64_t>((1 - options.val_fraction) * static_cast<double>(survey.first_characters));
  const SplitRule rule(options.seed, options.val_fraction, survey.documents);
  std::int64_t document = -1, characters = 0;
  Progress progress("tokenizing", input_size(options.inputs), "B");
  read_documents(options.inputs, {options.field}, [&](const DocumentPiece& piece) {
    document += piece.first ? 1 : 0;
    if (single) {
      const auto cut = character_offset(piece.text, std::max<std::int64_t>(train_characters - characters, 0));
      characters += count_characters(piece.text);
      out.pipeline.add(piece.text.substr(0, cut), Split::train, std::string(piece.name));
      out.pipeline.add(piece.text.substr(cut), Split::val, std::string(piece.name));
    } else {
      const auto split = rule(document);
      out.pipeline.add(piece.text, split, std::string(piece.name));
      if (piece.last && end_of_text) out.pipeline.add_end_of_text(split);
    }
    progress.update(piece.input_bytes);
    return true;
  });
  out.pipeline.finish();
  progress.finish();
}

DatasetMeta prepare_text(const PrepareOptions& options, int threads, std::vector<std::string> sources) {
  if (options.inputs.empty())
    fail_user("prepare text: name the files, folders or archives that hold the text");
  StagedFolder folder(options.out);
  std::unique_ptr<Tokenizer> tokenizer;
  if (options.tokenizer == "gpt2") tokenizer = load_gpt2_tokenizer(fetch_gpt2_vocabulary(options.fetch));
  if (options.tokenizer == "bytes") tokenizer = make_byte_tokenizer();
  if (!tokenizer && options.tokenizer != "char") {
    fail_user("--tokenizer {}: must be gpt2, char or bytes", options.tokenizer);
  }
  CharVocabulary vocabulary;
  const auto survey = survey_documents(options, tokenizer ? nullptr : &vocabulary);
  if (!tokenizer) tokenizer = vocabulary.build();

  Output out(folder.path(), *tokenizer, threads);
  tokenize_documents(options, survey, *tokenizer, out);
  DatasetMeta meta;
  meta.sources = std::move(sources);
  const auto percent = fmt::format("{:g} %", 100 * options.val_fraction);
  meta.split_rule = survey.documents == 1
                        ? fmt::format("the last {} of the characters are val", percent)
                        : fmt::format("{} of the documents, drawn with the seed, are val", percent);
  finish_dataset(options, *tokenizer, out.bytes_per_token, out.train, out.val, folder, meta);
  return meta;
}

DatasetMeta prepare_shakespeare(PrepareOptions options, int threads) {
  const auto& file = tinyshakespeare_file();
  options.inputs = {fetch(file, options.fetch)};
  options.tokenizer = options.dataset == "shakespeare" ? "gpt2" : "char";
  return prepare_text(options, threads, {std::string(file.url)});
}

DatasetMeta prepare_synthetic(const PrepareOptions& options, int threads) {
  if (options.size < 1) fail_user("--size {}: must be 1 or more", options.size);
  StagedFolder folder(options.out);
  const auto grammar = make_play_grammar();
  const auto tokenizer = make_char_tokenizer(grammar->alphabet());
  Output out(folder.path(), *tokenizer, threads);

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
  finish_dataset(options, *tokenizer, out.bytes_per_token, out.train, out.val, folder, meta);
  return meta;
}

}  // namespace

DatasetMeta prepare(const PrepareOptions& options) {
  if (!(options.val_fraction > 0 && options.val_fraction < 1)) {
    fail_user("--val-fraction {}: must be above 0 and below 1", options.val_fraction);
  }
  const int threads = options.threads > 0
                          ? options.threads
                          : std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
  if (options.dataset == "text") {
    std::vector<std::string> sources;
    for (const auto& input : options.inputs) sources.push_back(input.string());
    return prepare_text(options, threads, std::move(sources));
  }
  if (options.dataset == "openwebtext") return prepare_openwebtext(options, threads);
  if (options.dataset == "synthetic") return prepare_synthetic(options, threads);
  if (options.dataset == "shakespeare" || options.dataset == "shakespeare-char") {
    return prepare_shakespeare(options, threads);
  }
  const std::vector<std::string> known = {"synthetic", "shakespeare-char", "shakespeare", "text",
                                          "openwebtext"};
  const auto near = nearest(options.dataset, known);
  fail_user(
      "unknown dataset \"{}\"{}; there are synthetic, shakespeare-char, shakespeare, text and openwebtext",
      options.dataset, near.empty() ? "" : ": did you mean " + near + "?");
}

}  // namespace shoal
