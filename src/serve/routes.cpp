#include "serve/routes.h"

namespace shoal::serve {

std::string route_of(const std::string& path) {
  for (const std::string route : {kCompletionsRoute, kModelsRoute, kHealthRoute, kMetricsRoute}) {
    if (path == route) return route;
  }
  const std::string model = std::string(kModelsRoute) + "/";  // a name follows
  return path.starts_with(model) && path.size() > model.size() ? kModelsRoute : kOtherRoute;
}

}  // namespace shoal::serve
