#include "config/libraries.h"

#include <fmt/format.h>

#include <toml++/toml.h>

namespace shoal {

std::vector<Library> config_libraries() {
  return {{"toml++", fmt::format("{}.{}.{}", TOML_LIB_MAJOR, TOML_LIB_MINOR, TOML_LIB_PATCH), "configs"}};
}

}  // namespace shoal
