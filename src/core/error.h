// Errors. Every failure Shoal reports is one of two kinds, and the kind decides the exit code.
#pragma once

#include <fmt/format.h>

#include <stdexcept>
#include <string>
#include <utility>

namespace shoal {

// Something went wrong that is not the user's input: exit code 1.
struct Error : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// The user's input is at fault (config, files, arguments): exit code 2.
// The message says what is wrong, where (file, line, key), and what to do.
struct UserError : Error {
  using Error::Error;
};

// This rank ends because another one failed; that one says why, so this is not reported.
struct StoppedByPeer : Error {
  StoppedByPeer() : Error("another rank failed") {}
};

template <typename... Args>
[[noreturn]] void fail(fmt::format_string<Args...> format, Args&&... args) {
  throw Error(fmt::format(format, std::forward<Args>(args)...));
}

template <typename... Args>
[[noreturn]] void fail_user(fmt::format_string<Args...> format, Args&&... args) {
  throw UserError(fmt::format(format, std::forward<Args>(args)...));
}

}  // namespace shoal
