#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "core/file.h"
#include "report/trace_picture.h"

namespace shoal {
namespace {

constexpr std::uint64_t kLargest = std::uint64_t{1} << 30;

struct TimeRange {
  double begin = INFINITY, end = -INFINITY;
};

double number(const nlohmann::json& event, const char* key) {
  const double value = event.at(key).get<double>();
  if (!std::isfinite(value)) throw nlohmann::json::other_error::create(501, "a time is not finite", &event);
  return value / 1e6;
}

std::string step_asked_for(const std::filesystem::path& path, const std::map<std::int64_t, TimeRange>& steps,
                           std::int64_t step) {
  if (steps.empty()) fail_user("{} has no step", path.string());
  if (step == 0) step = steps.begin()->first;
  if (!steps.contains(step)) {
    fail_user("{} has steps {} to {}, but not {}", path.string(), steps.begin()->first, steps.rbegin()->first,
              step);
  }
  return std::to_string(step);
}

TraceStep step_of(const std::filesystem::path& path, const nlohmann::json& file, std::int64_t asked) {
  std::map<std::int64_t, TimeRange> steps;
  std::map<int, TraceRow> rows;                        // by process
  std::map<std::pair<int, int>, std::string> threads;  // by process and thread
  const auto& events = file.at("traceEvents");
  for (const auto& event : events) {
    const int process = event.at("pid"), thread = event.at("tid");
    const std::string phase = event.at("ph"), name = event.at("name");
    if (phase == "M" && name == "thread_name") threads[{process, thread}] = event.at("args").at("name");
    if (phase == "M" && name == "process_name") {
      const std::string label = event.at("args").at("name");
      const auto place = label.find(" (");
      rows[process].rank = label.substr(0, place);
      if (place != std::string::npos) rows[process].place = label.substr(place + 2, label.size() - place - 3);
    }
    if (phase == "X" && event.at("cat") == "step" && name.starts_with("step ")) {
      auto& range = steps[std::stoll(name.substr(5))];
      range.begin = std::min(range.begin, number(event, "ts"));
      range.end = std::max(range.end, number(event, "ts") + number(event, "dur"));
    }
  }
  TraceStep step;
  step.name = "step " + step_asked_for(path, steps, asked);
  const auto [begin, end] = steps.at(std::stoll(step.name.substr(5)));
  step.seconds = end - begin;
  for (const auto& event : events) {
    if (event.at("ph") != "X" || event.at("cat") == "step") continue;
    const int process = event.at("pid"), thread = event.at("tid");
    const double from = number(event, "ts") - begin, to = from + number(event, "dur");
    if (to <= 0 || from >= step.seconds) continue;
    auto& row = rows[process];
    auto& bars = threads[{process, thread}] == "waits" ? row.waits : row.compute;
    bars.push_back({event.at("cat"), event.at("name"), event.at("args").value("micro-batch", ""),
                    std::max(from, 0.0), std::min(to, step.seconds)});
  }
  for (auto& [process, row] : rows) step.rows.push_back(std::move(row));
  return step;
}

}  // namespace

TraceStep read_trace_step(const std::filesystem::path& path, std::int64_t step) {
  const auto text = read_text(path, kLargest);
  try {
    return step_of(path, nlohmann::json::parse(text), step);
  } catch (const UserError&) {
    throw;
  } catch (const std::exception& error) {  // invalid JSON or number
    fail_user("{} is not a trace that shoal train --trace wrote: {}", path.string(), error.what());
  }
}

}  // namespace shoal
