// The paths that the server answers.
#pragma once

#include <string>

namespace shoal::serve {

inline constexpr const char* kCompletionsRoute = "/v1/completions";
inline constexpr const char* kModelsRoute = "/v1/models";
inline constexpr const char* kHealthRoute = "/health";
inline constexpr const char* kMetricsRoute = "/metrics";
inline constexpr const char* kOtherRoute = "other";

// The route of a path; that of one model is kModelsRoute.
std::string route_of(const std::string& path);

}  // namespace shoal::serve
