#include "data/pickle.h"

#include <array>
#include <charconv>
#include <optional>

#include "core/error.h"
#include "core/utf8.h"

namespace shoal {
namespace {

struct Opcode {
  unsigned char code;
  std::string_view name;
};

// The opcodes that are refused, with their names in Python's pickletools for messages.
constexpr std::array kRefused = {Opcode{'T', "BINSTRING"},
                                 Opcode{'U', "SHORT_BINSTRING"},
                                 Opcode{'S', "STRING"},
                                 Opcode{'B', "BINBYTES"},
                                 Opcode{'C', "SHORT_BINBYTES"},
                                 Opcode{0x8E, "BINBYTES8"},
                                 Opcode{0x96, "BYTEARRAY8"},
                                 Opcode{0x97, "NEXT_BUFFER"},
                                 Opcode{0x98, "READONLY_BUFFER"},
                                 Opcode{'N', "NONE"},
                                 Opcode{0x88, "NEWTRUE"},
                                 Opcode{0x89, "NEWFALSE"},
                                 Opcode{'F', "FLOAT"},
                                 Opcode{'G', "BINFLOAT"},
                                 Opcode{']', "EMPTY_LIST"},
                                 Opcode{'a', "APPEND"},
                                 Opcode{'e', "APPENDS"},
                                 Opcode{'l', "LIST"},
                                 Opcode{')', "EMPTY_TUPLE"},
                                 Opcode{'t', "TUPLE"},
                                 Opcode{0x85, "TUPLE1"},
                                 Opcode{0x86, "TUPLE2"},
                                 Opcode{0x87, "TUPLE3"},
                                 Opcode{0x8F, "EMPTY_SET"},
                                 Opcode{0x90, "ADDITEMS"},
                                 Opcode{0x91, "FROZENSET"},
                                 Opcode{'0', "POP"},
                                 Opcode{'1', "POP_MARK"},
                                 Opcode{'2', "DUP"},
                                 Opcode{0x82, "EXT1"},
                                 Opcode{0x83, "EXT2"},
                                 Opcode{0x84, "EXT4"},
                                 Opcode{'c', "GLOBAL"},
                                 Opcode{0x93, "STACK_GLOBAL"},
                                 Opcode{'R', "REDUCE"},
                                 Opcode{'b', "BUILD"},
                                 Opcode{'i', "INST"},
                                 Opcode{'o', "OBJ"},
                                 Opcode{0x81, "NEWOBJ"},
                                 Opcode{0x92, "NEWOBJ_EX"},
                                 Opcode{'P', "PERSID"},
                                 Opcode{'Q', "BINPERSID"},
                                 Opcode{0x8B, "LONG4"}};

constexpr int kMark = -1;  // on the stack, among the numbers of values

}  // namespace

class PickleReader {
 public:
  PickleReader(std::string_view bytes, const std::string& where, Pickle& out)
      : bytes_(bytes), where_(where), values_(out.values_) {
    for (;;) {
      const auto opcode = static_cast<unsigned char>(take(1).front());
      if (opcode == '.') break;
      run(opcode);
    }
    out.root_ = pop();
  }

 private:
  void run(unsigned char opcode) {
    switch (opcode) {
      case 0x80:  // PROTO
        if (const auto protocol = number(1); protocol > 5) fail_here("protocol {} is not known", protocol);
        return;
      case 0x95:
        return frame();
      case '(':
        return stack_.push_back(kMark);
      case '}':
        return push({.type = PickleType::dictionary});  // EMPTY_DICT
      case 'd':
        return dictionary();  // DICT
      case 's':
        return set_items(stack_.size() < 2 ? 0 : stack_.size() - 2);  // SETITEM
      case 'u':
        return set_items_above_mark();  // SETITEMS
      case 'J':
        return push_integer(static_cast<std::int32_t>(number(4)));  // BININT
      case 'K':
        return push_integer(static_cast<std::int64_t>(number(1)));  // BININT1
      case 'M':
        return push_integer(static_cast<std::int64_t>(number(2)));  // BININT2
      case 'I':
        return push_integer(decimal(line()));  // INT
      case 'L':
        return long_decimal();  // LONG
      case 0x8A:
        return long_bytes();  // LONG1
      case 'V':
        return push_string(raw_unicode_escape(line()));  // UNICODE
      case 'X':
        return push_string(std::string(take(number(4))));  // BINUNICODE
      case 0x8C:
        return push_string(std::string(take(number(1))));  // SHORT_BINUNICODE
      case 0x8D:
        return push_string(std::string(take(number(8))));  // BINUNICODE8
      case 'p':
        return put(static_cast<std::uint64_t>(decimal(line())));  // PUT
      case 'q':
        return put(number(1));  // BINPUT
      case 'r':
        return put(number(4));  // LONG_BINPUT
      case 0x94:
        return put(memo_.size());  // MEMOIZE
      case 'g':
        return get(static_cast<std::uint64_t>(decimal(line())));  // GET
      case 'h':
        return get(number(1));  // BINGET
      case 'j':
        return get(number(4));  // LONG_BINGET
      default:
        refuse(opcode);
    }
  }

  template <typename... Args>
  [[noreturn]] void fail_here(fmt::format_string<Args...> text, Args&&... args) const {
    fail_user("{}: byte {}: {}", where_, at_, fmt::format(text, std::forward<Args>(args)...));
  }

  [[noreturn]] void refuse(unsigned char code) const {
    for (const auto& opcode : kRefused) {
      if (opcode.code != code) continue;
      fail_here(
          "the pickle uses the opcode {}; only dictionaries of strings and integers are read, and no code is "
          "executed",
          opcode.name);
    }
    fail_here("0x{:02X} is not an opcode of a pickle: the file is damaged, or not a pickle", code);
  }

  std::string_view take(std::uint64_t count) {
    if (count > bytes_.size() - at_) fail_here("the pickle ends too early: the file is cut off or damaged");
    const auto result = bytes_.substr(at_, count);
    at_ += count;
    return result;
  }
  // Little-endian.
  std::uint64_t number(std::size_t bytes) {
    std::uint64_t result = 0;
    int shift = 0;
    for (const char byte : take(bytes)) {
      result |= std::uint64_t{static_cast<unsigned char>(byte)} << shift;
      shift += 8;
    }
    return result;
  }
  std::string_view line() {
    const auto end = bytes_.find('\n', at_);
    if (end == std::string_view::npos) fail_here("the pickle ends too early: the file is cut off or damaged");
    const auto result = take(end - at_);
    ++at_;
    return result;
  }
  std::int64_t decimal(std::string_view text) const {
    std::int64_t result = 0;
    const auto* end = text.data() + text.size();
    const auto [stopped, error] = std::from_chars(text.data(), end, result);
    if (error != std::errc() || stopped != end) fail_here("an integer is expected, of 64 bits at most");
    return result;
  }
  void long_decimal() {
    auto text = line();
    if (text.ends_with('L')) text.remove_suffix(1);
    push_integer(decimal(text));
  }
  void long_bytes() {
    const auto count = number(1);
    if (count > 8) fail_here("an integer has {} bytes, more than 8", count);
    auto value = number(count);
    const auto bits = 8 * count;
    if (bits > 0 && bits < 64 && (value >> (bits - 1)) != 0) value |= ~std::uint64_t{0} << bits;
    push_integer(static_cast<std::int64_t>(value));
  }

  // Latin-1 with \uXXXX and \UXXXXXXXX.
  std::string raw_unicode_escape(std::string_view text) const {
    std::string result;
    for (std::size_t i = 0; i < text.size(); ++i) {
      const auto digits = text[i] != '\\' || i + 1 == text.size() ? 0
                          : text[i + 1] == 'u'                    ? 4
                          : text[i + 1] == 'U'                    ? 8
                                                                  : 0;
      std::uint32_t code_point = static_cast<unsigned char>(text[i]);
      if (digits > 0) {
        const auto hex = text.substr(i + 2, static_cast<std::size_t>(digits));
        const auto [end, error] = std::from_chars(hex.data(), hex.data() + hex.size(), code_point, 16);
        if (error != std::errc() || end != hex.data() + digits || code_point > 0x10FFFF) {
          fail_here("a \\{} escape of a string is damaged", text[i + 1]);
        }
        i += 1 + static_cast<std::size_t>(digits);
      }
      append_utf8(result, code_point);
    }
    return result;
  }

  void frame() {  // a hint for readers that buffer
    if (number(8) > bytes_.size() - at_)
      fail_here("the pickle ends too early: the file is cut off or damaged");
  }

  void push(PickleValue value) {
    stack_.push_back(static_cast<int>(values_.size()));
    values_.push_back(std::move(value));
  }
  void push_integer(std::int64_t value) { push({.type = PickleType::integer, .integer = value}); }
  void push_string(std::string text) { push({.type = PickleType::string, .string = std::move(text)}); }
  int top() const {
    if (stack_.empty() || stack_.back() == kMark)
      fail_here("an opcode lacks its operand: the file is damaged");
    return stack_.back();
  }
  int pop() {
    const int value = top();
    stack_.pop_back();
    return value;
  }

  void put(std::uint64_t index) { memo_[index] = top(); }
  void get(std::uint64_t index) {
    const auto found = memo_.find(index);
    if (found == memo_.end()) fail_here("it refers to a value that is not there: the file is damaged");
    stack_.push_back(found->second);
  }

  std::size_t last_mark() const {
    for (std::size_t i = stack_.size(); i-- > 0;) {
      if (stack_[i] == kMark) return i;
    }
    fail_here("an opcode lacks its mark: the file is damaged");
  }
  void dictionary() {
    const auto mark = last_mark();
    push({.type = PickleType::dictionary});
    stack_[mark] = stack_.back();  // below its items
    stack_.pop_back();
    set_items(mark + 1);
  }
  void set_items_above_mark() {
    const auto mark = last_mark();
    stack_.erase(stack_.begin() + static_cast<std::ptrdiff_t>(mark));
    set_items(mark);
  }
  // Moves the keys and values from stack_[first] on into the dictionary below them.
  void set_items(std::size_t first) {
    const auto is_dictionary = [&](int value) {
      return value != kMark && values_[static_cast<std::size_t>(value)].type == PickleType::dictionary;
    };
    if (first == 0 || (stack_.size() - first) % 2 != 0 || !is_dictionary(stack_[first - 1])) {
      fail_here("items without a dictionary: the file is damaged");
    }
    auto& items = values_[static_cast<std::size_t>(stack_[first - 1])].dictionary;
    for (auto i = first; i < stack_.size(); i += 2) {
      if (stack_[i] == kMark || stack_[i + 1] == kMark || is_dictionary(stack_[i])) {
        fail_here("a dictionary's key is neither a string nor an integer: the file is damaged");
      }
      items.emplace_back(stack_[i], stack_[i + 1]);
    }
    stack_.resize(first);
  }

  std::string_view bytes_;
  const std::string& where_;
  std::size_t at_ = 0;
  std::vector<PickleValue>& values_;
  std::vector<int> stack_;  // numbers of values, and marks
  std::map<std::uint64_t, int> memo_;
};

Pickle::Pickle(std::string_view bytes, const std::string& where) { PickleReader(bytes, where, *this); }

const PickleValue* Pickle::find(const PickleValue& dictionary, std::string_view key) const {
  const PickleValue* found = nullptr;  // the last counts
  for (const auto& [name, value] : dictionary.dictionary) {
    const auto& candidate = (*this)[name];
    if (candidate.type == PickleType::string && candidate.string == key) found = &(*this)[value];
  }
  return found;
}

}  // namespace shoal
