// Reads a config from TOML, arguments and JSON. All become raw values with their source, set by assign().
#include <toml++/toml.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>

#include "config/follow.h"
#include "config/pretrained.h"
#include "config/schema.h"
#include "core/error.h"
#include "core/file.h"
#include "core/text.h"

namespace shoal {
namespace {

struct Assignment {
  const Field* field;
  RawValue value;
  std::string where;
};

RawValue from_toml(const toml::node& node) {
  if (const auto* flag = node.as_boolean()) return flag->get();
  if (const auto* integer = node.as_integer()) return integer->get();
  if (const auto* number = node.as_floating_point()) return number->get();
  if (const auto* text = node.as_string()) return text->get();
  if (const auto* array = node.as_array()) {
    std::vector<double> numbers;
    for (const auto& element : *array) {
      if (!element.is_number()) return NotAValue{"a list that is not of numbers"};
      numbers.push_back(element.value<double>().value());
    }
    return numbers;
  }
  if (const auto* table = node.as_table()) {
    std::map<std::string, double> numbers;
    for (const auto& [name, value] : *table) {
      if (!value.is_number()) return NotAValue{"a table that is not of numbers"};
      numbers[std::string(name)] = value.value<double>().value();
    }
    return numbers;
  }
  return NotAValue{"a date or time"};
}

std::string place(std::string_view source, const toml::node& node) {
  return fmt::format("{}:{}", source, node.source().begin.line);
}

// The word without quotes in the place of a value: "ten" for "steps = ten". "" where there is none.
std::string_view bare_word(std::string_view line) {
  const auto equals = line.find('=');
  if (equals == std::string_view::npos) return "";
  auto value = line.substr(equals + 1);
  value.remove_prefix(std::min(value.find_first_not_of(" \t"), value.size()));
  value = value.substr(0, value.find_first_of(" \t\r#,"));
  const bool word = !value.empty() && (std::isalpha(static_cast<unsigned char>(value.front())) ||
                                       value.front() == '/' || value.front() == '.' || value.front() == '~');
  return word && value != "true" && value != "false" && value != "inf" && value != "nan" ? value : "";
}

std::string_view line_of(std::string_view text, std::size_t number) {
  for (; number > 1; --number) text.remove_prefix(std::min(text.find('\n'), text.size() - 1) + 1);
  return text.substr(0, text.find('\n'));
}

toml::table parse_toml(std::string_view text, std::string_view source) {
  try {
    return toml::parse(text, source);
  } catch (const toml::parse_error& error) {
    const auto at = error.source().begin;
    if (const auto word = bare_word(line_of(text, at.line)); !word.empty()) {
      const auto meant = spelled_as_toml(word);
      fail_user("{}:{}: `{}` is not a value; {}", source, at.line, word,
                meant.empty() ? fmt::format("text needs quotes: \"{}\"", word) : "write " + meant);
    }
    fail_user("{}:{}:{}: this is not TOML: {}", source, at.line, at.column, error.description());
  }
}

// The keys in the order of the file, so that the first mistake is reported.
std::vector<Assignment> read_toml(std::string_view text, std::string_view source) {
  struct Entry {
    std::string section, key;
    const toml::node* node;
  };
  const auto table = parse_toml(text, source);
  std::vector<Entry> entries;
  for (const auto& [section, node] : table) {
    const auto* keys = node.as_table();
    if (!keys) {
      entries.push_back({"", std::string(section), &node});
    } else if (keys->empty()) {
      const auto sections = config_sections();
      if (std::ranges::find(sections, section.str()) == sections.end()) {
        fail_unknown_key(section.str(), "", place(source, node));
      }
    } else {
      for (const auto& [key, value] : *keys) {
        entries.push_back({std::string(section), std::string(key), &value});
      }
    }
  }
  std::ranges::stable_sort(entries, {}, [](const Entry& entry) { return entry.node->source().begin.line; });
  std::vector<Assignment> assignments;
  for (const auto& entry : entries) {
    const auto where = place(source, *entry.node);
    const auto* field = find_field(entry.section, entry.key);
    if (!field) fail_unknown_key(entry.section, entry.key, where);
    assignments.push_back({field, from_toml(*entry.node), where});
  }
  return assignments;
}

// The value of an argument: parsed as TOML where it is TOML of the key's type, else the text itself.
RawValue parse_value(const Field& field, std::string text) {
  Config config;
  const auto ref = field.ref(config);
  const bool list =
      std::holds_alternative<std::array<double, 2>*>(ref) || std::holds_alternative<std::vector<int>*>(ref);
  const bool wants_text = std::holds_alternative<std::string*>(ref);
  if (list && !text.starts_with('[')) text = "[" + text + "]";
  try {
    const auto table = toml::parse("value = " + text);
    const auto* node = table.get("value");
    if (node && table.size() == 1 && (!wants_text || node->is_string())) return from_toml(*node);
  } catch (const toml::parse_error&) {
  }
  return text;
}

Assignment read_argument(std::string_view argument) {
  const auto where = fmt::format("argument '{}'", argument);
  if (argument.starts_with("--")) argument.remove_prefix(2);
  const auto equals = argument.find('=');
  const auto name = argument.substr(0, equals);
  const auto dot = name.find('.');
  if (equals == std::string_view::npos || name.empty()) {
    fail_user("{}: settings are written section.key=value, e.g. optim.lr=1e-3", where);
  }
  const auto* field = find_field(name);
  if (!field) {
    fail_unknown_key(dot == std::string_view::npos ? "" : name.substr(0, dot),
                     dot == std::string_view::npos ? name : name.substr(dot + 1), where);
  }
  return {field, parse_value(*field, std::string(argument.substr(equals + 1))), where};
}

std::vector<Assignment> read_arguments(std::span<const std::string> arguments) {
  std::vector<Assignment> assignments;
  for (const auto& argument : arguments) assignments.push_back(read_argument(argument));
  return assignments;
}

void apply_preset(ModelConfig& model) {
  for (const auto& preset : model_presets()) {
    if (preset.name == model.preset) {
      model.n_layer = preset.n_layer, model.n_head = preset.n_head, model.n_embd = preset.n_embd;
    }
  }
}

// Two keys can set the same thing. A source that gives one of them resets the other, given by an earlier
// source.
void replace_other_key(Config& config, Origins& origins, const std::vector<Assignment>& assignments) {
  const auto given = [&](std::string_view key) {
    return std::ranges::any_of(assignments, [&](const auto& a) { return a.field->name() == key; });
  };
  const bool batches = given("eval.batches"), sequences = given("eval.sequences");
  if (batches && !sequences) {
    config.eval.sequences = EvalConfig{}.sequences;
    origins.erase("eval.sequences");
  }
  if (sequences && !batches) {
    config.eval.batches = EvalConfig{}.batches;
    origins.erase("eval.batches");
  }
  auto& eval = config.eval;
  const bool interval = given("eval.interval"), epochs = given("eval.epochs");
  if (interval && !epochs && eval.interval < 0) eval.epochs = 0, origins.erase("eval.epochs");
  if (epochs && !interval && eval.epochs > 0 && eval.interval < 0)
    eval.interval = 0, origins.erase("eval.interval");
  auto& schedule = config.lr_schedule;
  const auto replace = [&](std::string_view steps, std::int64_t& in_steps, std::string_view tokens,
                           std::int64_t& in_tokens) {
    if (given(tokens) && !given(steps) && in_tokens > 0) in_steps = 0, origins.erase(std::string(steps));
    if (given(steps) && !given(tokens)) in_tokens = 0, origins.erase(std::string(tokens));
  };
  replace("lr_schedule.warmup_steps", schedule.warmup_steps, "lr_schedule.warmup_tokens",
          schedule.warmup_tokens);
  replace("lr_schedule.decay_steps", schedule.decay_steps, "lr_schedule.decay_tokens", schedule.decay_tokens);
  const bool gossip =
      std::ranges::any_of(assignments, [](const auto& a) { return a.field->section == "gossip"; });
  if (given("parallel.engine") && !gossip && config.parallel.engine != EngineKind::gossip) config.gossip = {};
  const bool dir = given("data.dir"), dirs = given("data.dirs");
  if (dir && !dirs) config.data.dirs.clear();
  if (dirs && !dir) config.data.dir.clear();
}

// The value of init.from when "auto" is given after the value `from`.
std::string auto_after(const std::string& from) {
  if (from == "scratch") return "auto";
  return from == "resume" || start_without_checkpoint(from) ? from : "auto:" + from;
}

// Applies one source: its preset first, then its explicit keys.
void apply(Config& config, Origins& origins, const std::vector<Assignment>& assignments) {
  for (const auto& assignment : assignments) config.given.insert(assignment.field->name());
  static constexpr std::string_view kPreset = "model.preset";
  for (const auto& [field, value, where] : assignments) {
    if (field->name() != kPreset) continue;
    assign(*field, config, value, where);
    origins[field->name()] = where;
    for (const auto* key : {"model.n_layer", "model.n_head", "model.n_embd"}) origins[key] = where;
  }
  if (std::ranges::any_of(assignments, [](const auto& a) { return a.field->name() == kPreset; })) {
    apply_preset(config.model);
  }
  for (const auto& [field, value, where] : assignments) {
    if (field->name() == kPreset) continue;
    const auto from = config.init.from;
    assign(*field, config, value, where);
    if (field->name() == "init.from" && config.init.from == "auto") config.init.from = auto_after(from);
    origins[field->name()] = where;
  }
  replace_other_key(config, origins, assignments);
}

void apply_given(Config& config, Origins& origins, const std::vector<Assignment>& arguments) {
  apply(config, origins, arguments);
  for (const auto& argument : arguments) config.fixed.insert(argument.field->name());
}

// Initial weights set the model's keys as a preset does, even when an argument asks to resume instead. A
// config that gives all of these keys can be shown and planned without the weights.
void apply_weights(Config& config, Origins& origins, std::span<const Assignment> assignments) {
  const Assignment* weights = nullptr;
  for (const auto& assignment : assignments) {
    const auto* from = std::get_if<std::string>(&assignment.value);
    if (assignment.field->name() == "init.from" && from && weights_of_start(*from)) weights = &assignment;
  }
  if (!weights) return;
  const auto& from = std::get<std::string>(weights->value);
  const bool used = config.init.from == from;
  const auto start = *weights_of_start(from);
  if (model_is_given(origins) && (!used || !std::filesystem::exists(start.path))) return;
  try {
    take_weights_model(start, config, origins);
  } catch (const UserError& error) {
    fail_user("init.from = \"{}\" ({}): {}{}", from, weights->where, error.what(),
              used ? "" : ". A run that exists goes on without it by its own config, RUN/config.toml");
  }
}

// Epochs given alone replace the default interval.
void resolve(Config& config, const Origins& origins) {
  if (config.eval.epochs > 0 && !origins.contains("eval.interval")) config.eval.interval = 0;
  if (config.checkpoint.epochs > 0 && !origins.contains("checkpoint.interval"))
    config.checkpoint.interval = 0;
}

std::string read_file(const std::filesystem::path& file) {
  std::ifstream stream(file, std::ios::binary);
  std::error_code ignored;
  if (!stream || std::filesystem::is_directory(file, ignored)) {
    const std::string reason = stream ? "it is a folder" : std::strerror(errno);
    std::vector<std::string> beside;
    const auto folder = file.has_parent_path() ? file.parent_path() : std::filesystem::path(".");
    for (const auto& entry : std::filesystem::directory_iterator(folder, ignored)) {
      if (entry.path().extension() == ".toml") beside.push_back(entry.path().filename().string());
    }
    const auto near = nearest(file.filename().string(), beside);
    fail_user("cannot read the config {}: {}{}", file.string(), reason,
              near.empty() ? "" : fmt::format("; did you mean {}?", (file.parent_path() / near).string()));
  }
  return read_rest(stream, file);
}

RawValue from_json(const nlohmann::ordered_json& value) {
  if (value.is_boolean()) return value.get<bool>();
  if (value.is_number_integer()) return value.get<std::int64_t>();
  if (value.is_number()) return value.get<double>();
  if (value.is_string()) return value.get<std::string>();
  if (value.is_array() && std::ranges::all_of(value, [](const auto& v) { return v.is_number(); })) {
    return value.get<std::vector<double>>();
  }
  if (value.is_object() && std::ranges::all_of(value, [](const auto& v) { return v.is_number(); })) {
    return value.get<std::map<std::string, double>>();
  }
  return NotAValue{value.dump()};
}

Config read_config(std::string_view toml, std::string_view source, std::span<const std::string> arguments,
                   const std::string& default_name) {
  Config config;
  Origins origins;
  config.run.name = default_name;
  auto assignments = read_toml(toml, source);
  apply(config, origins, assignments);
  const auto given = read_arguments(arguments);
  apply_given(config, origins, given);
  if (config.run.name.empty()) config.run.name = default_name;
  assignments.insert(assignments.end(), given.begin(), given.end());
  apply_weights(config, origins, assignments);
  resolve(config, origins);
  follow_arguments(config);
  follow_batch(config);
  follow_steps(config);
  validate(config, origins);
  return config;
}

}  // namespace

Config load_config(const std::filesystem::path& file, std::span<const std::string> arguments) {
  return read_config(read_file(file), file.string(), arguments, file.stem().string());
}

Config parse_config(std::string_view toml, std::string_view source, std::span<const std::string> arguments) {
  return read_config(toml, source, arguments, "run");
}

Config stored_config(std::string_view toml, std::string_view source) {
  Config config;
  Origins origins;
  config.run.name = "run";
  apply(config, origins, read_toml(toml, source));
  resolve(config, origins);
  // Earlier versions took these keys and did nothing with them.
  if (config.parallel.engine != EngineKind::gossip) config.gossip = {};
  if (config.eval.interval < 0) config.eval.epochs = 0;
  validate(config, origins);
  return config;
}

void apply_arguments(Config& config, std::span<const std::string> arguments) {
  Origins origins;
  apply_given(config, origins, read_arguments(arguments));
}

Config config_from_json(const nlohmann::ordered_json& json, std::string_view source) {
  if (!json.is_object()) fail_user("{}: the config in it is not an object", source);
  std::vector<Assignment> assignments;
  for (const auto& [section, keys] : json.items()) {
    if (!keys.is_object()) fail_unknown_key("", section, source);
    for (const auto& [key, value] : keys.items()) {
      const auto* field = find_field(section, key);
      if (!field) fail_unknown_key(section, key, source);
      assignments.push_back({field, from_json(value), std::string(source)});
    }
  }
  Config config;
  Origins origins;
  apply(config, origins, assignments);
  return config;
}

std::map<std::string, double> DataConfig::sources() const {
  if (dirs.empty()) return {{dir, 1.0}};
  double sum = 0;
  for (const auto& [folder, weight] : dirs) sum += weight;
  auto shares = dirs;
  for (auto& [folder, weight] : shares) weight /= sum;
  return shares;
}

std::int64_t eval_sequences(const Config& config) {
  const auto& eval = config.eval;
  return eval.batches < 0 ? eval.sequences : eval.batches * config.train.global_batch;
}

GptConfig to_gpt_config(const ModelConfig& model) {
  return {.n_layer = model.n_layer,
          .n_head = model.n_head,
          .n_embd = model.n_embd,
          .block_size = model.block_size,
          .vocab_size = model.vocab_size,
          .dropout = model.dropout,
          .bias = model.bias,
          .gelu = model.gelu,
          .tied = model.tie_embeddings};
}

GptConfig to_gpt_config(const Config& config) {
  GptConfig model = to_gpt_config(config.model);
  const auto& lora = config.lora;
  model.lora = {.rank = lora.rank, .alpha = lora.alpha, .dropout = lora.dropout, .targets = {}};
  for (const auto& target : split_list(lora.targets)) {
    bool known = false;
    for (int i = 0; i < kLinears; ++i) {
      if (target != "all" && target != name_of(static_cast<Linear>(i))) continue;
      model.lora.targets[static_cast<std::size_t>(i)] = known = true;
    }
    if (!known) {
      fail_user("lora.targets has \"{}\"; it takes all, attn.c_attn, attn.c_proj, mlp.c_fc and mlp.c_proj",
                target);
    }
  }
  model.frozen = split_list(config.optim.frozen);
  if (model.frozen.empty() && lora.rank > 0) model.frozen = {"embedding", "block.*", "head"};
  return model;
}

}  // namespace shoal
