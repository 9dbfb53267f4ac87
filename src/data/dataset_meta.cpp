#include <fstream>
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "core/file.h"
#include "core/json_integer.h"
#include "data/dataset.h"
#include "core/json_depth.h"
#include "data/json_problem.h"

namespace shoal {
namespace {

using nlohmann::json;

template <typename T>
T get(const json& object, const char* key, const std::filesystem::path& file) {
  const auto found = object.find(key);
  if (found == object.end())
    fail_user("{}: lacks the key \"{}\"; prepare the data again", file.string(), key);
  if constexpr (std::integral<T>) {
    if (const auto number = integer_of<T>(*found)) return *number;
    if (found->is_number())
      fail_user("{}: the key \"{}\" is {}, which is no whole number that fits; prepare the data again",
                file.string(), key, found->dump());
  } else {
    try {
      return found->get<T>();
    } catch (const json::exception&) {  // said below
    }
  }
  fail_user("{}: the key \"{}\" has a wrong type ({}); prepare the data again", file.string(), key,
            found->type_name());
}

std::optional<double> get_entropy(const json& object, const char* key, const std::filesystem::path& file) {
  if (!object.contains(key)) return std::nullopt;
  return get<double>(object, key, file);
}

void check_ranges(const DatasetMeta& meta, const std::filesystem::path& file) {
  const std::int64_t most = meta.bytes_per_token == 2 ? 65'536 : std::int64_t{1} << 31;
  if (meta.vocab_size < 1 || meta.vocab_size > most) {
    fail_user("{}: \"vocab_size\" is {}, not between 1 and {}; prepare the data again", file.string(),
              meta.vocab_size, most);
  }
  for (const auto& [name, split] : meta.splits) {
    if (split.tokens < 1) fail_user("{}: split \"{}\" has {} tokens", file.string(), name, split.tokens);
  }
}

SplitMeta read_split(const json& object, const std::filesystem::path& file) {
  SplitMeta split;
  split.tokens = get<std::int64_t>(object, "tokens", file);
  const auto digits = get<std::string>(object, "xxh64", file);
  std::size_t used = 0;
  try {
    split.xxh64 = std::stoull(digits, &used, 16);
  } catch (const std::logic_error&) {  // not a number, or too large: used stays 0
  }
  if (used == 0 || used != digits.size()) {
    fail_user("{}: \"xxh64\" must be a hexadecimal number, not \"{}\"", file.string(), digits);
  }
  split.entropy = get_entropy(object, "entropy_per_token", file);
  return split;
}

}  // namespace

std::string to_json_text(const DatasetMeta& meta) {
  nlohmann::ordered_json out;
  out["dataset"] = meta.dataset;
  out["vocab_size"] = meta.vocab_size;
  out["dtype"] = meta.bytes_per_token == 2 ? "uint16" : "uint32";
  if (meta.entropy_per_token) out["entropy_per_token"] = *meta.entropy_per_token;
  for (const auto& [name, split] : meta.splits) {
    auto& entry = out["splits"][name];
    entry["tokens"] = split.tokens;
    entry["xxh64"] = fmt::format("{:016x}", split.xxh64);
    if (split.entropy) entry["entropy_per_token"] = *split.entropy;
  }
  out["split_rule"] = meta.split_rule;
  out["seed"] = meta.seed;
  out["sources"] = meta.sources;
  out["tokenizer"] = nlohmann::ordered_json::parse(meta.tokenizer);
  // File names may hold any bytes.
  return out.dump(1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
}

DatasetMeta read_dataset_meta(const std::filesystem::path& file) {
  std::ifstream in(file, std::ios::binary);
  if (!in) fail_user("{}: cannot be read", file.string());
  const auto text = read_rest(in, file);
  json object;
  try {
    object = json::parse(text);
  } catch (const json::parse_error& error) {
    fail_user("{}: not valid JSON: {}; prepare the data again", file.string(),
              json_problem(text, error.byte));
  } catch (const json::exception&) {
    fail_user("{}: a number is out of range; prepare the data again", file.string());
  }
  if (is_deeper(object)) {
    fail_user("{}: has lists or objects nested more than {} deep; prepare the data again", file.string(),
              kDeepestJson);
  }
  if (!object.is_object()) fail_user("{}: not a JSON object; prepare the data again", file.string());

  DatasetMeta meta;
  meta.dataset = get<std::string>(object, "dataset", file);
  meta.vocab_size = get<std::int64_t>(object, "vocab_size", file);
  const auto dtype = get<std::string>(object, "dtype", file);
  if (dtype != "uint16" && dtype != "uint32") {
    fail_user("{}: \"dtype\" is \"{}\", not uint16 or uint32", file.string(), dtype);
  }
  meta.bytes_per_token = dtype == "uint16" ? 2 : 4;
  const auto splits = get<json::object_t>(object, "splits", file);
  for (const auto& [name, split] : splits) {
    if (!split.is_object()) fail_user("{}: split \"{}\" is not an object", file.string(), name);
    meta.splits[name] = read_split(split, file);
  }
  meta.entropy_per_token = get_entropy(object, "entropy_per_token", file);
  meta.split_rule = get<std::string>(object, "split_rule", file);
  meta.seed = get<std::uint64_t>(object, "seed", file);
  meta.sources = get<std::vector<std::string>>(object, "sources", file);
  meta.tokenizer = get<json>(object, "tokenizer", file).dump();
  check_ranges(meta, file);
  return meta;
}

}  // namespace shoal
