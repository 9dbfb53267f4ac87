#include "core/terminal.h"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <mutex>

namespace shoal {
namespace {

struct CodePoint {
  std::uint32_t value;
  std::size_t bytes;
};

// The first character of `text`, which is not empty; a byte that is not UTF-8 stands for itself.
CodePoint first_of(std::string_view text) {
  const auto lead = static_cast<unsigned char>(text.front());
  const std::size_t bytes = lead < 0x80   ? 1
                            : lead < 0xC2 ? 0
                            : lead < 0xE0 ? 2
                            : lead < 0xF0 ? 3
                            : lead < 0xF5 ? 4
                                          : 0;
  if (bytes <= 1 || bytes > text.size()) return {lead, 1};
  std::uint32_t value = lead & (0x7Fu >> bytes);
  for (std::size_t i = 1; i < bytes; ++i) {
    const auto next = static_cast<unsigned char>(text[i]);
    if ((next & 0xC0) != 0x80) return {lead, 1};
    value = value << 6 | (next & 0x3Fu);
  }
  return {value, bytes};
}

struct Block {
  std::uint32_t first, last;
};

template <std::size_t N>
bool within(std::uint32_t value, const std::array<Block, N>& blocks) {
  return std::ranges::any_of(blocks,
                             [&](const Block& block) { return block.first <= value && value <= block.last; });
}

// The blocks of Unicode that take no column and two columns.
constexpr std::array kNoColumn = {Block{0x300, 0x36F},   Block{0x483, 0x489},   Block{0x591, 0x5BD},
                                  Block{0x610, 0x61A},   Block{0x64B, 0x65F},   Block{0x1AB0, 0x1AFF},
                                  Block{0x1DC0, 0x1DFF}, Block{0x200B, 0x200F}, Block{0x20D0, 0x20FF},
                                  Block{0xFE00, 0xFE0F}, Block{0xFE20, 0xFE2F}};
constexpr std::array kTwoColumns = {Block{0x1100, 0x115F},   Block{0x2E80, 0x303E},   Block{0x3041, 0xA4CF},
                                    Block{0xA960, 0xA97F},   Block{0xAC00, 0xD7A3},   Block{0xF900, 0xFAFF},
                                    Block{0xFE30, 0xFE6F},   Block{0xFF00, 0xFF60},   Block{0xFFE0, 0xFFE6},
                                    Block{0x1F300, 0x1F64F}, Block{0x1F680, 0x1F6FF}, Block{0x1F900, 0x1F9FF},
                                    Block{0x20000, 0x3FFFD}};

int columns_of(std::uint32_t value) {
  return within(value, kNoColumn) ? 0 : within(value, kTwoColumns) ? 2 : 1;
}

// How many bytes of `text` fit `columns`.
std::size_t bytes_that_fit(std::string_view text, int columns) {
  std::size_t at = 0;
  while (at < text.size()) {
    const auto [value, bytes] = first_of(text.substr(at));
    columns -= columns_of(value);
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

int display_width(std::string_view text) {
  int columns = 0;
  for (std::size_t at = 0; at < text.size();) {
    const auto [value, bytes] = first_of(text.substr(at));
    columns += columns_of(value);
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
