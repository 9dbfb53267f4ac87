// shoal trace: draws one step of a trace as an SVG.
#include <memory>

#include "cli/command.h"
#include "report/svg.h"
#include "report/trace_picture.h"

namespace shoal::cli {

void add_trace(CLI::App& app) {
  struct Options {
    std::string file, output;
    std::int64_t step = 0;
  };
  auto options = std::make_shared<Options>();
  auto* command =
      add_command(app, "trace", "Draw one step of a trace that shoal train --trace wrote",
                  {{"shoal trace trace.json -o step.svg", "The first step of the trace, a row per rank"},
                   {"shoal trace trace.json --step 5 -o step.svg",
                    "Another one; https://ui.perfetto.dev shows everything"}});
  command->add_option("FILE", options->file, "The trace")->required()->option_text("FILE");
  command->add_option("--step", options->step, "The step to draw (default: the first one in the file)")
      ->check(takes_integer(1, kMostInt64))
      ->option_text("N");
  command->add_option("-o,--output", options->output, "The picture to write, an SVG")
      ->required()
      ->option_text("FILE.svg");
  command->callback([options] {
    const std::filesystem::path output = options->output;
    require_svg(output);
    write_svg(output, trace_svg(read_trace_step(options->file, options->step)));
  });
}

}  // namespace shoal::cli
