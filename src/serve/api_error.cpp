#include "serve/api_error.h"

#include <nlohmann/json.hpp>

#include "core/json_text.h"

namespace shoal::serve {
namespace {

const char* type_of(int status) {
  switch (status) {
    case 401:
      return "authentication_error";
    case 429:
      return "rate_limit_error";
    default:
      return status < 500 ? "invalid_request_error" : "server_error";
  }
}

}  // namespace

std::string error_json(const ApiError& error) {
  using Json = nlohmann::ordered_json;
  const auto or_null = [](const std::string& text) { return text.empty() ? Json() : Json(text); };
  const Json json = {{"error",
                      {{"message", error.what()},
                       {"type", type_of(error.status)},
                       {"param", or_null(error.param)},
                       {"code", or_null(error.code)}}}};
  return json_text(json);
}

}  // namespace shoal::serve
