// TOML files other than configs: read whole, with the places of mistakes in them.
#pragma once

#include <toml++/toml.h>

#include <string>
#include <string_view>

namespace shoal {

// Throws UserError when the file cannot be read ("cannot read the topology FILE: REASON", and `hint`), or is
// not TOML, with line and column.
toml::table parse_toml_file(const std::string& file, std::string_view kind, std::string_view hint = {});

// Throws UserError with the file, line and column of the node.
[[noreturn]] void fail_at(const std::string& file, const toml::node& node, std::string_view problem);

}  // namespace shoal
