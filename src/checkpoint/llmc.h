// llm.c's models, NAME.bin: 256 int32 and the parameters. The first eight numbers are 20240326, the version
// (3: float32, 5: bfloat16), positions, vocabulary, layers, heads, width, and the rows of the embedding's
// matrix, the vocabulary rounded up to a multiple of 128. The tensors have GPT-2's order within a layer, but
// those of one kind stand together, layer by layer; linear layers are stored [out, in]. GELU is tanh, and
// biases are always there.
#pragma once

#include <filesystem>
#include <memory>

#include "checkpoint/weights_export.h"
#include "checkpoint/weights_reader.h"

namespace shoal {

// Whether a file begins with the format's number. Throws UserError when it cannot be read.
bool looks_like_llmc(std::span<const std::byte> bytes);

// Reads the header. Throws UserError when the file is missing, of another kind or version, or when its size
// is not what the header promises.
WeightsModel read_llmc_model(const std::filesystem::path& file);
std::unique_ptr<WeightsReader> open_llmc(const std::filesystem::path& file);

// Writes a tied model, version 3 for float32, 5 for bfloat16; other types throw Error. Rows beyond the
// vocabulary, and biases of a model without them, are zeros.
void write_llmc(const WeightsExport& what, SliceSource& from, const std::filesystem::path& file,
                const ExportProgress& progress = {});
std::uint64_t llmc_bytes(const WeightsExport& what);  // of all tensors

}  // namespace shoal
