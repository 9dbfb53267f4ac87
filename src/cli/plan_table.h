// shoal plan --table: measured steps of others beside the prediction.
#pragma once

#include <string>

namespace shoal::cli {

void print_table_of_steps(const std::string& table, const std::string& cluster, bool json);

}  // namespace shoal::cli
