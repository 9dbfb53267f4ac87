// The log's lines during an action, as a log file gets them.
#pragma once

#include <functional>
#include <string>

#include "core/file.h"
#include "core/log.h"
#include "data/temp_folder.h"

namespace shoal::test {

inline std::string logged(const std::function<void()>& action) {
  const TempFolder folder;
  const auto file = folder / "log";
  log::attach_file(file);
  action();
  log::detach_file();
  return read_text(file, 1 << 20);
}

}  // namespace shoal::test
