#include "core/log.h"

#include <spdlog/pattern_formatter.h>
#include <spdlog/sinks/basic_file_sink.h>
#include <spdlog/sinks/ringbuffer_sink.h>
#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <memory>
#include <utility>

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
      takes_colors(STDERR_FILENO) ? spdlog::color_mode::automatic : spdlog::color_mode::never);
  // Lines from before the first file, which begins with them.
  std::shared_ptr<spdlog::sinks::ringbuffer_sink_mt> early =
      std::make_shared<spdlog::sinks::ringbuffer_sink_mt>(100);
  spdlog::logger logger{"shoal", {console, early}};
  Logger() {
    console->set_formatter(make_formatter());
    logger.set_level(spdlog::level::debug);
    console->set_level(spdlog::level::info);
    early->set_level(spdlog::level::info);
  }
};

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
  instance().logger.log(to_spdlog(level), spdlog::string_view_t(message.data(), message.size()));
}

void set_level(Level level) { instance().console->set_level(to_spdlog(level)); }

void attach_file(const std::filesystem::path& path) {
  detach_file();
  try {
    auto file = std::make_shared<spdlog::sinks::basic_file_sink_mt>(path.string());
    file->set_formatter(make_formatter());
    file->set_level(spdlog::level::info);
    if (const auto early = std::exchange(instance().early, nullptr)) {
      for (const auto& line : early->last_raw()) file->log(line);
    }
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
