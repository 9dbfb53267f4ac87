#pragma once

namespace shoal {

extern const char* const kVersion;  // "0.2.0": CMakeLists.txt has it

}  // namespace shoal
