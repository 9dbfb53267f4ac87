// Terminals: their width, the width of text on them, and a status line that is redrawn in place.
#pragma once

#include <string>
#include <string_view>

namespace shoal {

// Columns of the terminal behind a file descriptor, asked anew at every call; 0: it is not a terminal.
int terminal_columns(int descriptor);

// Whether to write in colours to a file descriptor: to a terminal, unless NO_COLOR is set (no-color.org).
bool takes_colors(int descriptor);

// Columns that UTF-8 text takes: none for a combining mark, two for an East Asian ideograph or an emoji. A
// byte that is not UTF-8 counts as one.
int display_width(std::string_view text);

// The text itself if it fits `columns`, otherwise its beginning and "...".
std::string cut_to_width(std::string_view text, int columns);

// The last line of a terminal on standard error. The process has one; every function may be called by any
// thread. On anything but a terminal, nothing is drawn.
namespace status_line {

int columns();  // that a line may have, so that it never wraps; 0: standard error is not a terminal
void draw(std::string_view line);
void clear();  // before anything else is printed; log::write does it
void keep();   // ends the line, which stays

}  // namespace status_line

}  // namespace shoal
