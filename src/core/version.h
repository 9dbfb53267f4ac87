#pragma once

namespace shoal {

inline constexpr const char* kVersion = SHOAL_VERSION;

}  // namespace shoal
