#include "train/libraries.h"

#include <fmt/format.h>
#include <google/protobuf/stubs/common.h>

#include <toml++/toml.h>
#include <nlohmann/json.hpp>

namespace shoal {

std::vector<Library> train_libraries() {
  return {
      {"protobuf", google::protobuf::internal::VersionString(GOOGLE_PROTOBUF_VERSION), "TensorBoard events"},
      {"toml++", fmt::format("{}.{}.{}", TOML_LIB_MAJOR, TOML_LIB_MINOR, TOML_LIB_PATCH), "configs"},
      {"nlohmann-json",
       fmt::format("{}.{}.{}", NLOHMANN_JSON_VERSION_MAJOR, NLOHMANN_JSON_VERSION_MINOR,
                   NLOHMANN_JSON_VERSION_PATCH),
       "metadata, metrics, manifests"}};
}

}  // namespace shoal
