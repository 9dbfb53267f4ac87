// Recognizes Parquet and Arrow (Feather) files, which Shoal does not read.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace shoal {

inline constexpr std::size_t kTableSignature = 8;  // bytes at the start of a file that identify a table

// `head` is the beginning of the file or archive member `name`. If it is a table, throws a UserError that
// says how to convert it.
void refuse_table(std::string_view head, const std::string& name);

}  // namespace shoal
