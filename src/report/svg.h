// Helpers for the SVG pictures of this room.
#pragma once

#include <fmt/format.h>

#include <filesystem>
#include <string>
#include <string_view>

namespace shoal {

// The start of an SVG document, with a white background. Its styles are title, faint, rank and cell.
inline std::string svg_head(double width, double height) {
  return fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {0:.0f} {1:.0f}\" width=\"{0:.0f}\" "
      "height=\"{1:.0f}\">\n"
      "<style>text{{font-family:Inter,'Helvetica Neue',Arial,'DejaVu Sans',sans-serif;fill:#222;"
      "font-variant-numeric:tabular-nums}}.title{{font-size:17px;font-weight:600}}"
      ".faint{{font-size:12px;fill:#6b7280}}.rank{{font-size:13px}}.cell{{font-size:11.5px}}</style>\n"
      "<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n",
      width, height);
}

// Text for an SVG: reserved characters of XML are escaped, control characters become spaces, and bytes that
// are not UTF-8 U+FFFD.
std::string svg_escaped(std::string_view text);
// A text element with `attributes` in XML and escaped `content`.
std::string svg_text(double x, double y, std::string_view attributes, std::string_view content);

// Throws UserError where `output` does not end in .svg, or where its folder is missing.
void require_svg(const std::filesystem::path& output);
// Writes a picture and prints its path.
void write_svg(const std::filesystem::path& output, const std::string& svg);

}  // namespace shoal
