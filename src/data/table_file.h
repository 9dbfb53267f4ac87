// Tables that are not read but recognized: Parquet and Arrow (Feather) files.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace shoal {

inline constexpr std::size_t kTableSignature = 8;  // bytes of a file that tell what it is

// Throws a UserError that says how to convert it when `head`, the first bytes of the file or archive member
// `name`, is the beginning of a table.
void refuse_table(std::string_view head, const std::string& name);

}  // namespace shoal
