// Small files as torch.save writes them, byte by byte: pickles, and zip archives around them.
#pragma once

#include <fmt/format.h>

#include "checkpoint/huggingface_support.h"

namespace shoal::test {

// The little-endian bytes of a number.
template <typename T>
std::string raw(T number) {
  return {reinterpret_cast<const char*>(&number), sizeof number};
}

// Pieces of a pickle, protocol 2.
inline std::string pickled(std::string_view text) {
  return "X" + raw(static_cast<std::uint32_t>(text.size())) + std::string(text);
}
inline std::string pickled(std::int64_t number) {
  if (number < 0 || number > INT32_MAX) return "\x8a\x08" + raw(number);
  return number < 256 ? "K" + raw(static_cast<std::uint8_t>(number))
                      : "J" + raw(static_cast<std::int32_t>(number));
}
inline std::string pickled_tuple(const Shape& shape) {
  std::string items;
  for (int i = 0; i < shape.rank(); ++i) items += pickled(shape[i]);
  return "(" + items + "t";
}
inline std::string pickled_dictionary(const std::vector<std::pair<std::string, std::string>>& items) {
  std::string text = "}(";
  for (const auto& [key, value] : items) text += pickled(key) + value;
  return text + "u";
}

inline Shape row_major_strides(const Shape& shape) {
  Shape strides = shape;
  std::int64_t stride = 1;
  for (int i = shape.rank() - 1; i >= 0; --i) {
    strides[i] = stride;
    stride *= shape[i];
  }
  return strides;
}

// A tensor as a pickle describes it.
struct PickledTensor {
  std::string storage = "FloatStorage", key = "0";
  std::int64_t offset = 0;
  Shape shape{}, strides{};
  // Also where it does not fit 64 bits, which readers have to notice.
  std::int64_t elements() const {
    std::uint64_t count = 1;
    for (int i = 0; i < shape.rank(); ++i) count *= static_cast<std::uint64_t>(shape[i]);
    return static_cast<std::int64_t>(count);
  }
  std::string text() const {
    return "ctorch._utils\n_rebuild_tensor_v2\n((" + pickled("storage") + "ctorch\n" + storage + "\n" +
           pickled(key) + pickled("cuda:0") + pickled(elements()) + "tQ" + pickled(offset) +
           pickled_tuple(shape) + pickled_tuple(strides) + "\x89" + "ccollections\nOrderedDict\n)RtR";
  }
};

struct RawEntry {
  std::string name, data;
  std::uint16_t method = 0, flags = 0;
};

// Data start at multiples of 64 bytes, as PyTorch pads them. With `zip64` all numbers are in Zip64 records.
inline std::string zip_file(const std::vector<RawEntry>& entries, bool zip64 = false,
                            const std::string& comment = "") {
  std::string file, directory;
  for (const auto& entry : entries) {
    const auto at = file.size(), size = entry.data.size(), name = entry.name.size();
    const auto head = at + 30 + name + 4;
    const std::string padding = "FB" + raw(static_cast<std::uint16_t>((64 - head % 64) % 64)) +
                                std::string((64 - head % 64) % 64, 'Z');
    const auto in_32 = [&](std::size_t value) {
      return raw(zip64 ? 0xffffffffu : static_cast<std::uint32_t>(value));
    };
    const auto common = raw(entry.flags) + raw(entry.method) + std::string(8, '\0') + in_32(size) +
                        in_32(size) + raw(static_cast<std::uint16_t>(name));
    file += "PK\x03\x04" + raw(std::uint16_t{45}) + common + raw(static_cast<std::uint16_t>(padding.size())) +
            entry.name + padding + entry.data;
    const std::string extra = zip64 ? raw(std::uint16_t{7}) + raw(std::uint16_t{2}) + "ab" +
                                          raw(std::uint16_t{1}) + raw(std::uint16_t{24}) +
                                          raw(std::uint64_t{size}) + raw(std::uint64_t{size}) +
                                          raw(std::uint64_t{at})
                                    : "";
    directory += "PK\x01\x02" + raw(std::uint32_t{0}) + common +
                 raw(static_cast<std::uint16_t>(extra.size())) + std::string(10, '\0') + in_32(at) +
                 entry.name + extra;
  }
  const auto at = file.size(), count = entries.size();
  file += directory;
  if (zip64) {
    const auto at_64 = file.size();
    file += "PK\x06\x06" + raw(std::uint64_t{44}) + std::string(12, '\0') + raw(std::uint64_t{count}) +
            raw(std::uint64_t{count}) + raw(std::uint64_t{directory.size()}) + raw(std::uint64_t{at}) +
            "PK\x06\x07" + raw(std::uint32_t{0}) + raw(std::uint64_t{at_64}) + raw(std::uint32_t{1});
  }
  return file + "PK\x05\x06" + raw(std::uint32_t{0}) +
         raw(zip64 ? std::uint16_t{0xffff} : static_cast<std::uint16_t>(count)) +
         raw(zip64 ? std::uint16_t{0xffff} : static_cast<std::uint16_t>(count)) +
         raw(static_cast<std::uint32_t>(directory.size())) +
         raw(zip64 ? 0xffffffffu : static_cast<std::uint32_t>(at)) +
         raw(static_cast<std::uint16_t>(comment.size())) + comment;
}

// A file of torch.save: a pickle and its storages, by key.
inline std::string torch_archive(const std::string& pickle, const std::vector<RawEntry>& storages,
                                 const std::string& byte_order = "little") {
  std::vector<RawEntry> entries = {{"archive/data.pkl", "\x80\x02" + pickle + "."},
                                   {"archive/byteorder", byte_order}};
  for (const auto& storage : storages) entries.push_back({"archive/data/" + storage.name, storage.data});
  entries.push_back({"archive/version", "3\n"});
  return zip_file(entries);
}

// A state dict, an OrderedDict with its _metadata, and its storages.
struct PickledState {
  std::string text = "ccollections\nOrderedDict\n)R(";
  std::vector<RawEntry> storages;

  explicit PickledState(const std::vector<RawTensor>& tensors, const std::string& prefix = "") {
    for (const auto& tensor : tensors) {
      const auto key = std::to_string(storages.size());
      const char* storage = tensor.dtype == DType::f32    ? "FloatStorage"
                            : tensor.dtype == DType::bf16 ? "BFloat16Storage"
                            : tensor.dtype == DType::f16  ? "HalfStorage"
                                                          : "DoubleStorage";
      text += pickled(prefix + tensor.name) +
              PickledTensor{storage, key, 0, tensor.shape, row_major_strides(tensor.shape)}.text();
      storages.push_back({key, {reinterpret_cast<const char*>(tensor.data.data()), tensor.data.size()}});
    }
    text += "u}" + pickled("_metadata") + "}sb";
  }
};

inline std::string torch_file(const std::vector<RawTensor>& tensors) {
  const PickledState state(tensors);
  return torch_archive(state.text, state.storages);
}

}  // namespace shoal::test
