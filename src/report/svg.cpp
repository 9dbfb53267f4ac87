#include "report/svg.h"

#include <algorithm>

#include "core/error.h"
#include "core/file.h"
#include "core/text.h"
#include "core/utf8.h"

namespace shoal {
std::string svg_escaped(std::string_view text) {
  std::string out;
  for (std::size_t at = 0; at < text.size();) {
    const auto [value, length] = decode_utf8(text, at);
    if (value == '&') {
      out += "&amp;";
    } else if (value == '<') {
      out += "&lt;";
    } else if (value == '>') {
      out += "&gt;";
    } else if (length == 0) {
      append_utf8(out, 0xFFFD);
    } else if (value < 0x20) {
      out += ' ';
    } else {
      out += text.substr(at, static_cast<std::size_t>(length));
    }
    at += static_cast<std::size_t>(std::max(length, 1));
  }
  return out;
}

std::string svg_text(double x, double y, std::string_view attributes, std::string_view content) {
  return fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" {}>{}</text>\n", x, y, attributes,
                     svg_escaped(content));
}

void require_svg(const std::filesystem::path& output) {
  if (output.extension() != ".svg")
    fail_user("{}: the picture is an SVG; name it {}.svg", output.string(), output.stem().string());
  const auto folder = output.parent_path();
  if (folder.empty() || std::filesystem::is_directory(folder)) return;
  fail_user("cannot create {}: there is no folder {}", output.string(), folder.string());
}

void write_svg(const std::filesystem::path& output, const std::string& svg) {
  replace_text(output, svg);
  fmt::print("wrote {} ({}); open it in a browser\n", output.string(),
             format_bytes(static_cast<double>(svg.size())));
}

}  // namespace shoal
