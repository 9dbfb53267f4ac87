#include "data/prepare_texts.h"

#include <memory>
#include <optional>

#include "core/error.h"
#include "core/log.h"
#include "core/progress.h"
#include "core/text.h"
#include "data/bpe_tokenizer.h"
#include "data/bpe_trainer.h"
#include "data/dataset_output.h"
#include "data/staged_folder.h"
#include "data/tokenizer.h"
#include "data/tokenizer_choice.h"
#include "data/word_counter.h"

namespace shoal {
namespace {

constexpr std::int64_t kUnmerged = 257;  // the bytes, and the end of text

std::unique_ptr<Tokenizer> load_gpt2(const FetchOptions& options) try {
  return load_bpe_tokenizer(fetch_gpt2_vocabulary(options));
} catch (const UserError& error) {
  throw PrepareError(PrepareError::Fault::vocabulary_not_found, error.what());
}

std::unique_ptr<Tokenizer> load_folder(const std::filesystem::path& folder) {
  auto tokenizer = load_bpe_tokenizer(folder);
  if (!tokenizer->end_of_text()) {
    log::warn(
        "{}: the tokenizer has neither <|endoftext|> nor </s>, so nothing will mark the ends of documents",
        folder.string());
  }
  return tokenizer;
}

std::unique_ptr<Tokenizer> train_tokenizer(const SplitTexts& texts, std::int64_t vocab_size, int threads) {
  WordCounter counter(threads);
  texts.read("counting words", SplitTexts::Pass::train,
             {.text =
                  [&](std::string_view text, Split split, std::string_view) {
                    if (split == Split::train) counter.add(text);
                  },
              .end = [](Split) {}});
  const auto most = static_cast<std::size_t>(vocab_size - kUnmerged);
  std::optional<Progress> progress;  // begins with the first merge: before it, places are listed
  const auto merges = train_bpe(counter.finish(), most, [&](std::size_t made) {
    if (!progress) progress.emplace("learning the tokenizer", static_cast<double>(most), "merges");
    progress->update(static_cast<double>(made));
  });
  if (progress) progress->finish();
  if (merges.empty()) {
    fail_user("there is too little text to learn a tokenizer from: no two bytes come side by side twice");
  }
  if (merges.size() < most) {
    log::warn("the tokenizer has {} tokens, not {}: no more pairs of tokens come twice in the text",
              with_commas(static_cast<std::int64_t>(merges.size()) + kUnmerged), with_commas(vocab_size));
  }
  return make_bpe_tokenizer(merges_text(merges), "the tokenizer of the text");
}

std::unique_ptr<Tokenizer> make_tokenizer(const TokenizerChoice& choice, const SplitTexts& texts,
                                          const CharVocabulary& vocabulary, const PrepareOptions& options,
                                          int threads) {
  switch (choice.kind) {
    case TokenizerChoice::Kind::gpt2:
      return load_gpt2(options.fetch);
    case TokenizerChoice::Kind::chars:
      return vocabulary.build();
    case TokenizerChoice::Kind::bytes:
      return make_byte_tokenizer();
    case TokenizerChoice::Kind::trained:
      return train_tokenizer(texts, choice.vocab_size, threads);
    case TokenizerChoice::Kind::folder:
      return load_folder(choice.folder);
  }
  fail("an unknown kind of tokenizer");
}

}  // namespace

DatasetMeta prepare_texts(const PrepareOptions& options, const SplitSources& sources, int threads,
                          std::vector<std::string> origins) {
  StagedFolder folder(options.out, replaces_dataset(options));
  const auto choice = parse_tokenizer_choice(options.tokenizer);
  CharVocabulary vocabulary;
  // Reads before the vocabulary is fetched, so that faults of the input are reported first.
  const SplitTexts texts(options, sources,
                         choice.kind == TokenizerChoice::Kind::chars ? &vocabulary : nullptr);
  const auto tokenizer = make_tokenizer(choice, texts, vocabulary, options, threads);

  folder.begin();
  DatasetOutput out(folder.path(), sources.back().paths.empty() ? 2 : 3, *tokenizer, threads);
  const bool marks_ends = tokenizer->end_of_text().has_value();
  texts.read("tokenizing", SplitTexts::Pass::all,
             {.text = [&](std::string_view text, Split split,
                          std::string_view name) { out.pipeline.add(text, split, std::string(name)); },
              .end =
                  [&](Split split) {
                    if (marks_ends) out.pipeline.add_end_of_text(split);
                  }});
  out.pipeline.finish();
  DatasetMeta meta;
  meta.sources = std::move(origins);
  meta.split_rule = texts.rule();
  finish_dataset(options, *tokenizer, out.bytes_per_token, out.splits, folder, meta);
  return meta;
}

}  // namespace shoal
