// Documents out of files, folders and archives, as a stream: memory does not grow with the input.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace shoal {

// A part of a document. Pieces are about a mebibyte and end where no tokenizer can tell (data/text_cut.h).
struct DocumentPiece {
  std::string_view text;  // raw bytes, valid during the call
  bool first = false;     // of its document
  bool last = false;
  std::int64_t offset = 0;  // bytes of its document before it
  std::string_view name;    // "corpus.tar:a/b.txt", "corpus.jsonl:17"
  double input_bytes = 0;   // read so far of all inputs, compressed as they are
};

struct DocumentOptions {
  std::string field = "text";  // of JSONL records
};

// Reads `inputs` in the order given and calls `visit` for every piece; stops early when it returns false.
// A file is one document; .jsonl and .ndjson hold one per line; archives (.tar, .zip, either with .gz, .xz,
// .zst, .bz2) one per member; and compressed files what is in them, archives within archives included. A
// folder stands for all files below it in the order of their names, hidden ones excepted. Empty documents are
// skipped, and so are binary files within folders and archives, with a warning. Throws UserError, which names
// the file (and member or line): not found, damaged, not text, not JSON, lacks the field.
void read_documents(const std::vector<std::filesystem::path>& inputs, const DocumentOptions& options,
                    const std::function<bool(const DocumentPiece&)>& visit);

// Bytes of all files that `inputs` stand for. Throws UserError when one does not exist.
double input_size(const std::vector<std::filesystem::path>& inputs);

}  // namespace shoal
