#include "core/terminal.h"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>
#include <utf8proc.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <mutex>

#include "core/utf8.h"

namespace shoal {
namespace {

// The character at byte `at` of `text`; a byte that is not UTF-8 is one, a column wide.
struct Character {
  int columns;
  std::size_t bytes;
};
Character character_at(std::string_view text, std::size_t at) {
  const auto [value, length] = decode_utf8(text, at);
  if (length == 0) return {1, 1};
  return {utf8proc_charwidth(static_cast<utf8proc_int32_t>(value)), static_cast<std::size_t>(length)};
}

// The number of bytes of `text` that fit into `columns`.
std::size_t bytes_that_fit(std::string_view text, int columns) {
  std::size_t at = 0;
  while (at < text.size()) {
    const auto [width, bytes] = character_at(text, at);
    columns -= width;
    if (columns < 0) break;
    at += bytes;
  }
  return at;
}

}  // namespace

int terminal_columns(int descriptor) {
  if (!::isatty(descriptor)) return 0;
  winsize size{};
  constexpr int kUsual = 80;  // of a terminal that does not say
  return ::ioctl(descriptor, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : kUsual;
}

bool takes_colors(int descriptor) {
  const char* refused = std::getenv("NO_COLOR");
  return ::isatty(descriptor) != 0 && (refused == nullptr || *refused == '\0');
}

int display_width(std::string_view text) {
  int columns = 0;
  for (std::size_t at = 0; at < text.size();) {
    const auto [width, bytes] = character_at(text, at);
    columns += width;
    at += bytes;
  }
  return columns;
}

std::string cut_to_width(std::string_view text, int columns) {
  if (display_width(text) <= columns) return std::string(text);
  constexpr std::string_view kMore = "...";
  const auto dots = kMore.substr(0, static_cast<std::size_t>(std::clamp(columns, 0, 3)));
  return std::string(text.substr(0, bytes_that_fit(text, columns - 3))).append(dots);
}

namespace status_line {
namespace {

std::mutex mutex;
int drawn = 0;  // columns of the line that is on the terminal

// A terminal that was made narrower has broken the line into several rows.
std::string erasure() {
  if (drawn == 0) return "";
  const int now = terminal_columns(STDERR_FILENO), rows_above = now > 0 ? (drawn - 1) / now : 0;
  return rows_above > 0 ? fmt::format("\033[{}A\r\033[J", rows_above) : "\r\033[K";
}

// In one write, so that nobody sees an empty line in between.
void put(const std::string& text) {
  std::fputs(text.c_str(), stderr);
  std::fflush(stderr);
}

bool understands_escapes() {
  const char* terminal = std::getenv("TERM");
  return !terminal || std::string_view(terminal) != "dumb";
}

}  // namespace

// The last column stays free: some terminals wrap as soon as it is filled.
int columns() {
  static const bool able = understands_escapes();
  return able ? std::max(terminal_columns(STDERR_FILENO) - 1, 0) : 0;
}

void draw(std::string_view line) {
  const int room = columns();
  if (room == 0) return;
  const std::lock_guard lock(mutex);
  const auto text = cut_to_width(line, room);
  put(erasure() + text);
  drawn = display_width(text);
}

void clear() {
  const std::lock_guard lock(mutex);
  if (drawn > 0) put(erasure());
  drawn = 0;
}

void keep() {
  const std::lock_guard lock(mutex);
  if (drawn > 0) put("\n");
  drawn = 0;
}

}  // namespace status_line
}  // namespace shoal
