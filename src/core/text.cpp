#include "core/text.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>

namespace shoal {

std::string format_bytes(double bytes) {
  static constexpr const char* kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
  int unit = 0;
  while (std::abs(bytes) >= 1024 && unit < 5) bytes /= 1024, ++unit;
  return unit == 0 ? fmt::format("{:.0f} B", bytes) : fmt::format("{:.1f} {}", bytes, kUnits[unit]);
}

std::string format_count(double count) {
  static constexpr const char* kUnits[] = {"", "k", "M", "G", "T", "P", "E"};
  int unit = 0;
  while (std::abs(count) >= 1000 && unit < 6) count /= 1000, ++unit;
  return unit == 0 ? fmt::format("{:.0f}", count) : fmt::format("{:.1f}{}", count, kUnits[unit]);
}

std::string format_duration(double seconds) {
  if (seconds < 1) return fmt::format("{:.0f} ms", seconds * 1e3);
  if (seconds < 60) return fmt::format("{:.1f} s", seconds);
  constexpr double kMost = 1e18;  // which an integer holds
  const auto total = static_cast<std::int64_t>(std::llround(seconds < kMost ? seconds : kMost));
  if (total < 3600) return fmt::format("{}m {:02}s", total / 60, total % 60);
  if (total < 86400) return fmt::format("{}h {:02}m", total / 3600, total % 3600 / 60);
  return fmt::format("{}d {:02}h", total / 86400, total % 86400 / 3600);
}

std::string with_commas(std::int64_t value) {
  std::string digits = std::to_string(value);
  for (auto i = static_cast<std::int64_t>(digits.size()) - 3; i > (value < 0 ? 1 : 0); i -= 3) {
    digits.insert(static_cast<std::size_t>(i), ",");
  }
  return digits;
}

std::vector<std::string> split_list(std::string_view text) {
  constexpr std::string_view kBlanks = " \t\n";
  std::vector<std::string> parts;
  while (!text.empty()) {
    const auto comma = text.find(',');
    auto part = text.substr(0, comma);
    part.remove_prefix(std::min(part.find_first_not_of(kBlanks), part.size()));
    part.remove_suffix(part.size() - std::min(part.find_last_not_of(kBlanks) + 1, part.size()));
    if (!part.empty()) parts.emplace_back(part);
    text.remove_prefix(comma == std::string_view::npos ? text.size() : comma + 1);
  }
  return parts;
}

bool ends_in_any_case(std::string_view text, std::string_view ending) {
  const auto lower = [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; };
  return text.size() >= ending.size() &&
         std::ranges::equal(text.substr(text.size() - ending.size()), ending, {}, lower);
}

std::string shell_word(const std::string& text) {
  constexpr std::string_view kPlain =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_./:=,+-@%";
  if (!text.empty() && text.find_first_not_of(kPlain) == std::string::npos) return text;
  std::string word = "'";
  for (const char c : text) word += c == '\'' ? "'\\''" : std::string(1, c);
  return word + "'";
}

int edit_distance(std::string_view a, std::string_view b) {
  std::vector<int> row(b.size() + 1);
  std::iota(row.begin(), row.end(), 0);
  for (std::size_t i = 0; i < a.size(); ++i) {
    int diagonal = row[0]++;
    for (std::size_t j = 0; j < b.size(); ++j) {
      const int substitute = diagonal + (a[i] != b[j]);
      diagonal = row[j + 1];
      row[j + 1] = std::min({substitute, row[j + 1] + 1, row[j] + 1});
    }
  }
  return row.back();
}

std::string nearest(std::string_view name, const std::vector<std::string>& candidates) {
  std::string best;
  constexpr std::size_t kBeginning = 3;  // characters at least, for a beginning to say something
  if (name.size() >= kBeginning) {
    for (const auto& candidate : candidates) {
      if (candidate.starts_with(name) && (best.empty() || candidate.size() < best.size())) best = candidate;
    }
    if (!best.empty()) return best;
  }
  int best_distance = static_cast<int>(std::max<std::size_t>(name.size() / 2, 2)) + 1;
  for (const auto& candidate : candidates) {
    const int distance = edit_distance(name, candidate);
    if (distance < best_distance) best_distance = distance, best = candidate;
  }
  return best;
}

}  // namespace shoal
