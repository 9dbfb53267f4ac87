// Numbers and durations as people read them.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace shoal {

std::string format_bytes(double bytes);       // "1.5 GiB"
std::string format_count(double count);       // "124.4M"
std::string format_duration(double seconds);  // "1h 02m", "3m 20s", "12 s", "250 ms"
std::string with_commas(std::int64_t value);  // "1,003,854"

// The parts between commas, without the blanks around them; none of an empty text.
std::vector<std::string> split_list(std::string_view text);

// Whether `text` ends in `ending`, which is in lower case; letters of ASCII in upper case count as well.
bool ends_in_any_case(std::string_view text, std::string_view ending);

// The text as a word of a shell's command line, in quotes where it needs them.
std::string shell_word(const std::string& text);

// Edit distance with substitutions, insertions and deletions; and the nearest of some names, "" when none is
// near.
int edit_distance(std::string_view a, std::string_view b);
std::string nearest(std::string_view name, const std::vector<std::string>& candidates);

}  // namespace shoal
