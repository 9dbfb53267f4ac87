// Errors of data folders, with a type of their own, so that a caller can add a remedy.
#pragma once

#include <filesystem>

#include "core/error.h"

namespace shoal {

struct DataError : UserError {
  enum class Fault : std::uint8_t {
    missing,          // there is no such folder
    file,             // a file, not a folder
    empty,            // the folder
    no_dataset,       // other files are in the folder
    vocabulary_file,  // meta.pkl cannot be used; the token ids can
    large_id,         // a token id past the vocabulary
  };
  DataError(Fault fault_, std::filesystem::path path_, const std::string& problem)
      : UserError(path_.string() + ": " + problem), fault(fault_), path(std::move(path_)) {}
  Fault fault;
  std::filesystem::path path;  // of the folder or file
};

}  // namespace shoal
