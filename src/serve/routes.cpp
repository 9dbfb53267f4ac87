#include "serve/routes.h"

namespace shoal::serve {

std::string route_of(const std::string& path) {
  for (const std::string route : {kCompletionsRoute, kModelsRoute, kHealthRoute, kMetricsRoute}) {
    if (path == route) return route;
  }
  return path.starts_with(std::string(kModelsRoute) + "/") ? kModelsRoute : kOtherRoute;
}

}  // namespace shoal::serve
