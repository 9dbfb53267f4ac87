// Reads dictionaries that Python pickled, without running anything: the opcodes that dictionaries of strings
// and integers need, in protocols 0 to 5, and no other.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace shoal {

enum class PickleType : std::uint8_t { integer, string, dictionary };

struct PickleValue {
  PickleType type = PickleType::integer;
  std::int64_t integer = 0;
  std::string string{};                           // UTF-8, as pickled
  std::vector<std::pair<int, int>> dictionary{};  // keys and values, in order of insertion
};

class Pickle {
 public:
  // Throws UserError that starts with `where`: an opcode that is not read, by its name; damaged or cut off.
  // Time and memory are proportional to the size of `bytes`.
  Pickle(std::string_view bytes, const std::string& where);

  const PickleValue& root() const { return values_[static_cast<std::size_t>(root_)]; }
  // The value of an entry of a dictionary. Values may be shared, and a dictionary may hold itself.
  const PickleValue& operator[](int value) const { return values_[static_cast<std::size_t>(value)]; }
  // The value of a dictionary under a string; null when there is none.
  const PickleValue* find(const PickleValue& dictionary, std::string_view key) const;

 private:
  friend class PickleReader;
  std::vector<PickleValue> values_;
  int root_ = 0;
};

}  // namespace shoal
