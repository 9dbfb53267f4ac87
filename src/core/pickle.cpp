#include "core/pickle.h"

#include <algorithm>
#include <array>
#include <bit>
#include <charconv>
#include <map>

#include "core/error.h"
#include "core/utf8.h"

namespace shoal {
namespace {

struct Opcode {
  unsigned char code;
  std::string_view name;
};

// The opcodes that are refused, with their names in Python's pickletools for messages.
constexpr std::array kRefused = {Opcode{'T', "BINSTRING"},    Opcode{'U', "SHORT_BINSTRING"},
                                 Opcode{'S', "STRING"},       Opcode{0x96, "BYTEARRAY8"},
                                 Opcode{0x97, "NEXT_BUFFER"}, Opcode{0x98, "READONLY_BUFFER"},
                                 Opcode{0x8F, "EMPTY_SET"},   Opcode{0x90, "ADDITEMS"},
                                 Opcode{0x91, "FROZENSET"},   Opcode{'0', "POP"},
                                 Opcode{'1', "POP_MARK"},     Opcode{'2', "DUP"},
                                 Opcode{0x82, "EXT1"},        Opcode{0x83, "EXT2"},
                                 Opcode{0x84, "EXT4"},        Opcode{'i', "INST"},
                                 Opcode{'o', "OBJ"},          Opcode{0x81, "NEWOBJ"},
                                 Opcode{0x92, "NEWOBJ_EX"},   Opcode{'P', "PERSID"},
                                 Opcode{0x8B, "LONG4"}};

constexpr int kMark = -1;  // on the stack, among the numbers of values
constexpr std::string_view kOrderedDict = "collections.OrderedDict";

}  // namespace

class PickleReader {
 public:
  PickleReader(std::string_view bytes, const std::string& where, const PickleRules& rules, Pickle& out)
      : bytes_(bytes), where_(where), rules_(rules), out_(out), values_(out.values_) {
    // Values that cannot change are shared, so that one-byte opcodes for them take no memory.
    values_.resize(4);
    values_[kFalse] = {.type = PickleType::boolean, .integer = 0};
    values_[kTrue] = {.type = PickleType::boolean, .integer = 1};
    values_[kEmptyTuple].type = PickleType::tuple;
    for (;;) {
      const auto opcode = static_cast<unsigned char>(take(1).front());
      if (opcode == '.') break;
      run(opcode);
    }
    out.root_ = pop();
  }

 private:
  enum Shared : int { kNone, kFalse, kTrue, kEmptyTuple };

  void run(unsigned char opcode) {
    switch (opcode) {
      case 0x80:  // PROTO
        if (const auto protocol = number(1); protocol > 5) fail_here("protocol {} is not known", protocol);
        return;
      case 0x95:
        return frame();
      case '(':
        return stack_.push_back(kMark);
      case 'N':
        return stack_.push_back(kNone);  // NONE
      case 0x88:
        return stack_.push_back(kTrue);  // NEWTRUE
      case 0x89:
        return stack_.push_back(kFalse);  // NEWFALSE
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
      case 'c':
        return global_lines();  // GLOBAL
      case 0x93:
        return global_on_stack();  // STACK_GLOBAL
      case 'R':
        return call();  // REDUCE
      case 'b':
        return build();  // BUILD
      case 'Q':
        return push({.type = PickleType::persistent, .items = {pop()}});  // BINPERSID
      default:
        if (!run_number(opcode) && !run_text(opcode) && !run_container(opcode)) refuse(opcode);
    }
  }

  bool run_number(unsigned char opcode) {
    switch (opcode) {
      case 'J':
        return push_integer(static_cast<std::int32_t>(number(4)));  // BININT
      case 'K':
        return push_integer(static_cast<std::int64_t>(number(1)));  // BININT1
      case 'M':
        return push_integer(static_cast<std::int64_t>(number(2)));  // BININT2
      case 'I':
        return integer_line();  // INT
      case 'L':
        return long_decimal();  // LONG
      case 0x8A:
        return long_bytes();  // LONG1
      case 'F':
        return push_real(real_decimal(line()));  // FLOAT
      case 'G':
        return push_real(std::bit_cast<double>(big_endian(8)));  // BINFLOAT
      default:
        return false;
    }
  }

  bool run_text(unsigned char opcode) {
    switch (opcode) {
      case 'V':
        return push_text(PickleType::string, raw_unicode_escape(line()));  // UNICODE
      case 'X':
        return push_text(PickleType::string, take(number(4)));  // BINUNICODE
      case 0x8C:
        return push_text(PickleType::string, take(number(1)));  // SHORT_BINUNICODE
      case 0x8D:
        return push_text(PickleType::string, take(number(8)));  // BINUNICODE8
      case 'B':
        return push_text(PickleType::bytes, take(number(4)));  // BINBYTES
      case 'C':
        return push_text(PickleType::bytes, take(number(1)));  // SHORT_BINBYTES
      case 0x8E:
        return push_text(PickleType::bytes, take(number(8)));  // BINBYTES8
      default:
        return false;
    }
  }

  bool run_container(unsigned char opcode) {
    switch (opcode) {
      case '}':
        push({.type = PickleType::dictionary});  // EMPTY_DICT
        return true;
      case 'd':
        return collect(PickleType::dictionary);  // DICT
      case 's':
        return set_items(stack_.size() < 2 ? 0 : stack_.size() - 2);  // SETITEM
      case 'u':
        return set_items(take_mark());  // SETITEMS
      case ']':
        push({.type = PickleType::list});  // EMPTY_LIST
        return true;
      case 'l':
        return collect(PickleType::list);  // LIST
      case 'a':
        return append(stack_.empty() ? 0 : stack_.size() - 1);  // APPEND
      case 'e':
        return append(take_mark());  // APPENDS
      case ')':
        stack_.push_back(kEmptyTuple);  // EMPTY_TUPLE
        return true;
      case 't':
        return tuple(take_mark());  // TUPLE
      case 0x85:
      case 0x86:
      case 0x87: {  // TUPLE1, TUPLE2, TUPLE3
        const std::size_t size = opcode - 0x84u;
        if (stack_.size() < size) fail_here("an opcode lacks its operand: the file is damaged");
        return tuple(stack_.size() - size);
      }
      default:
        return false;
    }
  }

  template <typename... Args>
  [[noreturn]] void fail_here(fmt::format_string<Args...> text, Args&&... args) const {
    fail_user("{}: byte {}: {}", where_, at_, fmt::format(text, std::forward<Args>(args)...));
  }

  [[noreturn]] void refuse(unsigned char code) const {
    for (const auto& opcode : kRefused) {
      if (opcode.code != code) continue;
      fail_here("the pickle uses the opcode {}; only plain values are read, and no code is executed",
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
  std::uint64_t big_endian(std::size_t bytes) {
    std::uint64_t result = 0;
    for (const char byte : take(bytes)) result = result << 8 | static_cast<unsigned char>(byte);
    return result;
  }
  std::string_view line() {
    const auto end = bytes_.find('\n', at_);
    if (end == std::string_view::npos) fail_here("the pickle ends too early: the file is cut off or damaged");
    const auto result = take(end - at_);
    ++at_;
    return result;
  }

  template <typename T>
  T parse(std::string_view text, std::string_view fault) const {
    T result = 0;
    const auto* end = text.data() + text.size();
    const auto [stopped, error] = std::from_chars(text.data(), end, result);
    if (error != std::errc() || stopped != end) fail_here("{}", fault);
    return result;
  }
  std::int64_t decimal(std::string_view text) const {
    return parse<std::int64_t>(text, "an integer is expected, of 64 bits at most");
  }
  double real_decimal(std::string_view text) const { return parse<double>(text, "a number is expected"); }
  bool integer_line() {
    const auto text = line();
    if (text != "00" && text != "01") return push_integer(decimal(text));
    stack_.push_back(text == "01" ? kTrue : kFalse);
    return true;
  }
  bool long_decimal() {
    auto text = line();
    if (text.ends_with('L')) text.remove_suffix(1);
    return push_integer(decimal(text));
  }
  bool long_bytes() {
    const auto count = number(1);
    if (count > 8) fail_here("an integer has {} bytes, more than 8", count);
    auto value = number(count);
    const auto bits = 8 * count;
    if (bits > 0 && bits < 64 && (value >> (bits - 1)) != 0) value |= ~std::uint64_t{0} << bits;
    return push_integer(static_cast<std::int64_t>(value));
  }

  // Latin-1 with \uXXXX and \UXXXXXXXX.
  std::string_view raw_unicode_escape(std::string_view text) const {
    auto& result = out_.unescaped_.emplace_back();
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

  PickleValue& value(int number) { return values_[static_cast<std::size_t>(number)]; }
  bool is(int number, PickleType type) { return number != kMark && value(number).type == type; }
  void push(PickleValue made) {
    stack_.push_back(static_cast<int>(values_.size()));
    values_.push_back(std::move(made));
  }
  bool push_integer(std::int64_t integer) {
    push({.type = PickleType::integer, .integer = integer});
    return true;
  }
  bool push_real(double real) {
    push({.type = PickleType::real, .real = real});
    return true;
  }
  bool push_text(PickleType type, std::string_view text) {
    push({.type = type, .text = text});
    return true;
  }
  int top() const {
    if (stack_.empty() || stack_.back() == kMark)
      fail_here("an opcode lacks its operand: the file is damaged");
    return stack_.back();
  }
  int pop() {
    const int number = top();
    stack_.pop_back();
    return number;
  }

  void put(std::uint64_t index) { memo_[index] = top(); }
  void get(std::uint64_t index) {
    const auto found = memo_.find(index);
    if (found == memo_.end()) fail_here("it refers to a value that is not there: the file is damaged");
    stack_.push_back(found->second);
  }

  // Removes the last mark and returns the position of what was above it.
  std::size_t take_mark() {
    for (std::size_t i = stack_.size(); i-- > 0;) {
      if (stack_[i] != kMark) continue;
      stack_.erase(stack_.begin() + static_cast<std::ptrdiff_t>(i));
      return i;
    }
    fail_here("an opcode lacks its mark: the file is damaged");
  }
  // Makes a container of what is above the last mark.
  bool collect(PickleType type) {
    const auto first = take_mark();
    stack_.insert(stack_.begin() + static_cast<std::ptrdiff_t>(first), static_cast<int>(values_.size()));
    values_.push_back({.type = type});
    return type == PickleType::list ? append(first + 1) : set_items(first + 1);
  }
  // Moves the keys and values from stack_[first] on into the dictionary below them.
  bool set_items(std::size_t first) {
    if (first == 0 || (stack_.size() - first) % 2 != 0 || !is(stack_[first - 1], PickleType::dictionary)) {
      fail_here("items without a dictionary: the file is damaged");
    }
    for (auto i = first; i < stack_.size(); i += 2) {
      if (stack_[i] == kMark || stack_[i + 1] == kMark || is(stack_[i], PickleType::dictionary) ||
          is(stack_[i], PickleType::list)) {
        fail_here("a dictionary's key is a container, or an item is missing: the file is damaged");
      }
    }
    return move_items(value(stack_[first - 1]), first);
  }
  bool append(std::size_t first) {
    if (first == 0 || !is(stack_[first - 1], PickleType::list) || holds_mark(first)) {
      fail_here("elements without a list: the file is damaged");
    }
    return move_items(value(stack_[first - 1]), first);
  }
  bool tuple(std::size_t first) {
    if (holds_mark(first)) fail_here("an opcode lacks its operand: the file is damaged");
    PickleValue made{.type = PickleType::tuple};
    move_items(made, first);
    push(std::move(made));
    return true;
  }
  bool holds_mark(std::size_t first) const {
    return std::find(stack_.begin() + static_cast<std::ptrdiff_t>(first), stack_.end(), kMark) !=
           stack_.end();
  }
  bool move_items(PickleValue& container, std::size_t first) {
    container.items.insert(container.items.end(), stack_.begin() + static_cast<std::ptrdiff_t>(first),
                           stack_.end());
    stack_.resize(first);
    return true;
  }

  void global_lines() {
    const auto module = line();
    push_global(module, line());
  }
  void global_on_stack() {
    const int name = pop(), module = pop();
    if (!is(name, PickleType::string) || !is(module, PickleType::string))
      fail_here("the name of a class is no string: the file is damaged");
    push_global(value(module).text, value(name).text);
  }
  void push_global(std::string_view module, std::string_view name) {
    const auto full = fmt::format("{}.{}", module, name);
    const auto known = std::ranges::find(rules_.globals, full);
    if (known == rules_.globals.end()) {
      fail_here("the pickle asks for Python's {}, which is not read, and no code is executed{}{}", full,
                rules_.advice.empty() ? "" : "; ", rules_.advice);
    }
    push({.type = PickleType::global, .text = *known});
  }
  void call() {
    const int arguments = pop(), callee = pop();
    if (!is(arguments, PickleType::tuple) || !is(callee, PickleType::global))
      fail_here("a call without a function or its arguments: the file is damaged");
    if (value(callee).text != kOrderedDict)
      return push({.type = PickleType::call, .items = {callee, arguments}});
    if (!value(arguments).items.empty()) fail_here("an OrderedDict is made of arguments, which is not read");
    push({.type = PickleType::dictionary});
  }
  // The attributes of an OrderedDict, such as a state dict's _metadata, are dropped.
  void build() {
    pop();
    if (!is(top(), PickleType::dictionary))
      fail_here("the pickle sets attributes of an object, which is not read, and no code is executed");
  }

  std::string_view bytes_;
  const std::string& where_;
  const PickleRules& rules_;
  std::size_t at_ = 0;
  Pickle& out_;
  std::vector<PickleValue>& values_;
  std::vector<int> stack_;  // numbers of values, and marks
  std::map<std::uint64_t, int> memo_;
};

Pickle::Pickle(std::string_view bytes, const std::string& where, const PickleRules& rules) {
  PickleReader(bytes, where, rules, *this);
}

const PickleValue* Pickle::find(const PickleValue& dictionary, std::string_view key) const {
  if (dictionary.type != PickleType::dictionary) return nullptr;
  const auto& items = dictionary.items;
  const PickleValue* found = nullptr;  // the last counts
  for (std::size_t i = 0; i + 1 < items.size(); i += 2) {
    const auto& candidate = (*this)[items[i]];
    if (candidate.type == PickleType::string && candidate.text == key) found = &(*this)[items[i + 1]];
  }
  return found;
}

}  // namespace shoal
