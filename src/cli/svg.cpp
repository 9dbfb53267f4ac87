#include "cli/svg.h"

#include "checkpoint/file_io.h"
#include "core/error.h"
#include "core/text.h"

namespace shoal::cli {

void require_svg(const std::filesystem::path& output) {
  if (output.extension() == ".svg") return;
  fail_user("{}: the picture is an SVG; name it {}.svg", output.string(), output.stem().string());
}

void write_svg(const std::filesystem::path& output, const std::string& svg) {
  write_text(output, svg);
  fmt::print("wrote {} ({}); open it in a browser\n", output.string(),
             format_bytes(static_cast<double>(svg.size())));
}

}  // namespace shoal::cli
