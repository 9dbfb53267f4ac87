#pragma once

#include <string_view>

namespace shoal {

// page.html with the style and the scripts beside it, put together by the build (cmake/page.cmake). Its data
// are `null`.
extern const std::string_view kPageTemplate;

}  // namespace shoal
