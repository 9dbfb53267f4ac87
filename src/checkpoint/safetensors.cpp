#include "checkpoint/safetensors.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "checkpoint/json_text.h"
#include "checkpoint/slice.h"
#include "core/error.h"
#include "core/json_depth.h"
#include "core/text.h"

namespace shoal {

namespace {

using nlohmann::json;

static_assert(std::endian::native == std::endian::little, "the format is little-endian");

constexpr std::uint64_t kLengthBytes = 8;
constexpr std::uint64_t kMaxHeader = 100'000'000;  // the format's own limit
constexpr std::string_view kMetadata = "__metadata__";

struct StoredType {
  std::string_view name;
  std::size_t bytes;
  std::optional<DType> dtype;
};

constexpr std::array kTypes = {
    StoredType{"F32", 4, DType::f32}, StoredType{"BF16", 2, DType::bf16},
    StoredType{"F16", 2, DType::f16}, StoredType{"F64", 8, DType::f64},
    StoredType{"I32", 4, DType::i32}, StoredType{"I64", 8, {}},
    StoredType{"U64", 8, {}},         StoredType{"U32", 4, {}},
    StoredType{"I16", 2, {}},         StoredType{"U16", 2, {}},
    StoredType{"I8", 1, {}},          StoredType{"U8", 1, {}},
    StoredType{"BOOL", 1, {}},        StoredType{"F8_E4M3", 1, {}},
    StoredType{"F8_E5M2", 1, {}},
};

std::string_view stored_name(DType dtype) {
  return std::find_if(kTypes.begin(), kTypes.end(), [&](const auto& t) { return t.dtype == dtype; })->name;
}

std::size_t bytes_of(const TensorEntry& entry) {
  return static_cast<std::size_t>(entry.shape.count()) * size_of(entry.dtype);
}

std::string make_header(const std::vector<TensorEntry>& entries,
                        const std::map<std::string, std::string>& metadata) {
  std::string header;
  const auto add = [&](const std::string& name, const std::string& value) {
    header += fmt::format("{}{}:{}", header.empty() ? '{' : ',', json_text(name), value);
  };
  if (!metadata.empty()) add(std::string(kMetadata), json_text(nlohmann::json(metadata)));
  std::set<std::string_view> names = {kMetadata};
  std::uint64_t offset = 0;
  for (const auto& entry : entries) {
    const std::int64_t bytes = checked_bytes(entry.shape, size_of(entry.dtype));
    if (bytes < 0) fail("tensor \"{}\" has an impossible shape {}", entry.name, entry.shape.to_string());
    if (!names.insert(entry.name).second)
      fail("tensor \"{}\" cannot be written twice into one file", entry.name);
    const std::uint64_t end = offset + static_cast<std::uint64_t>(bytes);
    add(entry.name, fmt::format(R"({{"dtype":"{}","shape":{},"data_offsets":[{},{}]}})",
                                stored_name(entry.dtype), json_text(entry.shape), offset, end));
    offset = end;
  }
  header += header.empty() ? "{}" : "}";
  header.append((kLengthBytes - header.size() % kLengthBytes) % kLengthBytes, ' ');
  return header;
}

// Parses a header. Refuses duplicate keys and deeper nesting than the format has, both of which JSON allows.
json parse_strictly(std::string_view text) {
  std::array<std::set<std::string>, 3> keys;  // by depth
  return json::parse(text, [&](int depth, json::parse_event_t event, json& value) {
    const auto level = static_cast<std::size_t>(depth);
    if (event == json::parse_event_t::object_start || event == json::parse_event_t::array_start) {
      if (depth > 2) fail_user("it is nested too deeply");
      if (depth < 2) keys[level + 1].clear();
    }
    if (event == json::parse_event_t::key) {
      const auto& key = value.get_ref<const std::string&>();
      if (level >= keys.size()) fail_user("it is nested too deeply");
      if (!keys[level].insert(key).second) fail_user("\"{}\" appears twice", key);
    }
    return true;
  });
}

struct Extent {
  std::uint64_t begin, end;
};

// Reads one entry of the header and checks it against the size of the data. `extent` receives the position of
// the tensor's data.
StoredTensor read_entry(const std::string& name, const json& entry, std::uint64_t data_bytes,
                        Extent& extent) {
  if (!entry.is_object() || !entry.contains("dtype") || !entry.contains("shape") ||
      !entry.contains("data_offsets")) {
    fail_user("it needs dtype, shape and data_offsets");
  }
  const auto& type_name = entry["dtype"];
  const auto type = std::find_if(kTypes.begin(), kTypes.end(), [&](const auto& t) {
    return type_name.is_string() && type_name.get_ref<const std::string&>() == t.name;
  });
  if (type == kTypes.end()) fail_user("its type {} is unknown", type_name.dump());
  const auto shape = shape_from_json(entry["shape"]);
  if (!shape) {
    fail_user("its shape {} is not a list of at most {} sizes", entry["shape"].dump(), Shape::kMaxRank);
  }
  const std::int64_t bytes = checked_bytes(*shape, type->bytes);
  if (bytes < 0) fail_user("its shape {} overflows", shape->to_string());

  const auto& offsets = entry["data_offsets"];
  if (!offsets.is_array() || offsets.size() != 2 || !offsets[0].is_number_unsigned() ||
      !offsets[1].is_number_unsigned()) {
    fail_user("its data_offsets {} are not two positions", offsets.dump());
  }
  extent = {offsets[0].get<std::uint64_t>(), offsets[1].get<std::uint64_t>()};
  if (extent.begin > extent.end || extent.end > data_bytes) {
    fail_user("its data_offsets {} lie outside the {} bytes of data", offsets.dump(), data_bytes);
  }
  if (extent.end - extent.begin != static_cast<std::uint64_t>(bytes)) {
    fail_user("its data_offsets {} hold {} bytes, but {} {} takes {}", offsets.dump(),
              extent.end - extent.begin, type->name, shape->to_string(), bytes);
  }
  return {name, std::string(type->name), type->dtype, *shape, {}};
}

}  // namespace

SafetensorsWriter::SafetensorsWriter(const std::filesystem::path& path, std::vector<TensorEntry> entries,
                                     const std::map<std::string, std::string>& metadata,
                                     OutputFile::Existing existing)
    : entries_(std::move(entries)), file_(path, existing) {
  const std::string header = make_header(entries_, metadata);
  const std::uint64_t length = header.size();
  file_.write(std::as_bytes(std::span(&length, 1)));
  file_.write(std::as_bytes(std::span(header)));
}

void SafetensorsWriter::write(std::span<const std::byte> data) {
  if (written_ > 0 || (next_ < entries_.size() && data.size() != bytes_of(entries_[next_]))) {
    const auto& entry = entries_[next_];
    fail("tensor \"{}\" {} takes {} bytes, not {}", entry.name, entry.shape.to_string(), bytes_of(entry),
         data.size());
  }
  write_part(data);
}

void SafetensorsWriter::write_part(std::span<const std::byte> data) {
  if (next_ == entries_.size()) fail("more tensors than the file's header announces");
  const auto& entry = entries_[next_];
  const std::size_t left = bytes_of(entry) - written_;
  if (data.size() > left) {
    fail("tensor \"{}\" {} has {} bytes left to write, not {}", entry.name, entry.shape.to_string(), left,
         data.size());
  }
  file_.write(data);
  written_ += data.size();
  if (data.size() < left) return;
  ++next_;
  written_ = 0;
}

FileSummary SafetensorsWriter::finish() {
  if (next_ != entries_.size()) fail("tensor \"{}\" was announced but not written", entries_[next_].name);
  return file_.finish();
}

SafetensorsFile::SafetensorsFile(MappedFile file) : file_(std::move(file)) {
  try {
    parse_header();
  } catch (const json::exception& error) {
    fail_user("{}: the safetensors header is not valid JSON: {}", path().string(), error.what());
  } catch (const UserError& error) {
    fail_user("{}: the safetensors header is damaged: {}", path().string(), error.what());
  }
}

void SafetensorsFile::parse_header() {
  const auto all = bytes();
  std::uint64_t length = 0;
  if (all.size() < kLengthBytes) fail_user("the file has {} bytes, too few for a header", all.size());
  std::memcpy(&length, all.data(), kLengthBytes);
  if (length > all.size() - kLengthBytes || length > kMaxHeader) {
    fail_user("it claims {} bytes; the file has {}", length, all.size());
  }
  const auto text = all.subspan(kLengthBytes, length);
  header_bytes_ = kLengthBytes + length;
  const auto data = all.subspan(header_bytes_);
  const json header = parse_strictly({reinterpret_cast<const char*>(text.data()), text.size()});
  if (!header.is_object()) fail_user("it is not a JSON object");
  if (is_deeper(header)) fail_user("its header's values are nested more than {} deep", kDeepestJson);

  std::vector<std::pair<Extent, StoredTensor>> found;
  for (const auto& [name, entry] : header.items()) {
    if (name == kMetadata) {
      if (!entry.is_object()) fail_user("__metadata__ is not an object");
      for (const auto& [key, value] : entry.items()) {
        if (!value.is_string()) fail_user("__metadata__ \"{}\" is not a string", key);
        metadata_[key] = value.get<std::string>();
      }
      continue;
    }
    try {
      Extent extent{};
      auto tensor = read_entry(name, entry, data.size(), extent);
      tensor.data = data.subspan(extent.begin, extent.end - extent.begin);
      found.emplace_back(extent, std::move(tensor));
    } catch (const UserError& error) {
      fail_user("tensor \"{}\": {}", name, error.what());
    }
  }

  std::sort(found.begin(), found.end(), [](const auto& a, const auto& b) {
    return std::pair(a.first.begin, a.first.end) < std::pair(b.first.begin, b.first.end);
  });
  std::uint64_t end = 0;
  for (auto& [extent, tensor] : found) {
    if (extent.begin < end) fail_user("tensor \"{}\": its data overlaps another tensor's", tensor.name);
    if (extent.begin > end)
      fail_user("{} bytes before tensor \"{}\" belong to no tensor", extent.begin - end, tensor.name);
    end = extent.end;
    index_[tensor.name] = tensors_.size();
    tensors_.push_back(std::move(tensor));
  }
  if (end != data.size()) fail_user("its tensors end after {} of {} bytes of data", end, data.size());
}

const StoredTensor* SafetensorsFile::find(std::string_view name) const {
  const auto found = index_.find(name);
  return found == index_.end() ? nullptr : &tensors_[found->second];
}

const StoredTensor& SafetensorsFile::at(std::string_view name) const {
  if (const auto* tensor = find(name)) return *tensor;
  std::vector<std::string> names;
  for (const auto& tensor : tensors_) names.push_back(tensor.name);
  const std::string near = nearest(name, names);
  fail_user("{} has no tensor \"{}\"{}", path().string(), name,
            near.empty() ? "" : fmt::format("; the nearest is \"{}\"", near));
}

}  // namespace shoal
