// Writes a config as TOML and JSON, compares two configs, and explains keys.
#include <unistd.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <type_traits>

#include "config/schema.h"
#include "core/error.h"
#include "core/terminal.h"
#include "core/text.h"
#include "core/wrap.h"

namespace shoal {
namespace {

// The width of the terminal, or of a page where there is none.
std::size_t width_to_explain() {
  const int columns = terminal_columns(STDOUT_FILENO);
  return columns > 0 ? static_cast<std::size_t>(std::clamp(columns, 40, 100)) : 100;
}

std::string explain(const Field& field) {
  const auto width = width_to_explain();
  const std::string allowed = field.allowed();
  std::string facts{field.type()};
  if (!allowed.empty()) facts += ", " + allowed;
  if (!field.unit.empty()) facts += fmt::format(" ({})", field.unit);
  return fmt::format("  {} = {}\n", field.key, field.value(Config{})) + wrap(facts + ".", "      ", width) +
         wrap(field.doc, "      ", width);
}

nlohmann::ordered_json json_value(const Field& field, const Config& config) {
  const auto member = field.const_ref(config);
  if (const auto* choice = std::get_if<Choice>(&member)) return field.name_of(*choice);
  return std::visit(
      [](const auto& value) -> nlohmann::ordered_json {
        if constexpr (std::is_pointer_v<std::remove_cvref_t<decltype(value)>>) return *value;
        return {};
      },
      member);
}

}  // namespace

std::string to_toml(const Config& config, bool comments) {
  std::string text;
  std::string_view section;
  for (const auto& field : config_fields()) {
    if (field.section != section) text += fmt::format("{}[{}]\n", text.empty() ? "" : "\n", field.section);
    section = field.section;
    if (comments) text += wrap(field.doc, "# ", 100);
    text += fmt::format("{} = {}\n", field.key, field.value(config));
  }
  return text;
}

nlohmann::ordered_json to_json(const Config& config) {
  nlohmann::ordered_json json;
  for (const auto& field : config_fields()) {
    json[std::string(field.section)][std::string(field.key)] = json_value(field, config);
  }
  return json;
}

std::vector<ConfigDifference> diff(const Config& a, const Config& b) {
  std::vector<ConfigDifference> differences;
  for (const auto& field : config_fields()) {
    auto left = field.value(a), right = field.value(b);
    if (left != right) differences.push_back({field.name(), std::move(left), std::move(right)});
  }
  return differences;
}

std::string explain_config(std::string_view filter) {
  std::string text;
  std::string_view section;
  std::vector<std::string> names = config_sections();
  for (const auto& field : config_fields()) {
    names.push_back(field.name());
    if (!filter.empty() && filter != field.section && filter != field.name()) continue;
    if (field.section != section) text += fmt::format("{}[{}]\n", text.empty() ? "" : "\n", field.section);
    section = field.section;
    text += explain(field);
  }
  if (!text.empty()) return text;
  for (const auto& field : config_fields()) {
    if (field.key == filter) fail_user("unknown key {}; did you mean {}?", filter, field.name());
  }
  const auto near = nearest(filter, names);
  fail_user("unknown section or key {}; {}", filter,
            near.empty() ? "`shoal config --explain` lists them all" : fmt::format("did you mean {}?", near));
}

}  // namespace shoal
