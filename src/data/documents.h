// Documents out of files, folders and archives, as a stream: memory does not grow with the input.
#pragma once

#include <cstddef>
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

enum class TextFiles : std::uint8_t {
  all,          // whatever is no archive and no .jsonl is a text, as it is
  openwebtext,  // only .txt is, and its white space is tidied (data/text_tidy.h); NUL bytes are welcome
};

struct DocumentOptions {
  std::string field = "text";  // of JSONL records
  TextFiles texts = TextFiles::all;
  std::size_t longest_record = std::size_t{1} << 28;  // bytes; a longer line of JSONL is refused
  bool report_skipped = true;                         // read_documents warns of skipped files
};

// Files that were found and are not documents.
struct SkippedFiles {
  std::int64_t count = 0;
  std::string first;
  void add(const SkippedFiles& later);
};

// Reads `inputs` in the order given and calls `visit` for every piece; stops early when it returns false.
// A file is one document; .jsonl and .ndjson hold one per line; archives (.tar, .zip, either with .gz, .xz,
// .zst, .bz2) one per member; and compressed files what is in them, archives within archives included. A
// folder stands for all files below it in the order of their names, hidden ones excepted. Empty documents are
// skipped, and so are binary files within folders and archives, with a warning. Throws UserError, which names
// the file (and member or line): not found, damaged, not text, not JSON, lacks the field; and for Parquet and
// Arrow files (data/table_file.h), which are told by what they begin with, whatever their names.
void read_documents(const std::vector<std::filesystem::path>& inputs, const DocumentOptions& options,
                    const std::function<bool(const DocumentPiece&)>& visit);

// A part of the input that any thread can read on its own: an archive or compressed file of a few MiB, or
// some lines of records.
struct Parcel {
  std::string bytes;
  std::string name;
  int depth = -1;               // of the archive, or -1: records
  std::int64_t first_line = 1;  // of records
  double input_bytes = 0;       // as in DocumentPiece
};

// Callbacks of read_in_parcels, in the order of the input.
struct ParcelVisitor {
  std::function<bool(const std::filesystem::path&)> file;  // a file begins; false: it is not read
  std::function<void(const DocumentPiece&)> piece;         // of a document that is in no parcel
  std::function<void(Parcel&&)> parcel;
};

// Reads as read_documents does, but leaves as much as it can to read_parcel. What is a parcel and where
// pieces are cut depends on the input alone.
SkippedFiles read_in_parcels(const std::vector<std::filesystem::path>& inputs, const DocumentOptions& options,
                             const ParcelVisitor& visitor);
SkippedFiles read_parcel(const Parcel& parcel, const DocumentOptions& options,
                         const std::function<void(const DocumentPiece&)>& visit);
void report_skipped(const SkippedFiles& skipped,
                    const DocumentOptions& options);  // a warning, where there are any

// Bytes of all files that `inputs` stand for. Throws UserError when one does not exist.
double input_size(const std::vector<std::filesystem::path>& inputs);

}  // namespace shoal
