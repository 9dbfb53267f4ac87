#include "data/json_problem.h"

#include <algorithm>

#include "core/error.h"
#include "core/utf8.h"

namespace shoal {
namespace {

// The start of the character that byte `at` belongs to, or of the damaged character right before it, if it
// belongs to none.
std::size_t start_of_problem(std::string_view text, std::size_t at) {
  const auto continues = [&](std::size_t i) { return (static_cast<unsigned char>(text[i]) & 0xC0) == 0x80; };
  auto start = at;
  while (start > 0 && at - start < 3 && continues(start)) --start;
  if (start == at && at > 0) {
    auto before = at - 1;
    while (before > 0 && at - before < 3 && continues(before)) --before;
    if (decode_utf8(text, before).length == 0) return before;
  }
  return start;
}

}  // namespace

std::string json_problem(std::string_view text, std::size_t bytes_read, bool first_line) {
  if (text.find_first_not_of(" \t\r\n") == std::string_view::npos) return "it is empty";
  if (bytes_read == 0 || bytes_read > text.size()) return "it ends too early";
  const auto at = start_of_problem(text, bytes_read - 1);
  const auto before = text.substr(0, at);
  const auto line = std::count(before.begin(), before.end(), '\n') + 1;
  const auto newline = before.rfind('\n');
  const auto row = before.substr(newline == std::string_view::npos ? 0 : newline + 1);
  const auto column = std::count_if(row.begin(), row.end(), [](char c) { return (c & 0xC0) != 0x80; }) + 1;
  const auto where =
      fmt::format("{}column {}", first_line || line > 1 ? fmt::format("line {}, ", line) : "", column);
  const auto byte = static_cast<unsigned char>(text[at]);
  const auto length = static_cast<std::size_t>(decode_utf8(text, at).length);
  if (length == 0) return fmt::format("{}: the byte 0x{:02X} is not UTF-8", where, byte);
  if (byte < 0x20) return fmt::format("{}: the control character 0x{:02X} is not allowed here", where, byte);
  return fmt::format("{}: '{}' is not expected here", where, text.substr(at, length));
}

}  // namespace shoal
