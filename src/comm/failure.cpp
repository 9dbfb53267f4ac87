#include "comm/failure.h"

#include <exception>

#include "core/error.h"
#include "core/process_limits.h"

namespace shoal {

std::string handled_failure() noexcept {
  if (!std::current_exception()) return "";
  try {
    try {
      throw;
    } catch (const StoppedByPeer&) {
      return "";
    } catch (const std::exception& error) {
      return message_of(error);
    }
  } catch (...) {
    return "unknown exception";
  }
}

}  // namespace shoal
