// A library that a room of the house is built on: each room says which, and what for.
#pragma once

#include <string>
#include <vector>

namespace shoal {

struct Library {
  std::string name, version, purpose;
};

std::vector<Library> core_libraries();

}  // namespace shoal
