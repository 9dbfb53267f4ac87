#include "report/libraries.h"

#include <fmt/format.h>
#include <google/protobuf/stubs/common.h>

#include <nlohmann/json.hpp>

namespace shoal {

std::vector<Library> report_libraries() {
  return {
      {"protobuf", google::protobuf::internal::VersionString(GOOGLE_PROTOBUF_VERSION), "TensorBoard events"},
      {"nlohmann-json",
       fmt::format("{}.{}.{}", NLOHMANN_JSON_VERSION_MAJOR, NLOHMANN_JSON_VERSION_MINOR,
                   NLOHMANN_JSON_VERSION_PATCH),
       "metadata, metrics, manifests"}};
}

}  // namespace shoal
