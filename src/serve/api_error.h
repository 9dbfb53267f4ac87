// Errors of the HTTP interface, in the form of OpenAI's.
#pragma once

#include <string>

#include "core/error.h"

namespace shoal::serve {

// A request that is answered with an HTTP status and an error object.
struct ApiError : Error {
  // `param` names the field at fault, if one is.
  ApiError(int status_, const std::string& message, std::string param_ = "", std::string code_ = "")
      : Error(message), status(status_), param(std::move(param_)), code(std::move(code_)) {}

  int status;
  std::string param, code;
};

// {"error": {"message", "type", "param", "code"}}; "type" follows from the status.
std::string error_json(const ApiError& error);

}  // namespace shoal::serve
