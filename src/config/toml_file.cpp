#include "config/toml_file.h"

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <system_error>

#include "core/error.h"
#include "core/file.h"

namespace shoal {

toml::table parse_toml_file(const std::string& file, std::string_view kind, std::string_view hint) {
  std::ifstream stream(file, std::ios::binary);
  std::error_code ignored;
  if (!stream || std::filesystem::is_directory(file, ignored)) {
    fail_user("cannot read the {} {}: {}{}", kind, file, stream ? "it is a folder" : std::strerror(errno),
              hint);
  }
  const auto text = read_rest(stream, file);
  try {
    return toml::parse(text, file);
  } catch (const toml::parse_error& error) {
    const auto at = error.source().begin;
    fail_user("{}:{}:{}: this is not TOML: {}", file, at.line, at.column, error.description());
  }
}

void fail_at(const std::string& file, const toml::node& node, std::string_view problem) {
  const auto at = node.source().begin;
  fail_user("{}:{}:{}: {}", file, at.line, at.column, problem);
}

}  // namespace shoal
