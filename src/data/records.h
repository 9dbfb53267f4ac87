// One line of JSON lines.
#pragma once

#include <string>
#include <string_view>

namespace shoal {

// The string in the field `field` of the JSON object `record`; where a key is there twice, its last value
// counts, as in other readers. Copies nothing large: memory is about twice the string. Throws UserError that
// starts with `where`: not JSON, no object, no such field, no string.
std::string text_of_record(std::string_view record, const std::string& field, const std::string& where);

}  // namespace shoal
