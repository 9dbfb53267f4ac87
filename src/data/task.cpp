#include "data/task.h"

#include <fmt/format.h>
#include <utf8proc.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "core/json_integer.h"
#include "core/utf8.h"

namespace shoal {

namespace fs = std::filesystem;

namespace {

using nlohmann::json;

void replace_all(std::string& text, std::string_view from, std::string_view to) {
  for (auto at = text.find(from); at != std::string::npos; at = text.find(from, at + to.size()))
    text.replace(at, from.size(), to);
}

std::string stripped(const std::string& text) {
  constexpr std::string_view kBlanks = " \t\n\v\f\r";
  const auto first = text.find_first_not_of(kBlanks);
  if (first == std::string::npos) return "";
  return text.substr(first, text.find_last_not_of(kBlanks) + 1 - first);
}

// HellaSwag's texts have marks of WikiHow in brackets.
std::string without_brackets(const std::string& raw) {
  std::string text = stripped(raw);
  replace_all(text, " [title]", ". ");
  for (auto open = text.find('['); open != std::string::npos; open = text.find('[', open)) {
    const auto close = text.find_first_of("]\n", open);
    if (close == std::string::npos) break;
    if (text[close] == '\n') {
      ++open;  // brackets do not span lines
    } else {
      text.erase(open, close + 1 - open);
    }
  }
  // One pass over pairs of blanks, as Python's replace makes it.
  std::string once;
  for (std::size_t i = 0; i < text.size(); ++i) {
    once += text[i];
    if (text[i] == ' ' && i + 1 < text.size() && text[i + 1] == ' ') ++i;
  }
  return once;
}

// The first letter large, the others small, as Python's capitalize(); the text is UTF-8.
std::string capitalized(const std::string& text) {
  std::string result;
  for (std::size_t at = 0; at < text.size();) {
    const auto [value, length] = decode_utf8(text, at);
    if (length == 0) return text;
    const auto letter = static_cast<utf8proc_int32_t>(value);
    append_utf8(result, static_cast<char32_t>(at == 0 ? utf8proc_totitle(letter) : utf8proc_tolower(letter)));
    at += static_cast<std::size_t>(length);
  }
  return result;
}

int index_of(const json& value) {
  // An answer that is not among the choices is refused later, with the line's number.
  return value.is_string() ? std::stoi(value.get<std::string>()) : integer_of<int>(value).value_or(-1);
}

struct Line {
  Task::Kind kind;
  TaskItem item;
};

Line read_line(const json& line) {
  if (line.contains("endings")) {
    TaskItem item{.context = without_brackets(line.at("activity_label").get<std::string>() + ": " +
                                              line.at("ctx_a").get<std::string>() + " " +
                                              capitalized(line.at("ctx_b").get<std::string>())),
                  .choices = {},
                  .answer = index_of(line.at("label"))};
    for (const auto& ending : line.at("endings"))
      item.choices.push_back(without_brackets(ending.get<std::string>()));
    return {Task::Kind::choice, item};
  }
  if (line.contains("choices")) {
    return {Task::Kind::choice,
            {.context = line.at("context").get<std::string>(),
             .choices = line.at("choices").get<std::vector<std::string>>(),
             .answer = index_of(line.at("answer"))}};
  }
  const auto text = line.at("text").get<std::string>();
  const auto blank = text.rfind(' ');
  const bool one_word = blank == std::string::npos;
  return {Task::Kind::last_word,
          {.context = one_word ? "" : text.substr(0, blank),
           .choices = {one_word ? text : text.substr(blank + 1)}}};
}

}  // namespace

Task read_task(const fs::path& file) {
  std::ifstream in(file);
  if (!in) fail_user("{} cannot be read; --task takes a file of JSON lines", file.string());
  Task task{.name = file.stem().string(), .kind = {}, .items = {}};
  std::int64_t number = 0;
  for (std::string text; std::getline(in, text);) {
    ++number;
    if (stripped(text).empty()) continue;
    const auto where = [&] { return fmt::format("{}:{}", file.string(), number); };
    Line line;
    try {
      line = read_line(json::parse(text));
    } catch (const std::exception& error) {
      fail_user(
          "{}: no item of a task ({}); it takes HellaSwag's lines (activity_label, ctx_a, ctx_b, endings, "
          "label), "
          "LAMBADA's (text), or context, choices and answer",
          where(), error.what());
    }
    if (task.items.empty()) task.kind = line.kind;
    if (line.kind != task.kind) fail_user("{}: an item of another kind than those before", where());
    const auto& [context, choices, answer] = line.item;
    if (choices.empty() || answer < 0 || answer >= std::ssize(choices))
      fail_user("{}: the answer is number {} of {} choices", where(), answer, choices.size());
    task.items.push_back(std::move(line.item));
  }
  if (in.bad()) fail_user("cannot read {}: {}", file.string(), std::strerror(errno));
  if (task.items.empty()) fail_user("{} has no items", file.string());
  return task;
}

TaskSequence make_sequence(const TaskItem& item, int choice, const Tokenizer& tokenizer,
                           std::int64_t positions) {
  auto context = item.context;
  auto continuation = " " + item.choices[static_cast<std::size_t>(choice)];
  const auto end = context.find_last_not_of(" \t\n\v\f\r") + 1;
  continuation = context.substr(end) + continuation;
  context.resize(end);
  std::vector<std::int32_t> all, before;
  if (context.empty()) {
    const auto start = tokenizer.end_of_text();
    if (!start) fail_user("an item has no context, and the tokenizer {} no token for none", tokenizer.name());
    all = before = {*start};
    tokenizer.encode(continuation, all);
  } else {
    tokenizer.encode(context, before);
    tokenizer.encode(context + continuation, all);
  }
  const auto targets = std::ssize(all) - std::ssize(before);
  if (targets < 1) fail_user("the choice \"{}\" has no token of its own", continuation);
  if (targets > positions) {
    fail_user("the choice \"{}\" has {} tokens, the model {} positions", continuation, targets, positions);
  }
  if (std::ssize(all) > positions + 1) all.erase(all.begin(), all.end() - (positions + 1));
  return {std::move(all), targets};
}

std::int64_t characters_of(const std::string& text) {
  return std::ranges::count_if(text, [](char byte) { return (byte & 0xc0) != 0x80; });
}

}  // namespace shoal
