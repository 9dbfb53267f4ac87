// Checks of the values of options.
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <optional>

#include "cli/command.h"
#include "cli/command_table.h"
#include "core/text.h"

namespace shoal::cli {
namespace {

// The number in `text`, if all of `text` is a number.
template <typename T>
std::optional<T> number_in(const std::string& text) {
  T value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

std::string refused(const std::string& text, const std::string& takes) {
  return fmt::format("'{}' is not allowed; it takes {}", text, takes);
}

}  // namespace

CLI::Validator takes_integer(std::int64_t least, std::int64_t most) {
  const auto check = [=](const std::string& text) -> std::string {
    const auto value = number_in<std::int64_t>(text);
    if (value && *value >= least && *value <= most) return "";
    // The limit of the integer type is mentioned only where the value exceeds it.
    const bool limit = (most != kMostInt && most != kMostInt64) || (value && *value > most);
    return refused(text, fmt::format("an integer, at least {}{}", least,
                                     limit ? fmt::format(" and at most {}", most) : ""));
  };
  return {check, "INT"};
}

CLI::Validator takes_number(const Bounds& bounds) {
  const auto check = [=](const std::string& text) -> std::string {
    const auto value = number_in<double>(text);
    if (value && std::isfinite(*value) && bounds.contains(*value)) return "";
    return refused(text, fmt::format("a number, {}", bounds.text()));
  };
  return {check, "FLOAT"};
}

CLI::Validator takes_one_of(std::vector<std::string> words) {
  const auto check = [words](const std::string& text) -> std::string {
    if (std::ranges::find(words, text) != words.end()) return "";
    const auto near = nearest(text, words);
    return refused(text, fmt::format("{}{}", fmt::join(words, ", "),
                                     near.empty() ? "" : fmt::format("; did you mean {}?", near)));
  };
  return {check, choices_text(words)};
}

}  // namespace shoal::cli
