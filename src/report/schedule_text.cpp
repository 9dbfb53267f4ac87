#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "report/schedule_picture.h"

namespace shoal {
namespace {

// Terminal colours (of 256): blues for forward, oranges for backward passes, a shade per chunk. Black text is
// readable on all.
constexpr std::array kForwardColours = {117, 75, 153, 111};
constexpr std::array kBackwardColours = {215, 209, 222, 216};

struct Cell {
  char character = ' ';
  int colour = -1;  // none
};
using Line = std::vector<Cell>;

int digits_of(int number) { return static_cast<int>(std::to_string(number).size()); }

// Columns of a forward pass of one chunk: a border, the micro-batch and the chunk.
int columns_of_a_pass(const PipelineShape& shape) {
  return 1 + digits_of(shape.micro_batches - 1) + (shape.chunks > 1 ? 1 : 0);
}

Line draw_rank(const std::vector<Timeline::Span>& spans, const PipelineShape& shape, int columns,
               int length) {
  Line line(length + 1);
  for (const auto& [action, begin, end] : spans) {
    const bool forward = action.kind == Action::Kind::forward;
    const auto first = std::lround(begin) * columns, last = std::lround(end) * columns;
    const auto shade = action.chunk % kForwardColours.size();
    std::string text = fmt::format("|{}", action.micro_batch);
    if (shape.chunks > 1) text += static_cast<char>('a' + action.chunk % 26);
    text.resize(last - first, forward ? ' ' : '=');
    for (auto i = first; i < last; ++i) {
      line[i] = {text[i - first], forward ? kForwardColours[shade] : kBackwardColours[shade]};
    }
    if (line[last].character == ' ') line[last] = {'|', -1};  // no pass follows that draws its own border
  }
  return line;
}

std::string painted(const Line& line, std::size_t begin, std::size_t end, bool colour) {
  std::string text;
  int now = -1;
  for (std::size_t i = begin; i < end; ++i) {
    if (colour && line[i].colour != now) {
      now = line[i].colour;
      text += now < 0 ? "\033[0m" : fmt::format("\033[48;5;{};38;5;16m", now);
    }
    text += line[i].character;
  }
  if (now >= 0) text += "\033[0m";
  return text;
}

}  // namespace

std::string schedule_text(const Schedule& schedule, int width, bool colour) {
  const auto& shape = schedule.shape;
  const auto line = timeline(schedule, shape.chunks, 2 * shape.chunks);  // one chunk's passes take 1 and 2
  const int columns = columns_of_a_pass(shape);
  const int length = static_cast<int>(std::lround(line.length)) * columns;
  const int label = 5 + digits_of(shape.stages - 1) + 1;
  constexpr int kGap = 5;  // " ... "
  const int room = std::max(width - label, 40);
  const bool fits = length + 1 <= room;
  const int head = fits ? length + 1 : (room - kGap) / 2 / columns * columns;
  const int tail = fits ? 0 : (room - kGap - head - 1) / columns * columns + 1;
  std::string text;
  for (int rank = 0; rank < shape.stages; ++rank) {
    const auto cells = draw_rank(line.ranks[rank], shape, columns, length);
    text += fmt::format("rank {:<{}} {}", rank, label - 6, painted(cells, 0, head, colour));
    if (!fits) text += " ... " + painted(cells, cells.size() - tail, cells.size(), colour);
    text.erase(text.find_last_not_of(' ') + 1);
    text += '\n';
  }
  if (fits) return text;
  return text + fmt::format("(...: {:.0f} % of the step is left out, which does not fit into {} columns)\n",
                            100.0 * (length + 1 - head - tail) / (length + 1), width);
}

}  // namespace shoal
