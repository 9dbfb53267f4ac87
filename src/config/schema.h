// The table of all config keys. All code that reads, writes or explains a config iterates over it.
#pragma once

#include <limits>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "config/config.h"

namespace shoal {

// A reference to an enum member of a config, as its underlying byte.
struct Choice {
  unsigned char* number;
};

// A reference to the member of a config that holds a key's value.
using FieldRef = std::variant<bool*, int*, std::int64_t*, double*, std::string*, std::array<double, 2>*,
                              std::vector<int>*, std::map<std::string, double>*, Choice>;

// A value read from a file or an argument, not yet checked against its key.
struct NotAValue {
  std::string what;  // for the error: "a table", ...
};
using RawValue = std::variant<bool, std::int64_t, double, std::string, std::vector<double>,
                              std::map<std::string, double>, NotAValue>;

struct Bounds {
  double low = -std::numeric_limits<double>::max();
  double high = std::numeric_limits<double>::max();
  bool low_open = false;  // the bound itself is not allowed
  bool high_open = false;
  bool contains(double value) const;
  std::string text() const;  // "at least 0 and below 1", or "" without bounds
};

struct Field {
  std::string_view section;
  std::string_view key;
  FieldRef (*ref)(Config&);
  Bounds bounds;  // of a number, or of each number in a list
  // Allowed names. For text, "name:X" allows any text that begins with "name:". For an enum, name i means the
  // enumerator numbers[i].
  std::vector<std::string_view> choices;
  std::vector<unsigned char> numbers;
  std::string_view unit;
  std::string_view doc;

  FieldRef const_ref(const Config& config) const;  // to read through, not to write
  std::string name() const;                        // "optim.lr"
  std::string_view type() const;                   // "integer", "number", ...
  std::string allowed() const;                     // "at least 0", "one of ...", or "" without limits
  std::string value(const Config& config) const;   // as TOML
  std::string_view name_of(Choice choice) const;
};

std::span<const Field> config_fields();
const Field* find_field(std::string_view section, std::string_view key);
const Field* find_field(std::string_view name);  // "optim.lr"
std::vector<std::string> config_sections();

// Sets one key. `where` is the prefix of every error: "file:line" or "argument ...". Throws UserError.
void assign(const Field& field, Config& config, const RawValue& value, std::string_view where);

// The value that a word means in other languages: "0.001" for ".001", "true" for "True". "" for other words.
std::string spelled_as_toml(std::string_view word);

// Throws UserError for an unknown key, with the nearest known one.
[[noreturn]] void fail_unknown_key(std::string_view section, std::string_view key, std::string_view where);

struct Preset {
  std::string_view name;
  int n_layer, n_head, n_embd;
};
std::span<const Preset> model_presets();

}  // namespace shoal
