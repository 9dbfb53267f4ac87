#include "data/openwebtext.h"

#include <xxhash.h>

#include <array>
#include <memory>
#include <mutex>
#include <optional>

#include "core/clock.h"
#include "core/error.h"
#include "core/log.h"
#include "core/progress.h"
#include "core/text.h"
#include "data/documents.h"
#include "data/openwebtext_progress.h"
#include "data/ordered_jobs.h"
#include "data/prepare_parts.h"

namespace shoal {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kTaskBytes = 1 << 20;      // of text outside parcels
constexpr std::size_t kLongestRecord = 1 << 25;  // of JSON lines; every thread may hold one
constexpr std::size_t kChunkTokens = 1 << 18;    // of a parcel

// Tokens of documents, in order.
struct Tokens {
  struct Part {
    std::size_t end;   // in ids
    bool first, last;  // of its document
  };
  std::vector<std::int32_t> ids;
  std::vector<Part> parts;
  std::optional<InputPlace> place;  // the end of the task; set in its last chunk only
  OddFiles odd;
  std::size_t bytes() const { return ids.size() * sizeof(std::int32_t) + parts.size() * sizeof(Part); }
};

class Encoder {
 public:
  explicit Encoder(const Tokenizer& tokenizer) : tokenizer_(tokenizer) {}

  void operator()(std::string_view text, bool first, bool last, Tokens& tokens) {
    // Merging a long piece without white space takes 48 times its memory, so only one runs at a time.
    std::unique_lock<std::mutex> alone(long_text_, std::defer_lock);
    if (text.size() > kTaskBytes) alone.lock();
    tokenizer_.encode(text, tokens.ids);
    if (last) tokens.ids.push_back(tokenizer_.end_of_text().value());
    tokens.parts.push_back({tokens.ids.size(), first, last});
  }

 private:
  const Tokenizer& tokenizer_;
  std::mutex long_text_;
};

// Writes the tokens of the tasks, and saves the progress.
class Writer {
 public:
  Writer(const PrepareOptions& options, const SplitRule& rule, std::string settings, StagedFolder& folder,
         const OpenWebTextProgress* saved, int bytes_per_token)
      : splits{open(folder.path() / "train.bin", bytes_per_token, saved == nullptr ? nullptr : &saved->train),
               open(folder.path() / "val.bin", bytes_per_token, saved == nullptr ? nullptr : &saved->val)},
        rule_(rule),
        settings_(std::move(settings)),
        folder_(folder),
        save_every_(options.save_every),
        documents_(saved == nullptr ? 0 : saved->documents),
        odd_(saved == nullptr ? OddFiles() : saved->odd_in_parcels),
        bar_("tokenizing", input_size(options.inputs, places_of(options.out)), "B") {
    if (saved != nullptr) bar_.start_at(saved->place.input_bytes);
  }

  void write(const Tokens& tokens) {
    std::size_t begin = 0;
    for (const auto& part : tokens.parts) {
      documents_ += part.first ? 1 : 0;
      auto& split = splits[static_cast<std::size_t>(rule_(documents_ - 1))];
      split.append(std::span(tokens.ids).subspan(begin, part.end - begin));
      begin = part.end;
    }
    odd_.add(tokens.odd);
    if (!tokens.place) return;
    bar_.update(tokens.place->input_bytes,
                format_count(static_cast<double>(splits[0].tokens() + splits[1].tokens())) + " tokens");
    if (since_save_.seconds() >= save_every_) save(*tokens.place);
  }

  void finish() { bar_.finish(); }
  const OddFiles& odd() const { return odd_; }

  std::array<SplitWriter, 2> splits;

 private:
  static SplitWriter open(const fs::path& path, int bytes_per_token, const SplitMeta* written) {
    return written == nullptr ? SplitWriter(path, bytes_per_token)
                              : SplitWriter(path, bytes_per_token, *written);
  }

  void save(const InputPlace& place) {
    save_progress(folder_.path(), settings_,
                  {place, documents_, odd_, splits[0].finish(), splits[1].finish()});
    folder_.keep();
    since_save_ = Stopwatch();
  }

  const SplitRule& rule_;
  std::string settings_;
  StagedFolder& folder_;
  double save_every_;
  std::int64_t documents_;
  OddFiles odd_;  // in parcels
  Stopwatch since_save_;
  Progress bar_;
};

// Cuts the input into tasks: one parcel, or about 1 MiB of texts. The cuts depend only on the input, so that
// a later call finds the same places.
class Tasks {
 public:
  Tasks(const PrepareOptions& options, const DocumentOptions& reading, Encoder& encoder,
        OrderedJobs<Tokens>& jobs, const OpenWebTextProgress* saved)
      : options_(options), reading_(reading), encoder_(encoder), jobs_(jobs) {
    if (saved == nullptr) return;
    goal_ = saved->place;
    odd_before_ = goal_->odd;
    bar_.emplace("finding the place", goal_->input_bytes, "B");
  }

  // Returns the odd files outside parcels, also before the saved place.
  OddFiles read() {
    const auto odd = read_in_parcels(
        options_.inputs, reading_,
        {[&](const fs::path& path, const OddFiles& before) { return begin_file(path, before); },
         [&](const DocumentPiece& piece) { add(piece); }, [&](Parcel&& parcel) { add(std::move(parcel)); }});
    end_file();
    count_odd(odd);
    submit_texts();
    if (goal_ && goal_->tasks == 0) arrive_if_there();
    if (goal_) fail_changed();
    return place_.odd;
  }

 private:
  struct Text {
    std::size_t end;
    bool first, last;
  };
  struct Texts {
    std::string bytes;
    std::vector<Text> texts;
  };

  // Returns whether the file is to be read.
  bool begin_file(const fs::path& path, const OddFiles& odd) {
    end_file();
    count_odd(odd);
    std::error_code error;
    const auto size = fs::file_size(path, error);
    const auto time = fs::last_write_time(path, error).time_since_epoch().count();
    file_ = fmt::format("{}\n{}\n{}\n", path.filename().string(), size, time);
    if (!texts_->bytes.empty() && texts_->bytes.size() + size >= kTaskBytes) submit_texts();
    if (goal_ && place_.files == goal_->files && place_.files_hash != goal_->files_hash) fail_changed();
    arrive_if_there();
    return !goal_ || place_.files == goal_->files;
  }

  void end_file() {
    if (file_.empty()) return;
    if (goal_ && place_.files == goal_->files) fail_changed();
    place_ = {place_.files + 1,
              XXH3_64bits_withSeed(file_.data(), file_.size(), place_.files_hash),
              0,
              0,
              place_.input_bytes,
              place_.odd};
    file_.clear();
    texts_of_file_ = false;
  }

  // At the end of a file; `odd` are those that this call of read() has found.
  void count_odd(const OddFiles& odd) {
    place_.odd = odd_before_;
    place_.odd.add(odd);
  }

  void add(const DocumentPiece& piece) {
    place_.input_bytes = piece.input_bytes;
    texts_->bytes += piece.text;
    texts_->texts.push_back({texts_->bytes.size(), piece.first, piece.last});
    texts_of_file_ = true;
    if (texts_->bytes.size() >= kTaskBytes) submit_texts();
  }

  void add(Parcel&& parcel) {
    submit_texts();
    place_.input_bytes = parcel.input_bytes;
    count(parcel.bytes);
    const auto weight = parcel.bytes.size();
    const auto shared = std::make_shared<const Parcel>(std::move(parcel));
    submit(
        [&reading = reading_, &encoder = encoder_, shared, place = place_](const auto& emit) {
          Tokens tokens;
          tokens.odd = read_parcel(*shared, reading, [&](const DocumentPiece& piece) {
            encoder(piece.text, piece.first, piece.last, tokens);
            if (tokens.ids.size() >= kChunkTokens) emit(std::exchange(tokens, {}));
          });
          tokens.place = place;
          emit(std::move(tokens));
        },
        weight);
  }

  void submit_texts() {
    if (texts_->texts.empty()) return;  // one without bytes may end a document
    if (texts_of_file_) count(texts_->bytes);
    texts_of_file_ = false;
    const auto weight = texts_->bytes.size();
    submit(
        [&encoder = encoder_, texts = std::exchange(texts_, std::make_shared<Texts>()),
         place = place_](const auto& emit) {
          Tokens tokens;
          std::size_t begin = 0;
          for (const auto& text : texts->texts) {
            encoder(std::string_view(texts->bytes).substr(begin, text.end - begin), text.first, text.last,
                    tokens);
            begin = text.end;
          }
          tokens.place = place;
          emit(std::move(tokens));
        },
        weight);
  }

  void count(std::string_view bytes) {
    ++place_.tasks;
    place_.tasks_hash = XXH3_64bits_withSeed(bytes.data(), bytes.size(), place_.tasks_hash);
  }

  void submit(OrderedJobs<Tokens>::Job job, std::size_t weight) {
    if (!goal_) return jobs_.submit(std::move(job), weight);
    bar_->update(place_.input_bytes);
    arrive_if_there();
  }

  // At the saved place, stops skipping tasks.
  void arrive_if_there() {
    if (!goal_ || place_.files != goal_->files || place_.tasks != goal_->tasks) return;
    if (place_.files_hash != goal_->files_hash || place_.tasks_hash != goal_->tasks_hash) fail_changed();
    goal_.reset();
    bar_->clear();
  }

  [[noreturn]] void fail_changed() const {
    fail_user(
        "the input has changed since the preparation was interrupted; restore it to go on, or remove "
        "{}.partial to start over",
        options_.out.string());
  }

  const PrepareOptions& options_;
  const DocumentOptions& reading_;
  Encoder& encoder_;
  OrderedJobs<Tokens>& jobs_;
  InputPlace place_;                // all input before it is in a task or in texts_
  std::optional<InputPlace> goal_;  // the saved place, until it is reached
  OddFiles odd_before_;             // those of the saved place
  std::optional<Progress> bar_;
  std::string file_;  // name, size and time of the current file
  std::shared_ptr<Texts> texts_ = std::make_shared<Texts>();
  bool texts_of_file_ = false;  // whether texts_ has text of the current file
};

// The number of documents, counted only as far as the split needs it.
std::int64_t count_documents(const PrepareOptions& options, const DocumentOptions& reading) {
  std::int64_t documents = 0;
  const auto enough = few_documents(options.val_fraction);
  Progress bar("counting documents", static_cast<double>(enough), "documents");
  read_documents(options.inputs, reading, [&](const DocumentPiece& piece) {
    documents += piece.first ? 1 : 0;
    bar.update(static_cast<double>(documents));
    return documents < enough;
  });
  bar.clear();
  if (documents == 0) {
    fail_user(
        "no documents found in {}: there must be .txt or .jsonl files that are not empty, or archives of "
        "such",
        options.inputs.front().string());
  }
  if (documents == 1) {
    fail_user(
        "{}: only one document, and validation needs another; use `shoal prepare text` to cut a single text",
        options.inputs.front().string());
  }
  return documents;
}

std::string settings_of(const PrepareOptions& options, std::int64_t documents) {
  return fmt::format("seed {}, val fraction {}, field {}, {}{} documents", options.seed, options.val_fraction,
                     options.field, documents < few_documents(options.val_fraction) ? "" : "at least ",
                     documents);
}

}  // namespace

DatasetMeta prepare_openwebtext(const PrepareOptions& options, int threads) {
  if (options.inputs.empty()) {
    fail_user("openwebtext: no files or folders of the corpus are given");
  }
  if (options.tokenizer != "gpt2") {
    fail_user("openwebtext: the tokenizer is gpt2, not {}", options.tokenizer);
  }
  StagedFolder folder(options.out, replaces_dataset(options), true);
  const bool resumed = has_progress(folder.path());
  const auto tokenizer = load_bpe_tokenizer(fetch_gpt2_vocabulary(options.fetch));
  const DocumentOptions reading = {.field = options.field,
                                   .texts = TextFiles::openwebtext,
                                   .longest_record = kLongestRecord,
                                   .left_out = places_of(options.out)};
  const auto documents = count_documents(options, reading);
  const auto settings = settings_of(options, documents);
  std::optional<OpenWebTextProgress> saved;
  if (resumed) {
    saved = load_progress(folder.path(), settings);
    log::info("resuming the interrupted preparation after {} documents and {} tokens",
              with_commas(saved->documents), with_commas(saved->train.tokens + saved->val.tokens));
  }
  if (!resumed) folder.begin();

  const SplitRule rule(options.seed, options.val_fraction, documents);
  const int bytes_per_token = token_width(*tokenizer);
  Writer writer(options, rule, settings, folder, saved ? &*saved : nullptr, bytes_per_token);
  Encoder encoder(*tokenizer);
  try {
    OrderedJobs<Tokens> jobs(threads, [&](Tokens&& tokens) { writer.write(tokens); });
    Tasks tasks(options, reading, encoder, jobs, saved ? &*saved : nullptr);
    auto odd = tasks.read();
    jobs.finish();
    odd.add(writer.odd());
    if (documents == few_documents(options.val_fraction))
      report_odd_files(odd, reading);  // otherwise count_documents() has done it
  } catch (...) {
    if (has_progress(folder.path())) {
      log::info("the progress is kept in {}; the same command resumes there", folder.path().string());
    }
    throw;
  }
  writer.finish();

  DatasetMeta meta;
  for (const auto& input : options.inputs) meta.sources.push_back(input.string());
  meta.split_rule =
      fmt::format("{:g} % of the documents, drawn with the seed, are val", 100 * options.val_fraction);
  finish_dataset(options, *tokenizer, bytes_per_token, writer.splits, folder, meta);
  remove_progress(options.out);
  return meta;
}

}  // namespace shoal
