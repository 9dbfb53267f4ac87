#include "data/split_texts.h"

#include <algorithm>
#include <limits>

#include "core/error.h"
#include "core/text.h"
#include "data/staged_folder.h"

namespace shoal {
namespace {

constexpr std::int64_t kAllCharacters = std::numeric_limits<std::int64_t>::max();

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

void add_characters(CharVocabulary& vocabulary, const DocumentPiece& piece) {
  try {
    vocabulary.add(piece.text);
  } catch (const UserError& error) {
    const auto from =
        piece.offset == 0 ? "" : fmt::format(" (counting from byte {})", with_commas(piece.offset));
    fail_user("{}{}: {}", piece.name, from, error.what());
  }
}

}  // namespace

SplitTexts::SplitTexts(const PrepareOptions& options, const SplitSources& sources, CharVocabulary* vocabulary)
    : options_(options), sources_(sources), characters_(kAllCharacters) {
  characters_ = truncated_characters();
  survey(vocabulary);
}

bool SplitTexts::each_is_cut() const { return documents_ <= kCutDocuments; }

// Calls `visit` for the pieces of the first characters_ characters of train's source, then for those of val's
// and test's. When it returns false, the rest of that source is left out.
void SplitTexts::read_pieces(bool report_odd_files, Progress& progress, const Visit& visit) const {
  double total = 0, before = 0;
  std::vector<double> sizes;
  const auto own = places_of(options_.out);  // may lie among the texts
  for (const auto& source : sources_) total += sizes.emplace_back(input_size(source.paths, own));
  progress.set_total(total);
  auto characters = characters_;
  for (const auto split : {Split::train, Split::val, Split::test}) {
    const auto& source = sources_[static_cast<std::size_t>(split)];
    if (!given(split)) continue;
    bool found = false;
    const DocumentOptions reading = {.field = options_.field,
                                     .report_odd_files = report_odd_files,
                                     .member = source.member,
                                     .left_out = own};
    read_documents(source.paths, reading, [&](const DocumentPiece& piece) {
      found = true;
      progress.update(before + piece.input_bytes);
      if (split != Split::train || characters == kAllCharacters) return visit(piece, split);
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
    if (!found) fail_user("no text found in {}", source.paths.front().string());
    before += sizes[static_cast<std::size_t>(split)];
  }
}

std::int64_t SplitTexts::truncated_characters() const {
  if (options_.truncate == 1) return kAllCharacters;
  std::int64_t characters = 0;
  Progress progress("counting", 0, "B");
  read_pieces(false, progress, [&](const DocumentPiece& piece, Split split) {
    if (split == Split::train) characters += count_characters(piece.text);
    return split == Split::train;
  });
  progress.finish();
  const auto kept = static_cast<std::int64_t>(options_.truncate * static_cast<double>(characters));
  if (kept == 0) {
    throw PrepareError(
        PrepareError::Fault::nothing_left,
        fmt::format("a share of {:g} leaves none of the {} characters", options_.truncate, characters));
  }
  return kept;
}

void SplitTexts::survey(CharVocabulary* vocabulary) {
  const auto enough = std::max(few_documents(options_.val_fraction), kCutDocuments + 1);
  Progress progress("reading", 0, "B");
  read_pieces(false, progress, [&](const DocumentPiece& piece, Split split) {
    if (split == Split::train) {
      documents_ += piece.first ? 1 : 0;
      if (each_is_cut()) {
        document_characters_.resize(static_cast<std::size_t>(documents_));
        document_characters_.back() += count_characters(piece.text);
      }
    }
    if (vocabulary == nullptr) {
      return split == Split::train && !given(Split::val) && documents_ < enough;
    }
    add_characters(*vocabulary, piece);
    return true;
  });
  progress.finish();
}

// Visits a piece of a document of which the first part is in train and the rest in val. `characters` is their
// number in the document before the piece.
void SplitTexts::cut(const DocumentPiece& piece, std::int64_t document, std::int64_t& characters,
                     const Visitor& visitor) const {
  if (piece.first && document > 0) {
    for (const auto split : {Split::train, Split::val}) visitor.end(split);
  }
  if (document >= std::ssize(document_characters_))
    fail_user("{}: the input has changed while it was read; prepare it again", piece.name);
  if (piece.first) characters = 0;
  const auto all = static_cast<double>(document_characters_[static_cast<std::size_t>(document)]);
  const auto of_train = static_cast<std::int64_t>((1 - options_.val_fraction) * all);
  const auto at = character_offset(piece.text, std::max<std::int64_t>(of_train - characters, 0));
  characters += count_characters(piece.text);
  visitor.text(piece.text.substr(0, at), Split::train, piece.name);
  visitor.text(piece.text.substr(at), Split::val, piece.name);
}

void SplitTexts::read(const char* title, Pass pass, const Visitor& visitor) const {
  const SplitRule rule(options_.seed, options_.val_fraction, documents_);
  std::int64_t document = -1, characters = 0;
  Progress progress(title, 0, "B");
  read_pieces(pass == Pass::all, progress, [&](const DocumentPiece& piece, Split split) {
    if (pass == Pass::train && split != Split::train) return false;
    if (split == Split::train && !given(Split::val)) {
      document += piece.first ? 1 : 0;
      if (each_is_cut()) return cut(piece, document, characters, visitor), true;
      split = rule(document);
    }
    visitor.text(piece.text, split, piece.name);
    if (piece.last) visitor.end(split);
    return true;
  });
  progress.finish();
}

std::string SplitTexts::rule() const {
  const auto percent = fmt::format("{:g} %", 100 * options_.val_fraction);
  const auto val = given(Split::val) ? "the files given for val are val"
                   : documents_ == 1 ? fmt::format("the last {} of the characters are val", percent)
                   : each_is_cut()
                       ? fmt::format("the last {} of each document's characters are val", percent)
                       : fmt::format("{} of the documents, drawn with the seed, are val", percent);
  const auto used = options_.truncate < 1 ? fmt::format("the first {:g} % of the characters are used, ",
                                                        100 * options_.truncate)
                                          : "";
  return used + val + (given(Split::test) ? ", those given for test are test" : "");
}

}  // namespace shoal
