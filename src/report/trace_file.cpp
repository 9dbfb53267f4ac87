#include "report/trace_file.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "core/json_text.h"

namespace shoal {
namespace {

using nlohmann::ordered_json;
using trace::Event;
using trace::Lane;

// Times are rounded to nanoseconds before subtraction, so that nested events are nested in the file, too.
std::int64_t nanoseconds(double seconds) { return std::llround(seconds * 1e9); }
double microseconds(std::int64_t nanoseconds) { return static_cast<double>(nanoseconds) / 1e3; }

constexpr const char* kThreads[] = {"compute", "waits"};

// The id of a lane's thread. It is unique in the file and differs from all ranks, because Perfetto takes a
// thread with its process's number for the main thread.
int thread_of(int rank, Lane lane) { return 10 * (rank + 1) + (lane == Lane::compute ? 1 : 2); }

class Lines {
 public:
  explicit Lines(int rank) : rank_(rank) {}

  void describe(const char* what, int thread, ordered_json arguments) {
    add({{"ph", "M"}, {"name", what}, {"pid", rank_}, {"tid", thread}, {"args", std::move(arguments)}});
  }
  void complete(const Event& event, std::int64_t begin, std::int64_t end) {
    auto line = common("X", event, begin);
    line["dur"] = microseconds(end - begin);
    line["args"] = arguments(event);
    add(line);
  }
  void asynchronous(const Event& event, std::int64_t begin, std::int64_t end) {
    const ordered_json id = {{"local", fmt::format("{:#x}", ++asynchronous_)}};
    auto line = common("b", event, begin);
    line["id2"] = id;
    line["args"] = arguments(event);
    add(line);
    line = common("e", event, end);
    line["id2"] = id;
    add(line);
  }
  std::string text() && { return std::move(text_); }

 private:
  ordered_json common(const char* phase, const Event& event, std::int64_t time) const {
    return {{"ph", phase},
            {"cat", event.category},
            {"name", shown_name(event)},
            {"pid", rank_},
            {"tid", thread_of(rank_, event.lane)},
            {"ts", microseconds(time)}};
  }
  // Viewers choose colours by name: different names distinguish the two passes through a unit.
  static std::string shown_name(const Event& event) {
    const bool pass = event.category == "forward" || event.category == "backward";
    return pass ? fmt::format("{} {}", event.category, event.name) : event.name;
  }
  static ordered_json arguments(const Event& event) {
    auto json = ordered_json::object();
    for (const auto& [name, value] : event.arguments) json[name] = value;
    return json;
  }
  void add(const ordered_json& line) {
    if (!text_.empty()) text_ += ",\n";
    text_ += json_text(line);
  }

  int rank_;
  int asynchronous_ = 0;
  std::string text_;
};

const std::filesystem::path& require_no_folder(const std::filesystem::path& path) {
  std::error_code ignored;
  if (std::filesystem::is_directory(path, ignored) || !path.has_filename()) {
    fail_user("--trace {}: that is a folder; give the name of a file", path.string());
  }
  return path;
}

}  // namespace

std::string trace_lines(const TracedRank& rank, const std::vector<Event>& events,
                        const std::function<double(double)>& seconds) {
  Lines lines(rank.rank);
  const int first = thread_of(rank.rank, Lane::compute);
  lines.describe("process_name", first,
                 {{"name", rank.place.empty() ? fmt::format("rank {}", rank.rank)
                                              : fmt::format("rank {} ({})", rank.rank, rank.place)}});
  lines.describe("process_labels", first, {{"labels", rank.host}});
  lines.describe("process_sort_index", first, {{"sort_index", rank.rank}});
  for (const auto lane : {Lane::compute, Lane::waits}) {
    const int thread = thread_of(rank.rank, lane), index = static_cast<int>(lane);
    lines.describe("thread_name", thread, {{"name", kThreads[index]}});
    lines.describe("thread_sort_index", thread, {{"sort_index", index}});
  }
  struct Timed {
    std::int64_t begin, end;
    const Event* event;
  };
  std::vector<Timed> timed;
  for (const auto& event : events) {
    timed.push_back({nanoseconds(seconds(event.begin)), nanoseconds(seconds(event.end)), &event});
  }
  // An event must come before the events nested in it. Events are recorded at their end, so of two with equal
  // times the later one contains the other.
  std::reverse(timed.begin(), timed.end());
  std::stable_sort(timed.begin(), timed.end(), [](const Timed& a, const Timed& b) {
    return a.begin != b.begin ? a.begin < b.begin : a.end > b.end;
  });
  for (const auto& [begin, end, event] : timed) {
    if (event->lane == Lane::transfers) {
      lines.asynchronous(*event, begin, end);
    } else {
      lines.complete(*event, begin, end);
    }
  }
  return std::move(lines).text();
}

TraceFile::TraceFile(std::filesystem::path path) : path_(std::move(path)), file_(require_no_folder(path_)) {
  file_.write("{\"traceEvents\":[\n");
}

void TraceFile::add(std::string_view lines) {
  if (!std::exchange(empty_, false)) file_.write(",\n");
  file_.write(lines);
}

void TraceFile::finish(std::string_view facts) {
  file_.write(fmt::format("\n],\n\"displayTimeUnit\":\"ms\",\"otherData\":{}}}\n", facts));
  file_.commit();
}

}  // namespace shoal
