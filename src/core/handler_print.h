// Messages of signal handlers, which may call little else.
#pragma once

#include <unistd.h>

#include <cstring>
#include <initializer_list>

namespace shoal {

// Prints a line of its own on standard error, over a progress bar where there is one.
inline void print_from_handler(std::initializer_list<const char*> parts) {
  const auto print = [](const char* text) {
    [[maybe_unused]] const auto ignored = ::write(2, text, std::strlen(text));
  };
  if (::isatty(2) != 0) print("\r\033[K");
  for (const char* part : parts) print(part);
  print("\n");
}

}  // namespace shoal
