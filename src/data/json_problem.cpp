#include "data/json_problem.h"

#include <algorithm>
#include <optional>

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

// The place of a surrogate's escape without its partner, if the parser stopped for that behind `read`: at the
// end of the escape, or of the character or escape behind it.
std::optional<std::size_t> lone_surrogate(std::string_view read) {
  for (const std::size_t back : {6, 7, 8, 12}) {
    if (read.size() < back) break;
    const auto at = read.size() - back;
    const auto escape = read.substr(at, 6);
    const auto is = [&](std::size_t i, std::string_view any_of) {
      return any_of.find(escape[i]) != std::string_view::npos;
    };
    if (!escape.starts_with("\\u") || !is(2, "dD") || !is(3, back == 6 ? "cCdDeEfF" : "89aAbB")) continue;
    const auto backslashes = at - (read.substr(0, at).find_last_not_of('\\') + 1);  // before the escape
    if (backslashes % 2 == 0) return at;
  }
  return std::nullopt;
}

}  // namespace

std::string json_problem(std::string_view text, std::size_t bytes_read, bool first_line) {
  if (text.find_first_not_of(" \t\r\n") == std::string_view::npos) return "it is empty";
  if (bytes_read == 0 || bytes_read > text.size()) return "it ends too early";
  const auto half = lone_surrogate(text.substr(0, bytes_read));
  const auto at = half.value_or(start_of_problem(text, bytes_read - 1));
  const auto before = text.substr(0, at);
  const auto line = std::count(before.begin(), before.end(), '\n') + 1;
  const auto newline = before.rfind('\n');
  const auto row = before.substr(newline == std::string_view::npos ? 0 : newline + 1);
  const auto column = std::count_if(row.begin(), row.end(), [](char c) { return (c & 0xC0) != 0x80; }) + 1;
  const auto where =
      fmt::format("{}column {}", first_line || line > 1 ? fmt::format("line {}, ", line) : "", column);
  if (half) {
    return fmt::format("{}: {} is half of a surrogate pair, without the other half; remove it", where,
                       text.substr(at, 6));
  }
  for (const std::string_view number : {"NaN", "Infinity"}) {
    if (text.substr(at).starts_with(number))
      return fmt::format("{}: {} is not JSON; write null", where, number);
  }
  const auto byte = static_cast<unsigned char>(text[at]);
  const auto length = static_cast<std::size_t>(decode_utf8(text, at).length);
  if (length == 0) return fmt::format("{}: the byte 0x{:02X} is not UTF-8", where, byte);
  if (byte < 0x20) return fmt::format("{}: the control character 0x{:02X} is not allowed here", where, byte);
  return fmt::format("{}: '{}' is not expected here", where, text.substr(at, length));
}

}  // namespace shoal
