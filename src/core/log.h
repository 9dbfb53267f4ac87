// Logging: to the console, and to a run's train.log once it is attached. Lines read "[11:19:22  INFO]
// message".
#pragma once

#include <fmt/format.h>

#include <filesystem>
#include <string_view>
#include <utility>

namespace shoal::log {

enum class Level { debug, info, warn, error };

void write(Level level, std::string_view message);
void set_level(Level level);  // the console's; files get everything from info up

// Appends every later line, and the 100 lines before, to this file too. Throws UserError if it cannot.
void attach_file(const std::filesystem::path& path);
void detach_file();

// This thread's lines go nowhere, but for errors, and its progress bars are not drawn: for all ranks of a
// process but one.
void mute_thread(bool muted);
bool thread_muted();

template <typename... Args>
void info(fmt::format_string<Args...> format, Args&&... args) {
  write(Level::info, fmt::format(format, std::forward<Args>(args)...));
}
template <typename... Args>
void warn(fmt::format_string<Args...> format, Args&&... args) {
  write(Level::warn, fmt::format(format, std::forward<Args>(args)...));
}
template <typename... Args>
void debug(fmt::format_string<Args...> format, Args&&... args) {
  write(Level::debug, fmt::format(format, std::forward<Args>(args)...));
}

}  // namespace shoal::log
