#include "data/documents.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>

#include "core/error.h"
#include "core/log.h"
#include "core/text.h"
#include "data/archive.h"
#include "data/byte_source.h"
#include "data/text_cut.h"

namespace shoal {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kReadSize = 1 << 18;
constexpr std::size_t kPieceSize = 1 << 20;      // what a piece aims at
constexpr std::size_t kLargestPiece = 1 << 23;   // where a text without any safe cut is cut all the same
constexpr std::size_t kLargestRecord = 1 << 28;  // of JSONL
constexpr std::size_t kSniffed = 4096;           // bytes that a NUL is looked for in
constexpr int kDeepest = 4;                      // archives within archives

struct Stopped {};  // thrown when the visitor has had enough

class DocumentReader {
 public:
  DocumentReader(const DocumentOptions& options, const std::function<bool(const DocumentPiece&)>& visit)
      : options_(options), visit_(visit) {}

  void read_file(const fs::path& path, bool named_by_user) {
    FileSource file(path);
    file_ = &file;
    tolerant_ = !named_by_user;
    dispatch(file, path.string(), 0);
    finished_bytes_ += static_cast<double>(file.bytes_read());
    file_ = nullptr;
  }

  void report_skipped() const {
    if (skipped_ > 0) {
      log::warn("skipped {} that {} not text (they hold NUL bytes); the first is {}",
                skipped_ == 1 ? "a file" : with_commas(skipped_) + " files", skipped_ == 1 ? "is" : "are",
                first_skipped_);
    }
  }

 private:
  void dispatch(ByteSource& source, const std::string& name, int depth) {
    if (is_archive_name(name)) return read_archive(source, name, depth);
    if (name.ends_with(".jsonl") || name.ends_with(".ndjson")) return read_records(source, name);
    read_text(source, name);
  }

  void read_archive(ByteSource& source, const std::string& name, int depth) {
    if (depth == kDeepest) fail_user("{}: archives are nested more than {} deep", name, kDeepest);
    Archive archive(source, name);
    while (archive.next()) {
      // Members are found, not named: what is no text among them is skipped.
      const bool tolerant = std::exchange(tolerant_, true);
      dispatch(archive.content(), name + ":" + archive.member(), depth + 1);
      tolerant_ = tolerant;
    }
  }

  void read_text(ByteSource& source, const std::string& name) {
    begin(name);
    std::size_t count;
    bool sniffed = false;
    while ((count = append_from(source, buffer_)) > 0) {
      if (!sniffed && (buffer_.size() >= kSniffed)) {
        sniffed = true;
        if (refuse_binary(name)) return;
      }
      emit_full_pieces();
    }
    if (!sniffed && refuse_binary(name)) return;
    end();
  }

  // Whether the document that begins in the buffer is to be skipped.
  bool refuse_binary(const std::string& name) {
    const auto head = std::string_view(buffer_).substr(0, kSniffed);
    const auto nul = head.find('\0');
    if (nul == std::string_view::npos) return false;
    if (!tolerant_) {
      fail_user("{}: not a text: byte {} is NUL; if it is UTF-16, convert it to UTF-8 first", name, nul);
    }
    if (skipped_++ == 0) first_skipped_ = name;
    return true;
  }

  void read_records(ByteSource& source, const std::string& name) {
    std::string pending;
    std::int64_t line = 0;
    std::size_t begin_of_line = 0, searched = 0;
    for (bool more = true; more;) {
      more = append_from(source, pending) > 0;
      std::size_t newline;
      while ((newline = pending.find('\n', searched)) != std::string::npos) {
        read_record(std::string_view(pending).substr(begin_of_line, newline - begin_of_line), name, ++line);
        begin_of_line = searched = newline + 1;
      }
      pending.erase(0, begin_of_line);
      begin_of_line = 0;
      searched = pending.size();
      if (pending.size() > kLargestRecord) {
        fail_user("{}:{}: the line is longer than {}; is this JSON lines, one record each?", name, line + 1,
                  format_bytes(static_cast<double>(kLargestRecord)));
      }
    }
    read_record(pending, name, line + 1);
  }

  void read_record(std::string_view text, const std::string& file, std::int64_t line) {
    if (text.find_first_not_of(" \t\r") == std::string_view::npos) return;
    const auto where = fmt::format("{}:{}", file, line);
    nlohmann::json record;
    try {
      record = nlohmann::json::parse(text);
    } catch (const nlohmann::json::exception& error) {
      const std::string_view message = error.what();  // "[json.exception...] what went wrong"
      fail_user("{}: not valid JSON: {}", where, message.substr(message.find("] ") + 2));
    }
    if (!record.is_object()) fail_user("{}: the line holds no JSON object but {}", where, record.type_name());
    const auto field = record.find(options_.field);
    if (field == record.end()) {
      std::string names;
      for (const auto& [key, unused] : record.items()) names += (names.empty() ? "\"" : ", \"") + key + "\"";
      fail_user("{}: the record has no field \"{}\"; it has {}", where, options_.field,
                names.empty() ? "none" : names);
    }
    if (!field->is_string()) {
      fail_user("{}: the field \"{}\" is no string but {}", where, options_.field, field->type_name());
    }
    begin(where);
    buffer_ = field->get_ref<const std::string&>();
    emit_full_pieces();
    end();
  }

  static std::size_t append_from(ByteSource& source, std::string& to) {
    const auto size = to.size();
    to.resize(size + kReadSize);
    const auto count = source.read(to.data() + size, kReadSize);
    to.resize(size + count);
    return count;
  }

  void begin(const std::string& name) {
    name_ = name;
    buffer_.clear();
    first_ = true;
    offset_ = 0;
    try_at_ = kPieceSize;
  }

  // Keeps less than a piece in the buffer, or more where no safe cut is found.
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
    const double bytes = finished_bytes_ + static_cast<double>(file_->bytes_read());
    if (!visit_({text, first_, last, offset_, name_, bytes})) throw Stopped{};
    first_ = false;
    offset_ += static_cast<std::int64_t>(text.size());
  }

  const DocumentOptions& options_;
  const std::function<bool(const DocumentPiece&)>& visit_;
  const FileSource* file_ = nullptr;
  double finished_bytes_ = 0;
  bool tolerant_ = false;  // whether binary data is skipped
  std::int64_t skipped_ = 0;
  std::string first_skipped_;

  // The document being read.
  std::string name_, buffer_;
  bool first_ = true;
  std::int64_t offset_ = 0;
  std::size_t try_at_ = kPieceSize;
};

// Calls visit(path, whether the user named it) for the files that a path stands for.
template <typename Visit>
void walk(const fs::path& path, bool named_by_user, const Visit& visit) {
  if (!fs::is_directory(path)) return visit(path, named_by_user);
  std::vector<fs::path> names;
  std::error_code error;
  for (fs::directory_iterator it(path, error), end; !error && it != end; it.increment(error)) {
    const bool hidden = it->path().filename().string().starts_with('.');
    const bool linked_folder = it->is_symlink() && it->is_directory();  // may lead back here
    if (!hidden && !linked_folder && (it->is_directory() || it->is_regular_file()))
      names.push_back(it->path());
  }
  if (error) fail_user("{}: the folder cannot be read: {}", path.string(), error.message());
  std::sort(names.begin(), names.end());
  for (const auto& name : names) walk(name, false, visit);
}

void require_exists(const fs::path& path) {
  std::error_code error;
  if (!fs::exists(path, error)) fail_user("{}: no such file or folder", path.string());
}

}  // namespace

void read_documents(const std::vector<fs::path>& inputs, const DocumentOptions& options,
                    const std::function<bool(const DocumentPiece&)>& visit) {
  for (const auto& path : inputs) require_exists(path);
  DocumentReader reader(options, visit);
  try {
    for (const auto& input : inputs) {
      walk(input, true, [&](const fs::path& path, bool named) { reader.read_file(path, named); });
    }
    reader.report_skipped();
  } catch (const Stopped&) {
  }
}

double input_size(const std::vector<fs::path>& inputs) {
  double total = 0;
  for (const auto& input : inputs) {
    require_exists(input);
    walk(input, true, [&](const fs::path& path, bool) {
      std::error_code error;
      const auto size = fs::file_size(path, error);
      if (!error) total += static_cast<double>(size);
    });
  }
  return total;
}

}  // namespace shoal
