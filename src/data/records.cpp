#include "data/records.h"

#include <nlohmann/json.hpp>
#include <set>

#include "core/error.h"
#include "data/json_problem.h"

namespace shoal {
namespace {

using nlohmann::json;

// Keeps one field of the outermost object, and skips everything else.
class FieldTaker : public nlohmann::json_sax<json> {
 public:
  explicit FieldTaker(const std::string& field) : field_(field) {}

  std::string outermost;        // the type of the outermost value
  std::set<std::string> names;  // of its fields
  std::string type;             // of the wanted field's value; "" if the field is missing
  std::string value;            // of the wanted field, if it is a string
  std::size_t stopped_at = 0;   // bytes read before a syntax error
  bool out_of_range = false;    // whether it is no syntax error but a number beyond a double

  bool null() override { return see("null"); }
  bool boolean(bool) override { return see("boolean"); }
  bool number_integer(number_integer_t) override { return see("number"); }
  bool number_unsigned(number_unsigned_t) override { return see("number"); }
  bool number_float(number_float_t, const string_t&) override { return see("number"); }
  bool string(string_t& text) override {
    if (depth_ == 1 && wanted_) value.swap(text);
    return see("string");
  }
  bool binary(binary_t&) override { return see("binary"); }
  bool start_object(std::size_t) override { return see("object"), ++depth_, true; }
  bool start_array(std::size_t) override { return see("array"), ++depth_, true; }
  bool end_object() override { return --depth_, true; }
  bool end_array() override { return --depth_, true; }
  bool key(string_t& name) override {
    if (depth_ != 1) return true;
    wanted_ = name == field_;
    names.insert(name);
    return true;
  }
  bool parse_error(std::size_t position, const std::string&, const json::exception& error) override {
    stopped_at = position;
    out_of_range = dynamic_cast<const json::out_of_range*>(&error) != nullptr;
    return false;
  }

 private:
  bool see(const char* what) {
    if (depth_ == 0) outermost = what;
    if (depth_ == 1 && wanted_ && outermost == "object") type = what;
    return true;
  }

  const std::string& field_;
  int depth_ = 0;
  bool wanted_ = false;
};

}  // namespace

std::string text_of_record(std::string_view record, const std::string& field, const std::string& where) {
  FieldTaker taker(field);
  if (!json::sax_parse(record.begin(), record.end(), &taker)) {
    if (taker.out_of_range) fail_user("{}: a number is out of range", where);
    fail_user("{}: not valid JSON: {}", where, json_problem(record, taker.stopped_at, false));
  }
  if (taker.outermost != "object")
    fail_user("{}: the line is not a JSON object but {}", where, taker.outermost);
  if (taker.type.empty()) {
    std::string names;
    for (const auto& name : taker.names) names += (names.empty() ? "\"" : ", \"") + name + "\"";
    fail_user("{}: the record has no field \"{}\"; it has {}", where, field, names.empty() ? "none" : names);
  }
  if (taker.type != "string") {
    fail_user("{}: the field \"{}\" is not a string but {}", where, field, taker.type);
  }
  return std::move(taker.value);
}

}  // namespace shoal
