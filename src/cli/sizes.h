// Output that `shoal size` and `shoal train --dry-run` share.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "config/memory.h"
#include "model/unit.h"

namespace shoal::cli {

// Says, where a config leaves its layout to the planner, that what is printed is of the layout in it.
void note_automatic_plan(const Config& config);

// "  name                      value  remark"
void print_line(const std::string& name, const std::string& value, const std::string& remark = {});

std::string flops_text(double flops);  // "859.3 MFLOP"

// The optimizer's state per parameter: "two moments".
std::string optimizer_text(const RunPlan& plan);

// Sets model.vocab_size where the config leaves it to the data, which may not exist yet. Returns its source
// in words.
std::string resolve_vocabulary(Config& config);

// "8 layers, 8 heads, width 512, block 128, vocabulary 65 (model.vocab_size)"
std::string describe(const GptConfig& model, const std::string& vocabulary_source);

// Bytes of a file with only the parameters in float32.
double parameter_file_bytes(const std::vector<UnitSpec>& units);

// Prints the memory of a rank by category, and the memory of all ranks on this host beside the available
// memory. The data need not exist.
void print_memory(const RunPlan& plan, const DataConfig& data, const RankCounts& ranks);

}  // namespace shoal::cli
