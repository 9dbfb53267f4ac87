// The texts of a dataset, read as a stream and cut into splits as data/prepare.h says.
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "core/progress.h"
#include "data/documents.h"
#include "data/prepare_options.h"
#include "data/prepare_parts.h"
#include "data/tokenizer.h"

namespace shoal {

// The documents of a split.
struct SplitSource {
  std::vector<std::filesystem::path> paths;  // files, folders and archives: data/documents.h
  std::string member{};                      // DocumentOptions::member
};

// By split. Train must have paths; without paths for val it is a share of train; test may have none.
using SplitSources = std::array<SplitSource, kSplitNames.size()>;

class SplitTexts {
 public:
  // Keeps references. Reads as far as it must to know the split: all of the text with `vocabulary`, to which
  // all characters are added. Throws UserError for bad input, PrepareError where options.truncate leaves
  // nothing.
  SplitTexts(const PrepareOptions& options, const SplitSources& sources, CharVocabulary* vocabulary);

  struct Visitor {
    // A part of a document; parts end where a cut does not change the tokens, or where a split ends.
    std::function<void(std::string_view text, Split split, std::string_view name)> text;
    // The end of a document, or of its part in a split that is followed by another document's.
    std::function<void(Split split)> end;
  };
  enum class Pass : std::uint8_t {
    all,    // warns of odd files
    train,  // only what is in train
  };
  // `title` is that of the progress bar. Every call visits the same texts.
  void read(const char* title, Pass pass, const Visitor& visitor) const;

  std::string rule() const;  // a description for meta.json

 private:
  using Visit = std::function<bool(const DocumentPiece&, Split)>;

  bool given(Split split) const { return !sources_[static_cast<std::size_t>(split)].paths.empty(); }
  bool each_is_cut() const;
  void read_pieces(bool report_odd_files, Progress& progress, const Visit& visit) const;
  std::int64_t truncated_characters() const;
  void survey(CharVocabulary* vocabulary);
  void cut(const DocumentPiece& piece, std::int64_t document, std::int64_t& characters,
           const Visitor& visitor) const;

  const PrepareOptions& options_;
  const SplitSources& sources_;
  std::int64_t characters_;                          // of train's source that are used
  std::int64_t documents_ = 0;                       // counted only as far as the split needs it
  std::vector<std::int64_t> document_characters_{};  // of the first kCutDocuments
};

}  // namespace shoal
