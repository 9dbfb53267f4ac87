// A mapped file that another program cuts short raises SIGBUS where it is read next. This turns that into a
// message that names the file.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>

namespace shoal {

// From now on such a signal prints "shoal: error: ..." on standard error and ends the process with code 2, as
// a UserError does. Any other SIGBUS ends it as usual.
void explain_bus_errors();

// The memory of a mapped file, known to the handler as long as this lives.
class MappingRecord {
 public:
  MappingRecord() = default;  // of no memory
  MappingRecord(std::span<const std::byte> memory, std::string path);

  struct Entry;

 private:
  struct Free {
    void operator()(Entry* entry) const;
  };
  std::unique_ptr<Entry, Free> entry_;
};

}  // namespace shoal
