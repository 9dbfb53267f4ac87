#include "checkpoint/torch_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdint>

#include "checkpoint/slice.h"
#include "core/error.h"

namespace shoal {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kMostPickle = 8 << 20;  // some 30,000 tensors

// A pickle of an integer, with which PyTorch's format before 1.6 begins.
constexpr std::string_view kOldFormat{"\x80\x02\x8a\x0al\xfc\x9c\x46\xf9 j\xa8P\x19.", 15};

struct StorageType {
  std::string_view global;
  std::string_view name;  // as in safetensors
  std::size_t bytes;
  std::optional<DType> dtype;
};

// The types of a GPT-2's tensors: parameters, masks, and an optimizer's state.
constexpr std::array kStorages = {StorageType{"torch.FloatStorage", "F32", 4, DType::f32},
                                  StorageType{"torch.HalfStorage", "F16", 2, DType::f16},
                                  StorageType{"torch.BFloat16Storage", "BF16", 2, DType::bf16},
                                  StorageType{"torch.DoubleStorage", "F64", 8, DType::f64},
                                  StorageType{"torch.LongStorage", "I64", 8, {}},
                                  StorageType{"torch.IntStorage", "I32", 4, DType::i32},
                                  StorageType{"torch.ByteStorage", "U8", 1, {}},
                                  StorageType{"torch.BoolStorage", "BOOL", 1, {}}};
constexpr std::string_view kRebuild = "torch._utils._rebuild_tensor_v2";
constexpr std::array<std::string_view, 10> kGlobals = {"collections.OrderedDict", kRebuild,
                                                       kStorages[0].global,       kStorages[1].global,
                                                       kStorages[2].global,       kStorages[3].global,
                                                       kStorages[4].global,       kStorages[5].global,
                                                       kStorages[6].global,       kStorages[7].global};

std::string_view text_of(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

// Throws UserError unless the file is a zip archive.
std::vector<ZipEntry> read_archive(const MappedFile& file) {
  if (text_of(file.bytes()).starts_with(kOldFormat)) {
    fail_user(
        "{} is in the format of torch.save before PyTorch 1.6, which is not read; write it anew with a later "
        "PyTorch: torch.save(torch.load(FILE, map_location=\"cpu\"), FILE)",
        file.path().string());
  }
  if (!is_zip(file.bytes())) {
    fail_user("{} is no file of torch.save: it does not begin as a zip archive does", file.path().string());
  }
  return read_zip(file.bytes(), file.path());
}

std::string root_of(const std::vector<ZipEntry>& entries, const fs::path& path) {
  constexpr std::string_view kPickle = "/data.pkl";
  for (const auto& entry : entries) {
    if (entry.name.ends_with(kPickle) && entry.name.find('/') == entry.name.size() - kPickle.size())
      return entry.name.substr(0, entry.name.find('/') + 1);
  }
  fail_user("{}: the zip archive has no entry data.pkl, so it is no file of torch.save", path.string());
}

Pickle read_pickle(const std::vector<ZipEntry>& entries, const std::string& root, const fs::path& path) {
  if (const auto* order = find_entry(entries, root + "byteorder");
      order && text_of(order->data) != "little") {
    fail_user("{} was saved on a big-endian machine, which is not read; save it on another one",
              path.string());
  }
  const auto bytes = text_of(find_entry(entries, root + "data.pkl")->data);
  if (bytes.size() > kMostPickle) {
    fail_user("{}: data.pkl has {} bytes, too many for the weights of a GPT-2", path.string(), bytes.size());
  }
  return Pickle(bytes, path.string() + ": data.pkl",
                {.globals = kGlobals,
                 .advice = "save tensors, numbers and texts alone, as torch.save(model.state_dict(), FILE)"});
}

// Sizes or strides; nothing when they are not whole numbers from 0 up, or too many.
std::optional<Shape> sizes_of(const Pickle& pickle, const PickleValue& value) {
  if (value.type != PickleType::tuple || value.items.size() > Shape::kMaxRank) return std::nullopt;
  Shape shape;
  for (const int item : value.items) {
    const auto& size = pickle[item];
    if (size.type != PickleType::integer || size.integer < 0) return std::nullopt;
    shape.push_back(size.integer);
  }
  return shape;
}

bool is_contiguous(const Shape& shape, const Shape& strides) {
  std::int64_t expected = 1;
  for (int i = shape.rank() - 1; i >= 0; --i) {
    if (shape[i] > 1 && strides[i] != expected) return false;
    expected *= shape[i];
  }
  return true;
}

}  // namespace

bool looks_like_torch(std::span<const std::byte> bytes) {
  return is_zip(bytes) || text_of(bytes).starts_with(kOldFormat);
}

TorchFile::TorchFile(const fs::path& path, std::string_view key)
    : file_(path),
      entries_(read_archive(file_)),
      root_(root_of(entries_, path)),
      pickle_(read_pickle(entries_, root_, path)) {
  const auto* state = key.empty() ? &pickle_.root() : pickle_.find(pickle_.root(), key);
  if (!state || state->type != PickleType::dictionary) {
    fail_user("{} holds no state dict{}", path.string(),
              key.empty() ? "" : fmt::format(" under the key \"{}\"", key));
  }
  for (std::size_t i = 0; i < state->items.size(); i += 2) {
    tensors_.push_back(read_tensor(pickle_[state->items[i]], pickle_[state->items[i + 1]]));
  }
}

// _rebuild_tensor_v2((("storage", type, entry, device, elements), offset, sizes, strides, ...)
StoredTensor TorchFile::read_tensor(const PickleValue& name, const PickleValue& value) const {
  const auto refuse = [&]<typename... Args>(fmt::format_string<Args...> text, Args&&... args) {
    fail_user("{}: tensor \"{}\": {}", path().string(), name.text,
              fmt::format(text, std::forward<Args>(args)...));
  };
  const auto item = [&](const PickleValue& of, std::size_t i, PickleType type) -> const PickleValue& {
    if (i >= of.items.size() || pickle_[of.items[i]].type != type)
      refuse("its description is not that of a tensor: the file is damaged");
    return pickle_[of.items[i]];
  };
  if (name.type != PickleType::string) fail_user("{}: a name in the state dict is no text", path().string());
  if (value.type != PickleType::call || pickle_[value.items[0]].text != kRebuild)
    refuse("it is no tensor, and a state dict has nothing else");
  const auto& arguments = pickle_[value.items[1]];
  const auto& storage = item(item(arguments, 0, PickleType::persistent), 0, PickleType::tuple);
  const auto& global = item(storage, 1, PickleType::global);
  const auto type = std::ranges::find(kStorages, global.text, &StorageType::global);
  if (type == kStorages.end()) refuse("its storage is of type {}: the file is damaged", global.text);
  const auto& key = item(storage, 2, PickleType::string);
  const auto* entry = find_entry(entries_, fmt::format("{}data/{}", root_, key.text));
  if (!entry) refuse("the archive has no entry data/{} with its elements: the file is damaged", key.text);

  const auto offset = item(arguments, 1, PickleType::integer).integer;
  const auto shape = sizes_of(pickle_, item(arguments, 2, PickleType::tuple)),
             strides = sizes_of(pickle_, item(arguments, 3, PickleType::tuple));
  if (!shape || !strides || shape->rank() != strides->rank())
    refuse("its sizes are not at most {} whole numbers with a stride for each", Shape::kMaxRank);
  const auto bytes = checked_bytes(*shape, type->bytes);
  if (bytes < 0) refuse("its shape {} overflows", shape->to_string());
  if (!is_contiguous(*shape, *strides)) {
    refuse("its shape {} is stored with the strides {}, not row by row; save {}.contiguous()",
           shape->to_string(), strides->to_string(), name.text);
  }
  const auto stored = static_cast<std::int64_t>(entry->data.size() / type->bytes);
  if (offset < 0 || offset > stored || bytes / static_cast<std::int64_t>(type->bytes) > stored - offset) {
    refuse("its {} elements from element {} on do not lie in data/{}, which has {}: the file is damaged",
           shape->count(), offset, key.text, stored);
  }
  return {
      std::string(name.text), std::string(type->name), type->dtype, *shape,
      entry->data.subspan(static_cast<std::size_t>(offset) * type->bytes, static_cast<std::size_t>(bytes))};
}

}  // namespace shoal
