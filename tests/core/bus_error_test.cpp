#include "core/bus_error.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <filesystem>
#include <string>

#include "core/file.h"

namespace shoal {
namespace {

namespace fs = std::filesystem;
using testing::ExitedWithCode;

// Two files of a page and more, of which the second one is mapped where a third one was.
class BusErrors : public testing::Test {
 protected:
  BusErrors() : folder_(fs::temp_directory_path() / fmt::format("shoal-bus-{}", ::getpid())) {
    fs::create_directories(folder_);
    for (const char* name : {"first", "second", "third"})
      write_text(folder_ / name, std::string(100'000, 'x'));
  }
  ~BusErrors() override { fs::remove_all(folder_); }

  // Reads a byte that is not in the file any more.
  [[noreturn]] void read_beyond_the_end() const {
    explain_bus_errors();
    const MappedFile first(folder_ / "first");
    { const MappedFile third(folder_ / "third"); }
    MappedFile second(folder_ / "second");
    const MappedFile moved(std::move(second));
    fs::resize_file(folder_ / "second", 10);
    const auto* byte = reinterpret_cast<const volatile char*>(&moved.bytes()[50'000]);
    std::exit(*byte == 'x' ? 3 : 4);
  }

  fs::path folder_;
};

TEST_F(BusErrors, NameTheFileThatWasCutShort) {
  EXPECT_EXIT(read_beyond_the_end(), ExitedWithCode(2), "shoal: error: .*/second was cut short");
}

TEST_F(BusErrors, OfAnythingElseEndTheProcessAsUsual) {
  EXPECT_EXIT((explain_bus_errors(), ::raise(SIGBUS)), testing::KilledBySignal(SIGBUS), "");
}

}  // namespace
}  // namespace shoal
