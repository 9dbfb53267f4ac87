// Reads dictionaries that Python has pickled, without executing any code. Supports only the opcodes for
// dictionaries of strings and integers, in protocols 0 to 5.
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
  // Throws UserError, starting with `where`, when the pickle has an unsupported opcode, is damaged or is cut
  // off. Time and memory are proportional to the size of `bytes`.
  Pickle(std::string_view bytes, const std::string& where);

  const PickleValue& root() const { return values_[static_cast<std::size_t>(root_)]; }
  // The value with this number; dictionaries hold such numbers. Values may be shared, and a dictionary may
  // contain itself.
  const PickleValue& operator[](int value) const { return values_[static_cast<std::size_t>(value)]; }
  // The value for a string key; null when there is none.
  const PickleValue* find(const PickleValue& dictionary, std::string_view key) const;

 private:
  friend class PickleReader;
  std::vector<PickleValue> values_;
  int root_ = 0;
};

}  // namespace shoal
