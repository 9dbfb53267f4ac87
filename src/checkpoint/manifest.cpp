#include "checkpoint/manifest.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <map>
#include <set>

#include "checkpoint/json_text.h"
#include "core/error.h"
#include "core/json_depth.h"
#include "core/json_integer.h"

namespace shoal {

namespace {

using nlohmann::json;
namespace fs = std::filesystem;

constexpr std::uint64_t kMaxManifest = 1u << 30;
constexpr std::array kDTypes = {DType::f32, DType::bf16, DType::f16, DType::f64, DType::i32};

std::string to_hex(std::uint64_t value) { return fmt::format("{:016x}", value); }

std::uint64_t from_hex(const json& value) {
  const auto& text = value.get_ref<const std::string&>();
  std::uint64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number, 16);
  if (error != std::errc() || end != text.data() + text.size()) fail_user("\"{}\" is not a checksum", text);
  return number;
}

DType dtype_from(const json& value) {
  const auto& text = value.get_ref<const std::string&>();
  for (DType dtype : kDTypes) {
    if (name_of(dtype) == text) return dtype;
  }
  fail_user("the type \"{}\" is unknown", text);
}

Shape shape_from(const json& value) {
  const auto shape = shape_from_json(value);
  if (!shape) fail_user("{} is not a shape", json_text(value));
  return *shape;
}

std::int64_t whole_number(const json& value) {
  const auto number = integer_of<std::int64_t>(value);
  if (!number) fail_user("{} is not a whole number", json_text(value));
  return *number;
}

std::string json_of(const FileRecord& file) {
  std::string sums;
  for (auto sum : file.summary.checksums)
    sums += fmt::format("{}\"{}\"", sums.empty() ? "" : ",", to_hex(sum));
  return fmt::format(R"({{"bytes":{},"name":{},"xxh3":[{}]}})", file.summary.bytes, json_text(file.name),
                     sums);
}

FileRecord file_from(const json& value) {
  FileRecord file{value.at("name").get<std::string>(), {}};
  if (file.name.empty() || file.name[0] == '.' || file.name.find('/') != std::string::npos) {
    fail_user("\"{}\" is not the name of a file in this directory", file.name);
  }
  const std::int64_t bytes = whole_number(value.at("bytes"));
  if (bytes < 0) fail_user("file \"{}\" has an impossible size", file.name);
  file.summary.bytes = static_cast<std::uint64_t>(bytes);
  for (const auto& sum : value.at("xxh3")) file.summary.checksums.push_back(from_hex(sum));
  if (file.summary.checksums.size() != (file.summary.bytes + kChecksumBlock - 1) / kChecksumBlock) {
    fail_user("file \"{}\" has {} checksums, which does not fit its {} bytes", file.name,
              file.summary.checksums.size(), bytes);
  }
  return file;
}

// Fields that say what is so anyway (the whole box, the whole tensor, the same name) are left out.
std::string json_of(const SliceRecord& record, const TensorRecord& tensor) {
  const auto& slice = record.slice;
  const bool is_part = slice.shape != tensor.shape;
  std::string text = "{";
  if (record.stored_as != tensor.name) text += fmt::format(R"("as":{},)", json_text(record.stored_as));
  text += fmt::format(R"("file":{})", record.file);
  if (is_part) text += fmt::format(R"(,"offset":{})", json_text(slice.offset));
  if (!slice.covers_box()) text += fmt::format(R"(,"range":[{},{}])", slice.flat_begin, slice.flat_end);
  if (is_part) text += fmt::format(R"(,"shape":{})", json_text(slice.shape));
  return text + '}';
}

std::string json_of(const TensorRecord& tensor) {
  std::string slices;
  for (const auto& slice : tensor.slices) slices += (slices.empty() ? "" : ",") + json_of(slice, tensor);
  return fmt::format(R"({{"dtype":"{}","name":{},"shape":{},"slices":[{}]}})", name_of(tensor.dtype),
                     json_text(tensor.name), json_text(tensor.shape), slices);
}

SliceRecord slice_from(const json& value, const TensorRecord& tensor, std::size_t files) {
  SliceRecord record{whole_slice(tensor.name, tensor.dtype, tensor.shape), 0, tensor.name};
  const std::int64_t file = whole_number(value.at("file"));
  if (file < 0 || static_cast<std::size_t>(file) >= files) fail_user("file number {} does not exist", file);
  record.file = static_cast<std::size_t>(file);
  if (value.contains("as")) record.stored_as = value["as"].get<std::string>();
  if (value.contains("shape")) {
    record.slice.offset = shape_from(value.at("offset"));
    record.slice.shape = shape_from(value["shape"]);
    if (checked_bytes(record.slice.shape, 1) < 0) fail_user("{} is not a shape", json_text(value["shape"]));
    record.slice.flat_end = record.slice.shape.count();
  }
  if (value.contains("range")) {
    record.slice.flat_begin = whole_number(value["range"].at(0));
    record.slice.flat_end = whole_number(value["range"].at(1));
  }
  if (const auto fault = fault_of(record.slice); !fault.empty()) fail_user("{}", fault);
  return record;
}

TensorRecord tensor_from(const json& value, std::size_t files) {
  TensorRecord tensor{
      value.at("name").get<std::string>(), dtype_from(value.at("dtype")), shape_from(value.at("shape")), {}};
  if (checked_bytes(tensor.shape, size_of(tensor.dtype)) < 0) {
    fail_user("tensor \"{}\": the shape {} is impossible", tensor.name, tensor.shape.to_string());
  }
  try {
    for (const auto& slice : value.at("slices")) tensor.slices.push_back(slice_from(slice, tensor, files));
  } catch (const UserError& error) {
    fail_user("tensor \"{}\": {}", tensor.name, error.what());
  }
  return tensor;
}

std::string without_spaces(std::string_view text) {
  std::string result;
  result.reserve(text.size());
  bool in_quotes = false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (!in_quotes && (text[i] == ' ' || text[i] == '\n')) continue;
    if (text[i] == '"') in_quotes = !in_quotes;
    result += text[i];
    if (text[i] == '\\' && i + 1 < text.size()) result += text[++i];
  }
  return result;
}

// The checksum of an object whose fields are these, each with a comma behind it.
std::uint64_t checksum_of(std::string fields) {
  fields.back() = '}';
  return checksum(fields);
}

bool is_as_written(std::string_view text, std::uint64_t sum) {
  auto fields = without_spaces(text);
  const auto end = fmt::format(R"("checksum":"{}"}})", to_hex(sum));
  if (!fields.ends_with("," + end)) return false;
  fields.resize(fields.size() - end.size());
  return checksum_of(std::move(fields)) == sum;
}

Manifest manifest_from(json& body, std::string_view text) {
  if (!body.is_object()) fail_user("it is not a JSON object");
  const std::int64_t format = whole_number(body.at("format"));
  if (format != kCheckpointFormat) {
    fail_user("its format is {}; this version of Shoal reads format {}", format, kCheckpointFormat);
  }
  const std::uint64_t sum = from_hex(body.at("checksum"));
  body.erase("checksum");
  // Other programs may have laid the fields out anew.
  if (!is_as_written(text, sum) && checksum(json_text(body)) != sum)
    fail_user("it was changed after it was written (its checksum differs)");

  Manifest manifest;
  manifest.info = {whole_number(body.at("step")), body.at("shoal").get<std::string>(),
                   body.at("config").get<std::string>(), body.at("model"), body.at("state")};
  for (const char* key : {"model", "state"}) {
    if (!body.at(key).is_object()) fail_user("its \"{}\" is not a JSON object", key);
  }
  std::set<std::string> names;
  for (const auto& file : body.at("files")) {
    manifest.files.push_back(file_from(file));
    if (!names.insert(manifest.files.back().name).second) {
      fail_user("file \"{}\" appears twice", manifest.files.back().name);
    }
  }
  names.clear();
  for (const auto& tensor : body.at("tensors")) {
    manifest.tensors.push_back(tensor_from(tensor, manifest.files.size()));
    if (!names.insert(manifest.tensors.back().name).second) {
      fail_user("tensor \"{}\" appears twice", manifest.tensors.back().name);
    }
  }
  return manifest;
}

}  // namespace

std::uint64_t Manifest::file_bytes() const {
  std::uint64_t bytes = 0;
  for (const auto& file : files) bytes += file.summary.bytes;
  return bytes;
}

// The keys in JSON's order, in which a reader adds up the checksum of all values without a space between
// them. There is a line for each field, file and tensor: short enough to read, and to compare with diff.
std::string to_json_text(const Manifest& manifest) {
  std::string text = "{\n";
  const auto field = [&](const char* key, const std::string& value) {
    text += fmt::format("\"{}\": {},\n", key, value);
  };
  const auto list = [&](const char* key, const auto& records) {
    std::string lines;
    for (const auto& record : records) lines += (lines.empty() ? "\n  " : ",\n  ") + json_of(record);
    field(key, fmt::format("[{}\n]", lines));
  };
  field("config", json_text(manifest.info.config));
  list("files", manifest.files);
  field("format", std::to_string(kCheckpointFormat));
  field("model", json_text(manifest.info.model));
  field("shoal", json_text(manifest.info.shoal_version));
  field("state", json_text(manifest.info.state));
  field("step", std::to_string(manifest.info.step));
  list("tensors", manifest.tensors);
  const auto sum = checksum_of(without_spaces(text));
  return text + fmt::format("\"checksum\": \"{}\"\n}}\n", to_hex(sum));
}

Manifest manifest_from_json_text(std::string_view text, const fs::path& path) {
  try {
    json body = json::parse(text);
    if (is_deeper(body)) fail_user("its values are nested more than {} deep", kDeepestJson);
    return manifest_from(body, text);
  } catch (const json::exception& error) {
    fail_user("{} is damaged: {}", path.string(), error.what());
  } catch (const UserError& error) {
    fail_user("{} cannot be used: {}", path.string(), error.what());
  }
}

Manifest read_manifest(const fs::path& directory) {
  const fs::path path = directory / kManifestName;
  std::error_code ignored;
  if (!fs::exists(path, ignored)) {
    fail_user("{} is not a whole checkpoint: {} is missing", directory.string(), kManifestName);
  }
  return manifest_from_json_text(read_text(path, kMaxManifest), path);
}

void merge(Manifest& into, Manifest part) {
  const std::size_t first_file = into.files.size();
  for (auto& file : part.files) into.files.push_back(std::move(file));
  std::map<std::string, std::size_t> known;
  for (std::size_t i = 0; i < into.tensors.size(); ++i) known[into.tensors[i].name] = i;
  for (auto& tensor : part.tensors) {
    for (auto& slice : tensor.slices) slice.file += first_file;
    const auto [at, added] = known.try_emplace(tensor.name, into.tensors.size());
    if (added) {
      into.tensors.push_back(std::move(tensor));
      continue;
    }
    auto& same = into.tensors[at->second];
    if (same.dtype != tensor.dtype || same.shape != tensor.shape) {
      fail("ranks disagree about tensor \"{}\": {} {} and {} {}", same.name, name_of(same.dtype),
           same.shape.to_string(), name_of(tensor.dtype), tensor.shape.to_string());
    }
    for (auto& slice : tensor.slices) same.slices.push_back(std::move(slice));
  }
}

}  // namespace shoal
