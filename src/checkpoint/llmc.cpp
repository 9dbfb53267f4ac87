#include "checkpoint/llmc.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>

#include "checkpoint/output_file.h"
#include "core/error.h"
#include "core/file.h"
#include "core/text.h"

namespace shoal {
namespace {

namespace fs = std::filesystem;

static_assert(std::endian::native == std::endian::little, "the format is little-endian");

constexpr std::int32_t kMagic = 20240326, kFloat32 = 3, kBfloat16 = 5;
constexpr std::int64_t kRowMultiple = 128;
using Header = std::array<std::int32_t, 256>;

struct LlmcModel {
  WeightsModel model;
  DType dtype = DType::f32;
  std::int64_t rows = 0;  // of the embedding's matrix
};

// In the order of the file.
std::vector<WeightsTensor> llmc_tensors(const WeightsModel& model) {
  auto with_biases = model;
  with_biases.bias = true;
  const auto tensors = weights_tensors(with_biases);
  const auto layers = static_cast<std::size_t>(model.n_layer), of_layer = (tensors.size() - 4) / layers;
  std::vector<WeightsTensor> ordered(tensors.begin(), tensors.begin() + 2);
  for (std::size_t kind = 0; kind < of_layer; ++kind) {
    for (std::size_t layer = 0; layer < layers; ++layer)
      ordered.push_back(tensors[2 + layer * of_layer + kind]);
  }
  ordered.insert(ordered.end(), tensors.end() - 2, tensors.end());
  return ordered;
}

// The bytes of all parameters; a double, since a header may claim any sizes, and exact for those of a file.
double promised_bytes(const LlmcModel& file) {
  const double c = file.model.n_embd, rows = static_cast<double>(file.rows) + file.model.n_positions;
  return static_cast<double>(size_of(file.dtype)) *
         (rows * c + file.model.n_layer * (12 * c * c + 13 * c) + 2 * c);
}

LlmcModel read_header(const MappedFile& file) {
  const auto path = file.path().string();
  Header header{};
  if (file.bytes().size() < sizeof header) {
    fail_user("{}: {} bytes are less than the header of llm.c's models, which has {}", path,
              file.bytes().size(), sizeof header);
  }
  std::memcpy(header.data(), file.bytes().data(), sizeof header);
  const auto [magic, version, positions, vocabulary, layers, heads, width, rows] =
      std::array{header[0], header[1], header[2], header[3], header[4], header[5], header[6], header[7]};
  if (magic != kMagic) {
    fail_user("{} begins with {}, not with {} as llm.c's models do; is it another kind of file?", path, magic,
              kMagic);
  }
  if (version != kFloat32 && version != kBfloat16) {
    fail_user(
        "{}: version {} of llm.c's models; Shoal reads 3 (float32) and 5 (bfloat16): write it anew with a "
        "later "
        "llm.c",
        path, version);
  }
  if (std::min({positions, vocabulary, layers, heads, width}) < 1 || width % heads != 0 ||
      rows < vocabulary) {
    fail_user(
        "{}: the header describes no model ({} layers, {} heads, width {}, {} positions, vocabulary {} in {} "
        "rows); the file is damaged",
        path, layers, heads, width, positions, vocabulary, rows);
  }
  LlmcModel model{{.n_layer = layers,
                   .n_head = heads,
                   .n_embd = width,
                   .n_positions = positions,
                   .vocab_size = vocabulary},
                  version == kFloat32 ? DType::f32 : DType::bf16,
                  rows};
  const auto held = file.bytes().size() - sizeof header;
  if (promised_bytes(model) != static_cast<double>(held)) {
    fail_user(
        "{}: the header promises {} layers of width {}, a vocabulary of {} and {} positions, {:.0f} bytes, "
        "but {} "
        "follow it; the file is incomplete or damaged, get it again",
        path, layers, width, with_commas(vocabulary), with_commas(positions), promised_bytes(model), held);
  }
  return model;
}

class LlmcFile : public TensorFile {
 public:
  explicit LlmcFile(const fs::path& path) : file_(path), header_(read_header(file_)) {
    auto rest = file_.bytes().subspan(sizeof(Header));
    for (const auto& tensor : llmc_tensors(header_.model)) {
      const auto size = static_cast<std::size_t>(tensor.shape.count()) * size_of(header_.dtype);
      tensors_.push_back({tensor.name, header_.dtype == DType::f32 ? "F32" : "BF16", header_.dtype,
                          tensor.shape, rest.first(size)});
      // The embedding's matrix comes first, with more rows than the vocabulary has.
      const auto unused = tensors_.size() == 1 ? header_.rows - header_.model.vocab_size : 0;
      rest = rest.subspan(size +
                          static_cast<std::size_t>(unused * header_.model.n_embd) * size_of(header_.dtype));
    }
  }

  const fs::path& path() const override { return file_.path(); }
  const std::vector<StoredTensor>& tensors() const override { return tensors_; }
  const WeightsModel& model() const { return header_.model; }

 private:
  MappedFile file_;
  LlmcModel header_;
  std::vector<StoredTensor> tensors_;
};

std::int64_t rows_of(const WeightsModel& model) {
  return (model.vocab_size + kRowMultiple - 1) / kRowMultiple * kRowMultiple;
}

}  // namespace

bool looks_like_llmc(std::span<const std::byte> bytes) {
  return bytes.size() >= sizeof kMagic && std::memcmp(bytes.data(), &kMagic, sizeof kMagic) == 0;
}

WeightsModel read_llmc_model(const fs::path& file) { return read_header(MappedFile(file)).model; }

std::unique_ptr<WeightsReader> open_llmc(const fs::path& path) {
  auto file = std::make_unique<LlmcFile>(path);
  const auto model = file->model();
  TensorFiles files;
  files.push_back(std::move(file));
  return std::make_unique<WeightsReader>(std::move(files), model, LinearLayout::out_in, path, "header");
}

void write_llmc(const WeightsExport& what, SliceSource& from, const fs::path& path,
                const ExportProgress& progress) {
  const auto& model = what.model;
  if (what.dtype != DType::f32 && what.dtype != DType::bf16) {
    fail("llm.c's models are float32 or bfloat16, not {}", name_of(what.dtype));
  }
  const Header header{kMagic,
                      what.dtype == DType::f32 ? kFloat32 : kBfloat16,
                      model.n_positions,
                      static_cast<std::int32_t>(model.vocab_size),
                      model.n_layer,
                      model.n_head,
                      model.n_embd,
                      static_cast<std::int32_t>(rows_of(model))};
  OutputFile file(path);
  file.write(std::as_bytes(std::span(header)));
  WeightsStream stream(
      what, from, [&](std::span<const std::byte> bytes) { file.write(bytes); }, progress);
  const auto tensors = llmc_tensors(model);
  stream.write(tensors.front());
  stream.write_zeros((rows_of(model) - model.vocab_size) * model.n_embd);
  for (std::size_t i = 1; i < tensors.size(); ++i) stream.write(tensors[i]);
  file.finish();
}

std::uint64_t llmc_bytes(const WeightsExport& what) {
  const auto unused = static_cast<std::uint64_t>(rows_of(what.model) - what.model.vocab_size) *
                      static_cast<std::uint64_t>(what.model.n_embd);
  return stored_bytes(llmc_tensors(what.model), what.dtype) + unused * size_of(what.dtype);
}

}  // namespace shoal
