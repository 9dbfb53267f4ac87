#include "core/log.h"

#include <spdlog/pattern_formatter.h>
#include <spdlog/sinks/basic_file_sink.h>
#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "core/error.h"
#include "core/terminal.h"

namespace shoal::log {
namespace {

// Level names in upper case, right-aligned in five columns, as the published trainers' logs have them.
class LevelName : public spdlog::custom_flag_formatter {
 public:
  void format(const spdlog::details::log_msg& msg, const std::tm&, spdlog::memory_buf_t& dest) override {
    static constexpr std::string_view kNames[] = {"TRACE", "DEBUG", " INFO", " WARN",
                                                  "ERROR", "ERROR", "  OFF"};
    const auto name = kNames[static_cast<std::size_t>(msg.level)];
    dest.append(name.data(), name.data() + name.size());
  }
  std::unique_ptr<custom_flag_formatter> clone() const override { return std::make_unique<LevelName>(); }
};

std::unique_ptr<spdlog::formatter> make_formatter() {
  auto formatter = std::make_unique<spdlog::pattern_formatter>();
  formatter->add_flag<LevelName>('*').set_pattern("[%H:%M:%S %^%*%$] %v");
  return formatter;
}

// The one process-wide logger; the console goes to standard error so that standard output stays the result.
struct Logger {
  std::shared_ptr<spdlog::sinks::sink> console = std::make_shared<spdlog::sinks::stderr_color_sink_mt>(
      takes_colors(STDERR_FILENO) ? spdlog::color_mode::always : spdlog::color_mode::never);
  spdlog::logger logger{"shoal", console};
  Logger() {
    console->set_formatter(make_formatter());
    logger.set_level(spdlog::level::debug);
    console->set_level(spdlog::level::info);
  }
};

// Lines from before the first file is attached, which begins with them.
struct EarlyLines {
  static constexpr std::size_t kMost = 100;
  struct Line {
    spdlog::log_clock::time_point time;
    spdlog::level::level_enum level;
    std::string text;
  };
  std::mutex mutex;
  std::vector<Line> lines;
  bool over = false;  // a file has been attached
};

EarlyLines& early() {
  static EarlyLines lines;
  return lines;
}

thread_local bool muted_here = false;

Logger& instance() {
  static Logger logger;
  return logger;
}

spdlog::level::level_enum to_spdlog(Level level) {
  switch (level) {
    case Level::debug:
      return spdlog::level::debug;
    case Level::info:
      return spdlog::level::info;
    case Level::warn:
      return spdlog::level::warn;
    case Level::error:
      return spdlog::level::err;
  }
  return spdlog::level::info;
}

}  // namespace

void write(Level level, std::string_view message) {
  if (muted_here && level != Level::error) return;
  status_line::clear();
  {
    const std::lock_guard lock(early().mutex);
    auto& [mutex, lines, over] = early();
    if (!over && level != Level::debug && lines.size() < EarlyLines::kMost)
      lines.push_back({spdlog::log_clock::now(), to_spdlog(level), std::string(message)});
  }
  instance().logger.log(to_spdlog(level), spdlog::string_view_t(message.data(), message.size()));
}

void set_level(Level level) { instance().console->set_level(to_spdlog(level)); }

void attach_file(const std::filesystem::path& path) {
  detach_file();
  try {
    auto file = std::make_shared<spdlog::sinks::basic_file_sink_mt>(path.string());
    file->set_formatter(make_formatter());
    file->set_level(spdlog::level::info);
    const std::lock_guard lock(early().mutex);
    for (const auto& [time, level, text] : std::exchange(early().lines, {}))
      file->log(spdlog::details::log_msg(time, {}, "shoal", level, text));
    early().over = true;
    instance().logger.sinks().push_back(file);
    instance().logger.flush_on(spdlog::level::info);
  } catch (const spdlog::spdlog_ex& error) {
    fail_user("cannot open the log file {}: {}", path.string(), error.what());
  }
}

void detach_file() { instance().logger.sinks().resize(1); }

void mute_thread(bool muted) { muted_here = muted; }
bool thread_muted() { return muted_here; }

}  // namespace shoal::log
