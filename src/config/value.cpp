// The value of one key: its text, and the check of a raw value against the key's type, range and choices.
#include <algorithm>
#include <cctype>
#include <charconv>
#include <cmath>
#include <limits>
#include <optional>

#include "config/schema.h"
#include "core/error.h"
#include "core/text.h"

namespace shoal {
namespace {

template <typename... Fs>
struct Overloaded : Fs... {
  using Fs::operator()...;
};
template <typename... Fs>
Overloaded(Fs...) -> Overloaded<Fs...>;

// The shortest text that reads back to the same double, as a TOML float: 0.1, 1.0, 6e-4.
std::string toml_number(double value) {
  std::string text = fmt::format("{}", value);
  if (!std::isfinite(value)) return text;
  const auto e = text.find('e');
  if (e == std::string::npos) return text.find('.') == std::string::npos ? text + ".0" : text;
  const bool negative = text[e + 1] == '-';
  const auto digits = text.find_first_not_of("+-0", e + 1);
  return text.substr(0, e + 1) + (negative ? "-" : "") + text.substr(digits);
}

std::string toml_string(std::string_view text) {
  std::string quoted = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      quoted += '\\', quoted += c;
    } else if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) {
      quoted += fmt::format("\\u{:04x}", static_cast<unsigned char>(c));
    } else {
      quoted += c;
    }
  }
  return quoted + "\"";
}

std::string toml_list(std::span<const double> values) {
  std::string text;
  for (const double value : values) text += (text.empty() ? "" : ", ") + toml_number(value);
  return "[" + text + "]";
}

std::string toml_table(const std::map<std::string, double>& values) {
  std::string text;
  for (const auto& [name, value] : values)
    text += fmt::format("{}{} = {}", text.empty() ? "" : ", ", toml_string(name), toml_number(value));
  return "{" + text + "}";
}

std::string bound_text(double bound) {
  if (std::abs(bound) < 1e15 && bound == std::floor(bound)) return fmt::format("{:.0f}", bound);
  return fmt::format("{}", bound);
}

std::string show(const RawValue& value) {
  return std::visit(
      Overloaded{[](bool flag) { return std::string(flag ? "true" : "false"); },
                 [](std::int64_t number) { return std::to_string(number); },
                 [](double number) { return toml_number(number); },
                 [](const std::string& text) { return toml_string(text); },
                 [](const std::vector<double>& list) { return fmt::format("[{}]", fmt::join(list, ", ")); },
                 [](const std::map<std::string, double>& table) { return toml_table(table); },
                 [](const NotAValue& other) { return other.what; }},
      value);
}

[[noreturn]] void refuse(const Field& field, const RawValue& value, std::string_view where,
                         std::string hint = {}) {
  if (const auto* word = std::get_if<std::string>(&value)) {
    const auto meant = spelled_as_toml(*word);
    const bool flag = meant == "true" || meant == "false";
    if (!meant.empty() && field.type() == (flag ? "true or false" : "a number")) hint = "; write " + meant;
  }
  const std::string allowed = field.allowed();
  fail_user("{}: {} = {} is not allowed: it takes {}{}{}{}", where, field.name(), show(value), field.type(),
            allowed.empty() ? "" : ", ", allowed, hint);
}

bool is_open(std::string_view choice) { return choice.find(':') != std::string_view::npos; }

bool matches(std::string_view choice, std::string_view value) {
  if (!is_open(choice)) return choice == value;
  const auto prefix = choice.substr(0, choice.rfind(':') + 1);
  return value.size() > prefix.size() && value.substr(0, prefix.size()) == prefix;
}

// The choice for a name that other programs use, or else the nearest choice; "" when there is none.
std::string suggestion(const Field& field, const std::string& text) {
  static constexpr std::pair<std::string_view, std::string_view> kMeanings[] = {
      {"gpu", "cuda"},      {"nvidia", "cuda"},      {"adam", "adamw"},
      {"bf16", "bfloat16"}, {"fp32", "float32"},     {"fp16", "bfloat16"},
      {"f32", "float32"},   {"float16", "bfloat16"}, {"half", "bfloat16"}};
  for (const auto& [name, choice] : kMeanings) {
    if (name == text && std::ranges::find(field.choices, choice) != field.choices.end())
      return std::string(choice);
  }
  return nearest(text, {field.choices.begin(), field.choices.end()});
}

std::string check_text(const Field& field, const std::string& text, std::string_view where) {
  if (field.choices.empty()) return text;
  for (const auto choice : field.choices) {
    if (matches(choice, text)) return text;
  }
  const std::string near = suggestion(field, text);
  refuse(field, text, where, near.empty() ? "" : fmt::format("; did you mean {}?", toml_string(near)));
}

// An integer, or a float without a fraction (1e6).
std::optional<std::int64_t> as_integer(const RawValue& value) {
  if (const auto* integer = std::get_if<std::int64_t>(&value)) return *integer;
  if (const auto* number = std::get_if<double>(&value)) {
    if (*number == std::floor(*number) && std::abs(*number) <= 0x1p53) return std::llround(*number);
  }
  return std::nullopt;
}

std::optional<double> as_number(const RawValue& value) {
  if (const auto* integer = std::get_if<std::int64_t>(&value)) return static_cast<double>(*integer);
  if (const auto* number = std::get_if<double>(&value)) return *number;
  return std::nullopt;
}

std::int64_t check_integer(const Field& field, const RawValue& value, std::int64_t most,
                           std::string_view where) {
  const auto integer = as_integer(value);
  if (!integer || *integer > most || !field.bounds.contains(static_cast<double>(*integer))) {
    refuse(field, value, where);
  }
  return *integer;
}

}  // namespace

bool Bounds::contains(double value) const {
  return (low_open ? value > low : value >= low) && (high_open ? value < high : value <= high);
}

std::string Bounds::text() const {
  constexpr double kNone = std::numeric_limits<double>::max();
  std::string least, most;
  if (low != -kNone) least = fmt::format("{} {}", low_open ? "above" : "at least", bound_text(low));
  if (high != kNone) most = fmt::format("{} {}", high_open ? "below" : "at most", bound_text(high));
  return least + (least.empty() || most.empty() ? "" : " and ") + most;
}

// A ref takes the address of a member, and leaves the config alone.
FieldRef Field::const_ref(const Config& config) const { return ref(const_cast<Config&>(config)); }

std::string Field::name() const { return fmt::format("{}.{}", section, key); }

std::string_view Field::type() const {
  Config config;
  return std::visit(Overloaded{[](bool*) { return std::string_view("true or false"); },
                               [](int*) { return std::string_view("an integer"); },
                               [](std::int64_t*) { return std::string_view("an integer"); },
                               [](double*) { return std::string_view("a number"); },
                               [](std::string*) { return std::string_view("text"); },
                               [](std::array<double, 2>*) { return std::string_view("a list of 2 numbers"); },
                               [](std::vector<int>*) { return std::string_view("a list of integers"); },
                               [](std::map<std::string, double>*) {
                                 return std::string_view("a table of names and numbers");
                               },
                               [](Choice) { return std::string_view("text"); }},
                    ref(config));
}

std::string Field::allowed() const {
  if (!choices.empty()) {
    std::string text;
    for (const auto choice : choices) text += (text.empty() ? "" : " | ") + toml_string(choice);
    return "one of " + text;
  }
  return bounds.text();
}

std::string Field::value(const Config& config) const {
  return std::visit(
      Overloaded{[](const bool* flag) { return std::string(*flag ? "true" : "false"); },
                 [](const double* number) { return toml_number(*number); },
                 [](const std::string* text) { return toml_string(*text); },
                 [](const std::array<double, 2>* list) { return toml_list(*list); },
                 [](const std::vector<int>* list) { return fmt::format("[{}]", fmt::join(*list, ", ")); },
                 [](const std::map<std::string, double>* table) { return toml_table(*table); },
                 [&](Choice choice) { return toml_string(name_of(choice)); },
                 [](const auto* integer) { return std::to_string(*integer); }},
      const_ref(config));
}

std::string_view Field::name_of(Choice choice) const {
  const auto found = std::ranges::find(numbers, *choice.number);
  return choices[static_cast<std::size_t>(found - numbers.begin())];
}

std::string_view name_of_choice(const Config& config, std::string_view key) {
  const auto* field = find_field(key);
  return field->name_of(std::get<Choice>(field->const_ref(config)));
}

void assign(const Field& field, Config& config, const RawValue& value, std::string_view where) {
  std::visit(Overloaded{
                 [&](bool* member) {
                   const auto* flag = std::get_if<bool>(&value);
                   if (!flag) refuse(field, value, where);
                   *member = *flag;
                 },
                 [&](int* member) {
                   *member =
                       static_cast<int>(check_integer(field, value, std::numeric_limits<int>::max(), where));
                 },
                 [&](std::int64_t* member) {
                   *member = check_integer(field, value, std::numeric_limits<std::int64_t>::max(), where);
                 },
                 [&](double* member) {
                   const auto number = as_number(value);
                   if (!number || !field.bounds.contains(*number)) refuse(field, value, where);
                   *member = *number;
                 },
                 [&](std::string* member) {
                   const auto* text = std::get_if<std::string>(&value);
                   if (!text) refuse(field, value, where);
                   *member = check_text(field, *text, where);
                 },
                 [&](Choice choice) {
                   const auto* text = std::get_if<std::string>(&value);
                   if (!text) refuse(field, value, where);
                   const auto found = std::ranges::find(field.choices, check_text(field, *text, where));
                   *choice.number = field.numbers[static_cast<std::size_t>(found - field.choices.begin())];
                 },
                 [&](std::array<double, 2>* member) {
                   const auto* list = std::get_if<std::vector<double>>(&value);
                   const auto fits = [&](double number) { return field.bounds.contains(number); };
                   if (!list || list->size() != member->size() || !std::ranges::all_of(*list, fits)) {
                     refuse(field, value, where);
                   }
                   std::ranges::copy(*list, member->begin());
                 },
                 [&](std::vector<int>* member) {
                   const auto* list = std::get_if<std::vector<double>>(&value);
                   if (!list) refuse(field, value, where);
                   constexpr auto kMost = std::numeric_limits<int>::max();
                   std::vector<int> integers;
                   for (const double number : *list) {
                     const auto integer = as_integer(number);
                     if (!integer || *integer > kMost || !field.bounds.contains(number)) {
                       refuse(field, value, where);
                     }
                     integers.push_back(static_cast<int>(*integer));
                   }
                   *member = std::move(integers);
                 },
                 [&](std::map<std::string, double>* member) {
                   const auto* table = std::get_if<std::map<std::string, double>>(&value);
                   const auto fits = [&](const auto& entry) { return field.bounds.contains(entry.second); };
                   if (!table || !std::ranges::all_of(*table, fits)) refuse(field, value, where);
                   *member = *table;
                 },
             },
             field.ref(config));
}

std::string spelled_as_toml(std::string_view word) {
  std::string lower(word);
  for (char& c : lower) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  if (lower == "true" || lower == "false") return lower;
  double number = 0;
  const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), number);
  const bool whole = error == std::errc() && end == word.data() + word.size();
  return word.starts_with('.') && whole ? fmt::format("0{}", word) : "";
}

void fail_unknown_key(std::string_view section, std::string_view key, std::string_view where) {
  const auto sections = config_sections();
  const bool known_section = std::ranges::find(sections, section) != sections.end();
  std::vector<std::string> all, here,
      elsewhere;  // all keys, keys of this section, keys of this name elsewhere
  for (const auto& field : config_fields()) {
    all.emplace_back(field.key);
    if (field.section == section) here.emplace_back(field.key);
    if (field.key == key) elsewhere.push_back(field.name());
  }
  if (section.empty() && !elsewhere.empty()) {
    fail_user("{}: {} needs its section: {}", where, key, fmt::join(elsewhere, " or "));
  }
  std::string hint;
  if (section.empty()) {
    hint = nearest(key, all);
    for (const auto& field : config_fields()) {
      if (field.key == hint) hint = field.name();
    }
  } else if (!elsewhere.empty()) {
    hint = nearest(fmt::format("{}.{}", section, key), elsewhere);
    if (hint.empty()) hint = elsewhere.front();
  } else if (known_section) {
    hint = nearest(key, here);
    if (!hint.empty()) hint = fmt::format("{}.{}", section, hint);
  } else {
    hint = nearest(section, sections);
    if (!hint.empty()) hint = "[" + hint + "]";
  }
  const std::string what = section.empty() ? fmt::format("unknown key {}", key)
                           : known_section ? fmt::format("unknown key {}.{}", section, key)
                                           : fmt::format("unknown section [{}]", section);
  fail_user("{}: {}; {}", where, what,
            hint.empty() ? std::string("`shoal config --explain` lists every key")
                         : fmt::format("did you mean {}?", hint));
}

}  // namespace shoal
