// Reads Python's pickles, protocols 0 to 5, without executing any code. Plain values are read. Classes and
// functions are names, and may occur only where the caller lists them; calls are noted, not made.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace shoal {

enum class PickleType : std::uint8_t {
  none,
  boolean,
  integer,
  real,
  string,
  bytes,
  list,
  tuple,
  dictionary,  // also an OrderedDict
  global,      // a class or a function
  call,        // of a global
  persistent   // a reference to something outside the pickle
};

struct PickleValue {
  PickleType type = PickleType::none;
  std::int64_t integer = 0;  // an integer; a boolean, 0 or 1
  double real = 0;
  std::string_view text{};  // a string, UTF-8 as pickled; bytes; a global's name, "module.name"
  // Numbers of values. List and tuple: the elements. Dictionary: keys and values in turn, in order of
  // insertion. Call: the global and the tuple of its arguments. Persistent: the reference.
  std::vector<int> items{};
};

struct PickleRules {
  std::span<const std::string_view> globals{};  // the names that may occur
  std::string_view advice{};                    // the end of the message about another name
};

class Pickle {
 public:
  // `bytes` must outlive the pickle. Throws UserError, starting with `where`, when the pickle has an
  // unsupported opcode or a global that is not listed, is damaged or is cut off. Time and memory are
  // proportional to the size of `bytes`: at most about 100 bytes for each.
  Pickle(std::string_view bytes, const std::string& where, const PickleRules& rules = {});
  Pickle(Pickle&&) = default;
  Pickle(const Pickle&) = delete;

  const PickleValue& root() const { return values_[static_cast<std::size_t>(root_)]; }
  // The value with this number. Values may be shared, and a container may contain itself.
  const PickleValue& operator[](int value) const { return values_[static_cast<std::size_t>(value)]; }
  // The value for a string key; null when there is none, or `dictionary` is none.
  const PickleValue* find(const PickleValue& dictionary, std::string_view key) const;

 private:
  friend class PickleReader;
  std::vector<PickleValue> values_;
  std::deque<std::string> unescaped_;  // strings that are not in the bytes as they are
  int root_ = 0;
};

}  // namespace shoal
