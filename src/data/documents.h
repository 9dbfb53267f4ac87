// Reads documents from files, folders and archives as a stream: memory does not grow with the input.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace shoal {

// A part of a document, about 1 MiB. Pieces end where a cut does not change the tokens (data/text_cut.h).
struct DocumentPiece {
  std::string_view text;  // raw bytes, valid during the call
  bool first = false;     // the first piece of its document
  bool last = false;
  std::int64_t offset = 0;  // of the piece in its document, in bytes
  std::string_view name;    // "corpus.tar:a/b.txt", "corpus.jsonl:17"
  double input_bytes = 0;   // bytes read so far from all inputs, before decompression
};

enum class TextFiles : std::uint8_t {
  all,          // every file except archives and JSON lines, unchanged
  openwebtext,  // only .txt files; their white space is normalised (data/text_tidy.h), NUL bytes are allowed
};

struct DocumentOptions {
  std::string field = "text";  // of JSONL records
  TextFiles texts = TextFiles::all;
  std::size_t longest_record = std::size_t{1} << 28;  // bytes; a longer line of JSONL is refused
  bool report_odd_files = true;                       // whether read_documents warns of them
  std::string member{};  // if set, only members of archives with this file name are read
  std::vector<std::filesystem::path> left_out{};  // folders that are not read where they are below an input
};

// Files of one kind.
struct FileCount {
  std::int64_t count = 0;
  std::string first;  // its name
  void add(const FileCount& later);
};

// Files that a warning counts.
struct OddFiles {
  FileCount skipped{};         // by their names or content
  FileCount linked_folders{};  // links to folders, in folders
  FileCount broken_links{};
  FileCount not_utf8{};      // texts that are read all the same
  FileCount endless_tars{};  // Archive::lacks_end()
  void add(const OddFiles& later);
};

// Reads `inputs` in the order given and calls `visit` for every piece; stops early when it returns false.
// - A text file is one document; .jsonl and .ndjson have one document per line. So has a .json whose first
//   two lines are objects; any other .json is a text. Names may end in upper case.
// - The members of archives (.tar, .zip, also with .gz, .xz, .zst, .bz2) and the content of compressed files
//   are read like files, even archives within archives.
// - A folder stands for all files below it in the order of their names, except hidden ones and left_out.
//   Links to files are followed; those to folders are not, since they can make a cycle.
// - Texts that are not valid UTF-8 are read byte for byte, with a warning.
// - Empty documents are skipped. So are, with a warning, binary files within folders and archives, links to
//   folders and links that lead nowhere.
// Throws UserError naming the file (and member or line) when it is not found, damaged, not text or not JSON,
// or lacks the field, and for Parquet and Arrow files (data/table_file.h), whatever their names.
void read_documents(const std::vector<std::filesystem::path>& inputs, const DocumentOptions& options,
                    const std::function<bool(const DocumentPiece&)>& visit);

// A part of the input that a thread can read independently: an archive or compressed file of a few MiB, or
// some lines of JSON.
struct Parcel {
  std::string bytes;
  std::string name;
  int depth = -1;               // nesting depth of an archive; -1 for lines of JSON
  std::int64_t first_line = 1;  // of lines of JSON
  double input_bytes = 0;       // see DocumentPiece
};

// Callbacks of read_in_parcels, in the order of the input.
struct ParcelVisitor {
  // At the start of a file, with the odd files before it; false leaves it out.
  std::function<bool(const std::filesystem::path&, const OddFiles&)> file;
  std::function<void(const DocumentPiece&)> piece;  // for documents outside parcels
  std::function<void(Parcel&&)> parcel;
};

// Reads as read_documents does, but passes on as much as it can as parcels, for read_parcel. Parcels and
// pieces depend only on the input.
OddFiles read_in_parcels(const std::vector<std::filesystem::path>& inputs, const DocumentOptions& options,
                         const ParcelVisitor& visitor);
OddFiles read_parcel(const Parcel& parcel, const DocumentOptions& options,
                     const std::function<void(const DocumentPiece&)>& visit);
// Logs a warning for each kind of odd files.
void report_odd_files(const OddFiles& odd, const DocumentOptions& options);

// Calls `visit` for all files that `inputs` stand for. Throws UserError when one does not exist.
void visit_files(const std::vector<std::filesystem::path>& inputs,
                 const std::vector<std::filesystem::path>& left_out,
                 const std::function<void(const std::filesystem::path&)>& visit);

// The total size in bytes of all files that `inputs` stand for. Throws UserError when one does not exist.
double input_size(const std::vector<std::filesystem::path>& inputs,
                  const std::vector<std::filesystem::path>& left_out = {});

}  // namespace shoal
