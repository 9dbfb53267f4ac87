#include "data/documents.h"

#include <algorithm>
#include <utility>

#include "core/error.h"
#include "core/log.h"
#include "core/text.h"
#include "core/utf8.h"
#include "data/archive.h"
#include "data/byte_source.h"
#include "data/records.h"
#include "data/table_file.h"
#include "data/text_cut.h"
#include "data/text_tidy.h"

namespace shoal {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kReadSize = 1 << 18;
constexpr std::size_t kPieceSize = 1 << 20;     // the usual size of a piece
constexpr std::size_t kLargestPiece = 1 << 23;  // a piece without any safe cut is cut at this size
constexpr std::string_view kByteOrderMark = "\xef\xbb\xbf";
constexpr std::size_t kSniffed = 4096;                                 // bytes that are searched for a NUL
constexpr std::pair<std::string_view, const char*> kBinaryFiles[] = {  // their first bytes
    {"%PDF-", "a PDF; extract its text first"},
    {"\x1f\x8b\x08", "compressed; its name must end in .gz"},
    {"\x28\xb5\x2f\xfd", "compressed; its name must end in .zst"},
    {"BZh91AY&SY", "compressed; its name must end in .bz2"}};
constexpr std::size_t kLargestParcel = 1 << 24;  // of an archive
constexpr int kDeepest = 4;                      // levels of archives within archives

struct Stopped {};  // thrown when the visitor returns false

class DocumentReader {
 public:
  DocumentReader(const DocumentOptions& options, std::function<bool(const DocumentPiece&)> visit,
                 const std::function<void(Parcel&&)>& take = {})
      : options_(options), visit_(std::move(visit)), take_(take) {}

  void read_file(const fs::path& path, bool named_by_user) {
    FileSource file(path);
    file_ = &file;
    tolerant_ = !named_by_user;
    dispatch(file, path.string(), 0);
    finished_bytes_ += static_cast<double>(file.bytes_read());
    file_ = nullptr;
  }
  void skip_file(const fs::path& path) {
    std::error_code error;
    const auto size = fs::file_size(path, error);
    if (!error) finished_bytes_ += static_cast<double>(size);
  }

  void read(const Parcel& parcel) {
    finished_bytes_ = parcel.input_bytes;
    tolerant_ = true;
    MemorySource source(parcel.bytes);
    if (parcel.depth >= 0) {
      read_members(source, parcel.name, parcel.depth);
    } else {
      read_records(source, parcel.name, parcel.first_line);
    }
  }

  void count_link(const fs::path& path) {
    std::error_code broken;
    (fs::is_directory(path, broken) ? odd_.linked_folders : odd_.broken_links).add({1, path.string()});
  }
  const OddFiles& odd() const { return odd_; }

 private:
  bool only_txt() const { return options_.texts == TextFiles::openwebtext; }
  double input_bytes() const {
    return finished_bytes_ + (file_ == nullptr ? 0.0 : static_cast<double>(file_->bytes_read()));
  }

  void dispatch(ByteSource& source, const std::string& name, int depth) {
    std::string head;
    fill(head, kTableSignature, source);
    refuse_table(head, name);
    const bool records =
        is_records_name(name) || (ends_in_any_case(name, ".json") && begins_with_records(head, source));
    if (source.seek(0, SEEK_SET) == 0) {
      head = {};
      return dispatch_by_name(source, name, records, depth);
    }
    PrefixedSource whole(head, source);
    dispatch_by_name(whole, name, records, depth);
  }

  void dispatch_by_name(ByteSource& source, const std::string& name, bool records, int depth) {
    if (is_archive_name(name)) return read_archive(source, name, depth);
    if (records) return read_records(source, name, 1);
    if (!only_txt()) return read_text(source, name);
    if (ends_in_any_case(name, ".txt")) return read_tidy_text(source, name);
    if (!tolerant_) fail_user("{}: neither .txt nor .jsonl nor an archive, by its name; rename it", name);
    odd_.skipped.add({1, name});
  }

  void read_archive(ByteSource& source, const std::string& name, int depth) {
    if (depth == kDeepest) fail_user("{}: archives are nested more than {} deep", name, kDeepest);
    if (!take_) return read_members(source, name, depth);
    std::string head;
    if (!fill(head, kLargestParcel, source)) {
      return take_({std::move(head), name, depth, 1, input_bytes()});
    }
    if (source.seek(0, SEEK_SET) == 0) {
      head = {};
      return read_members(source, name, depth);
    }
    PrefixedSource whole(head, source);
    read_members(whole, name, depth);
  }

  void read_members(ByteSource& source, const std::string& name, int depth) {
    Archive archive(source, name);
    while (archive.next()) {
      if (!options_.member.empty() && fs::path(archive.member()).filename() != options_.member) continue;
      // Members that are not text are skipped, since the user did not name them. The content of a single
      // compressed file is refused instead.
      if (only_txt() && archive.compressed_file() && !is_archive_name(archive.member()) &&
          !is_document_name(archive.member())) {
        fail_user("{}: the archive is damaged, or holds neither a tar nor a .txt nor a .jsonl", name);
      }
      const bool tolerant = std::exchange(tolerant_, true);
      dispatch(archive.content(), name + ":" + archive.member(), depth + 1);
      tolerant_ = tolerant;
    }
    if (archive.lacks_end()) odd_.endless_tars.add({1, name});
  }

  static bool is_records_name(std::string_view name) {
    return ends_in_any_case(name, ".jsonl") || ends_in_any_case(name, ".ndjson");
  }
  static bool is_document_name(std::string_view name) {
    return ends_in_any_case(name, ".txt") || ends_in_any_case(name, ".json") || is_records_name(name);
  }

  // Whether the first line of a .json is an object and the next one begins another: JSON lines, as C4's files
  // are. `head` is the beginning of the source; what this reads on is appended.
  static bool begins_with_records(std::string& head, ByteSource& source) {
    const auto next_value = [&](std::size_t from) { return head.find_first_not_of(" \t\r\n", from); };
    for (bool more = true; more && head.size() < kLargestPiece; more = append_from(source, head)) {
      const auto begin = next_value(head.starts_with(kByteOrderMark) ? kByteOrderMark.size() : 0);
      if (begin == std::string::npos) continue;
      if (head[begin] != '{') return false;
      const auto end = head.find('\n', begin);
      if (end == std::string::npos) continue;
      if (head[head.find_last_not_of(" \t\r", end - 1)] != '}') return false;
      const auto next = next_value(end);
      if (next != std::string::npos) return head[next] == '{';
    }
    return false;
  }

  void read_text(ByteSource& source, const std::string& name) {
    begin(name);
    bool sniffed = false;
    while (append_from(source, buffer_)) {
      if (!sniffed && (buffer_.size() >= kSniffed)) {
        sniffed = true;
        if (refuse_binary(buffer_, name)) return;
      }
      emit_full_pieces();
    }
    if (!sniffed && refuse_binary(buffer_, name)) return;
    end();
    count_encoding();
  }

  void read_tidy_text(ByteSource& source, const std::string& name) {
    begin(name);
    TextTidy tidy([&](std::string_view text) {
      buffer_ += text;
      emit_full_pieces();
    });
    std::string raw;
    for (bool begun = false; append_from(source, raw); begun = true) {
      if (!begun && refuse_binary(raw, name)) return;
      tidy.feed(raw);
      raw.clear();
    }
    tidy.finish();
    end();
    count_encoding();
  }
  void count_encoding() {
    if (!utf8_) odd_.not_utf8.add({1, name_});
  }

  // Returns whether the document that begins with `head` is binary and to be skipped.
  bool refuse_binary(std::string_view head, const std::string& name) {
    const auto problem = problem_of(head.substr(0, kSniffed));
    if (problem.empty()) return false;
    if (!tolerant_) fail_user("{}: not a text but {}", name, problem);
    odd_.skipped.add({1, name});
    return true;
  }

  // The reason why no text begins with `head`; "" if one may.
  std::string problem_of(std::string_view head) const {
    for (const auto& [signature, what] : kBinaryFiles) {
      if (head.starts_with(signature)) return what;
    }
    const auto nul = only_txt() ? std::string_view::npos : head.find('\0');
    if (nul == std::string_view::npos) return {};
    return fmt::format(
        "binary: byte {} is NUL; if it is UTF-16, convert it to UTF-8 first; an archive's name must end "
        "in .tar, .zip, .gz, .bz2, .xz or .zst",
        nul);
  }

  void read_records(ByteSource& source, const std::string& name, std::int64_t line) {
    const std::size_t worth_passing_on = take_ ? kPieceSize : 0;
    std::string pending;
    std::size_t searched = 0;  // bytes without a line feed
    for (bool more = true; more;) {
      more = append_from(source, pending);
      if (more && pending.size() < worth_passing_on) continue;
      const auto newline = std::string_view(pending).substr(searched).rfind('\n');
      if (newline != std::string::npos) {
        auto rest = pending.substr(searched + newline + 1);
        pending.resize(searched + newline + 1);
        line = pass_on(std::exchange(pending, std::move(rest)), name, line);
      } else if (pending.size() > options_.longest_record) {
        fail_user("{}:{}: the line is longer than {}; is this JSON lines, one record each?", name, line,
                  format_bytes(static_cast<double>(options_.longest_record)));
      }
      searched = pending.size();
    }
    pass_on(std::move(pending), name, line);
  }

  // Reads whole lines, or passes them on as a parcel. Returns the number of the line after them.
  std::int64_t pass_on(std::string lines, const std::string& name, std::int64_t line) {
    const auto next = line + std::count(lines.begin(), lines.end(), '\n');
    if (take_) {
      if (!lines.empty()) take_({std::move(lines), name, -1, line, input_bytes()});
      return next;
    }
    for (std::size_t at = 0; at < lines.size(); ++line) {
      const auto end = std::min(lines.find('\n', at), lines.size());
      read_record(std::string_view(lines).substr(at, end - at), name, line);
      at = end + 1;
    }
    return next;
  }

  void read_record(std::string_view text, const std::string& file, std::int64_t line) {
    if (text.find_first_not_of(" \t\r") == std::string_view::npos) return;
    const auto where = fmt::format("{}:{}", file, line);
    auto content = text_of_record(text, options_.field, where);
    begin(where);
    buffer_ = std::move(content);
    emit_full_pieces();
    end();
  }

  // Returns whether any bytes were left. Reads whole blocks, so that the result does not depend on how many
  // bytes a source returns at a time.
  static bool append_from(ByteSource& source, std::string& to) {
    const auto size = to.size();
    fill(to, size + kReadSize, source);
    return to.size() > size;
  }

  void begin(const std::string& name) {
    name_ = name;
    buffer_.clear();
    first_ = true;
    offset_ = 0;
    utf8_ = true;
    try_at_ = kPieceSize;
  }

  // Leaves less than a piece in the buffer, or more if it has no safe cut.
  void emit_full_pieces() {
    std::size_t done = 0;
    for (;;) {
      const auto rest = std::string_view(buffer_).substr(done);
      if (rest.size() < try_at_) break;
      const auto window = rest.substr(0, try_at_);
      auto cut = last_safe_cut(window);
      if (cut == 0 && try_at_ < kLargestPiece) {
        try_at_ *= 2;
        continue;
      }
      if (cut == 0) cut = whole_characters(window);
      emit(rest.substr(0, cut), false);
      done += cut;
      try_at_ = kPieceSize;
    }
    buffer_.erase(0, done);
  }

  void end() {
    if (!buffer_.empty() || !first_) emit(buffer_, true);
    buffer_.clear();
  }

  void emit(std::string_view text, bool last) {
    if (options_.report_odd_files) utf8_ = utf8_ && is_utf8(text);  // a piece has whole characters
    if (!visit_({text, first_, last, offset_, name_, input_bytes()})) throw Stopped{};
    first_ = false;
    offset_ += static_cast<std::int64_t>(text.size());
  }

  const DocumentOptions& options_;
  std::function<bool(const DocumentPiece&)> visit_;
  std::function<void(Parcel&&)> take_;  // if set, parcels are passed to it and not read
  const FileSource* file_ = nullptr;
  double finished_bytes_ = 0;
  bool tolerant_ = false;  // whether binary data is skipped
  OddFiles odd_;

  // The document being read.
  std::string name_, buffer_;
  bool first_ = true;
  bool utf8_ = true;  // so far
  std::int64_t offset_ = 0;
  std::size_t try_at_ = kPieceSize;
};

// Calls visit(file, whether the user named it) for all files that a path stands for, and pass_by(link) for
// links in folders that lead to a folder or nowhere.
template <typename Visit, typename PassBy>
void walk(const fs::path& path, const std::vector<fs::path>& left_out, bool named_by_user, const Visit& visit,
          const PassBy& pass_by) {
  if (!fs::is_directory(path)) return visit(path, named_by_user);
  std::error_code absent;
  if (std::ranges::any_of(left_out, [&](const auto& one) { return fs::equivalent(path, one, absent); }))
    return;
  std::vector<std::string> names, links;  // there may be millions
  std::error_code error;
  for (fs::directory_iterator it(path, error), end; !error && it != end; it.increment(error)) {
    auto name = it->path().filename().string();
    if (name.starts_with('.')) continue;
    std::error_code loop;  // of links
    const bool file = it->is_regular_file(loop);
    if (!file && it->is_symlink(loop)) {  // a linked folder could make a cycle
      links.push_back(std::move(name));
    } else if (file || it->is_directory(loop)) {
      names.push_back(std::move(name));
    }
  }
  if (error) fail_user("{}: the folder cannot be read: {}", path.string(), error.message());
  std::sort(names.begin(), names.end());
  std::sort(links.begin(), links.end());
  for (const auto& link : links) pass_by(path / link);
  for (const auto& name : names) walk(path / name, left_out, false, visit, pass_by);
}

void require_exists(const fs::path& path) {
  std::error_code error;
  if (!fs::exists(path, error)) fail_user("{}: no such file or folder", path.string());
}

// `why` is said of one file or of several.
void warn_of(const FileCount& files, std::string_view treatment, std::string_view why) {
  if (files.count == 1) {
    log::warn("{} {}: {}", treatment, files.first, why);
  } else if (files.count > 1) {
    log::warn("{} {} files: {}; the first is {}", treatment, with_commas(files.count), why, files.first);
  }
}

}  // namespace

void FileCount::add(const FileCount& later) {
  if (count == 0) first = later.first;
  count += later.count;
}

void OddFiles::add(const OddFiles& later) {
  skipped.add(later.skipped);
  linked_folders.add(later.linked_folders);
  broken_links.add(later.broken_links);
  not_utf8.add(later.not_utf8);
  endless_tars.add(later.endless_tars);
}

void report_odd_files(const OddFiles& odd, const DocumentOptions& options) {
  const bool only_txt = options.texts == TextFiles::openwebtext;
  warn_of(odd.skipped, "skipped",
          only_txt ? "neither .txt nor .jsonl, or no text in it" : "not text by its content");
  warn_of(odd.linked_folders, "skipped",
          "links to folders are not followed; name the folder as an input, too, to have it read");
  warn_of(odd.broken_links, "skipped", "there is no file where the link leads");
  warn_of(odd.not_utf8, "read",
          "not valid UTF-8, so kept byte for byte; convert text in another encoding first");
  warn_of(
      odd.endless_tars, "read",
      "a tar without the blocks of zeros at its end, so members may be missing; compare it with its source");
}

void read_documents(const std::vector<fs::path>& inputs, const DocumentOptions& options,
                    const std::function<bool(const DocumentPiece&)>& visit) {
  for (const auto& path : inputs) require_exists(path);
  DocumentReader reader(options, visit);
  try {
    for (const auto& input : inputs) {
      walk(
          input, options.left_out, true,
          [&](const fs::path& path, bool named) { reader.read_file(path, named); },
          [&](const fs::path& link) { reader.count_link(link); });
    }
    if (options.report_odd_files) report_odd_files(reader.odd(), options);
  } catch (const Stopped&) {
  }
}

OddFiles read_in_parcels(const std::vector<fs::path>& inputs, const DocumentOptions& options,
                         const ParcelVisitor& visitor) {
  for (const auto& path : inputs) require_exists(path);
  const auto visit = [&](const DocumentPiece& piece) { return visitor.piece(piece), true; };
  DocumentReader reader(options, visit, visitor.parcel);
  for (const auto& input : inputs) {
    walk(
        input, options.left_out, true,
        [&](const fs::path& path, bool named) {
          visitor.file(path, reader.odd()) ? reader.read_file(path, named) : reader.skip_file(path);
        },
        [&](const fs::path& link) { reader.count_link(link); });
  }
  return reader.odd();
}

OddFiles read_parcel(const Parcel& parcel, const DocumentOptions& options,
                     const std::function<void(const DocumentPiece&)>& visit) {
  DocumentReader reader(options, [&](const DocumentPiece& piece) { return visit(piece), true; });
  reader.read(parcel);
  return reader.odd();
}

void visit_files(const std::vector<fs::path>& inputs, const std::vector<fs::path>& left_out,
                 const std::function<void(const fs::path&)>& visit) {
  for (const auto& input : inputs) {
    require_exists(input);
    walk(
        input, left_out, true, [&](const fs::path& path, bool) { visit(path); }, [](const fs::path&) {});
  }
}

double input_size(const std::vector<fs::path>& inputs, const std::vector<fs::path>& left_out) {
  double total = 0;
  visit_files(inputs, left_out, [&](const fs::path& path) {
    std::error_code error;
    const auto size = fs::file_size(path, error);
    if (!error) total += static_cast<double>(size);
  });
  return total;
}

}  // namespace shoal
