// GPT-2 as Hugging Face's transformers keeps it: a folder with config.json and model.safetensors or
// pytorch_model.bin (torch_file.h), or with an index, NAME.index.json, and the files that it names. Its
// linear layers (Conv1D) are stored [in, out], Shoal's are [out, in].
#pragma once

#include <filesystem>
#include <memory>

#include "checkpoint/weights_export.h"
#include "checkpoint/weights_reader.h"

namespace shoal {

// Biases are always there.
std::vector<WeightsTensor> hugging_face_tensors(const WeightsModel& model);

// The model of folder/config.json. Throws UserError, with what to do, when the folder is not there, the file
// is damaged, or it describes what Shoal's GPT-2 is not.
WeightsModel read_hugging_face_model(const std::filesystem::path& folder);

// Throws UserError as read_hugging_face_model, and when the files of tensors are missing, damaged, or hold
// other tensors than config.json promises.
std::unique_ptr<WeightsReader> open_hugging_face(const std::filesystem::path& folder);

// Writes config.json, generation_config.json and model.safetensors into a folder that exists; a model without
// biases gets zeros.
void write_hugging_face(const WeightsExport& what, SliceSource& from, const std::filesystem::path& folder,
                        const ExportProgress& progress = {});
std::uint64_t hugging_face_bytes(const WeightsExport& what);  // of all tensors

}  // namespace shoal
