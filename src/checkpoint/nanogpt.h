// nanoGPT's models: ckpt.pt (torch_file.h), a dictionary of which "model" is the state dict and "model_args"
// its description; or the same state dict as safetensors with "model_args" as JSON in the metadata. Linear
// layers are stored [out, in], as in Shoal.
#pragma once

#include <filesystem>
#include <memory>

#include "checkpoint/weights_export.h"
#include "checkpoint/weights_reader.h"

namespace shoal {

// Reads "model_args". nanoGPT's GELU is exact since June 2023 and was tanh before, and its files do not say;
// files of write_nanogpt do. Throws UserError when the file is missing, damaged or no model of nanoGPT.
WeightsModel read_nanogpt_model(const std::filesystem::path& file);

// Throws UserError as read_nanogpt_model, and when the file holds other tensors than its model_args promise.
// Everything else in it, such as the optimizer's state, is ignored.
std::unique_ptr<WeightsReader> open_nanogpt(const std::filesystem::path& file);

// Writes the safetensors file of a tied model: model.load_state_dict(safetensors.torch.load_file(FILE)) reads
// it in nanoGPT.
void write_nanogpt(const WeightsExport& what, SliceSource& from, const std::filesystem::path& file,
                   const ExportProgress& progress = {});
std::uint64_t nanogpt_bytes(const WeightsExport& what);  // of all tensors, with the head's copy

}  // namespace shoal
