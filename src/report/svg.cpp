#include "report/svg.h"

#include "core/error.h"
#include "core/file.h"
#include "core/text.h"

namespace shoal {
std::string svg_escaped(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (c == '&') {
      out += "&amp;";
    } else if (c == '<') {
      out += "&lt;";
    } else {
      out += static_cast<unsigned char>(c) < 0x20 ? ' ' : c;
    }
  }
  return out;
}

std::string svg_text(double x, double y, std::string_view attributes, std::string_view content) {
  return fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" {}>{}</text>\n", x, y, attributes,
                     svg_escaped(content));
}

void require_svg(const std::filesystem::path& output) {
  if (output.extension() == ".svg") return;
  fail_user("{}: the picture is an SVG; name it {}.svg", output.string(), output.stem().string());
}

void write_svg(const std::filesystem::path& output, const std::string& svg) {
  write_text(output, svg);
  fmt::print("wrote {} ({}); open it in a browser\n", output.string(),
             format_bytes(static_cast<double>(svg.size())));
}

}  // namespace shoal
