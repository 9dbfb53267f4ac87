// Checks of the values that options take.
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <optional>

#include "cli/command.h"
#include "core/text.h"

namespace shoal::cli {
namespace {

// The number that all of `text` is.
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
    // The limits of the integer types are said only to those who pass them.
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
  return {check, ""};
}

}  // namespace shoal::cli
