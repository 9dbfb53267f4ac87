#include "core/wrap.h"

#include <fmt/format.h>

#include <algorithm>

namespace shoal {

std::string wrap(std::string_view text, std::string_view indent, std::size_t width) {
  std::string lines, line;
  while (!text.empty()) {
    const auto end = std::min(text.find(' '), text.size());
    const auto word = text.substr(0, end);
    if (!line.empty() && indent.size() + line.size() + 1 + word.size() > width) {
      lines += fmt::format("{}{}\n", indent, line);
      line.clear();
    }
    line += (line.empty() ? "" : " ") + std::string(word);
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return lines + fmt::format("{}{}\n", indent, line);
}

}  // namespace shoal
