// A record: one line of a file of JSON lines.
#pragma once

#include <string>
#include <string_view>

namespace shoal {

// The string in the field `field` of the JSON object `record`. Of duplicate keys the last counts, as in other
// readers. Needs about twice the memory of the string. Throws UserError, starting with `where`, when the
// record is not a JSON object, has no such field, or the field is not a string.
std::string text_of_record(std::string_view record, const std::string& field, const std::string& where);

}  // namespace shoal
