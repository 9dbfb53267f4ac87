#include "data/split_texts.h"

#include <gmock/gmock.h>

#include "data/temp_folder.h"

namespace shoal {
namespace {

using ::testing::HasSubstr;

// Each document is cut where the first pass counted its characters.
TEST(SplitTexts, FilesThatAppearBetweenPassesAreRefused) {
  const test::TempFolder folder;
  folder.write("in/a.txt", "the first text");
  PrepareOptions options;
  options.out = folder / "out";
  SplitSources sources;
  sources[0] = {{folder / "in"}};
  const SplitTexts texts(options, sources, nullptr);
  std::string read;
  const auto read_all = [&] {
    texts.read("reading", SplitTexts::Pass::all,
               {[&](std::string_view text, Split, std::string_view) { read += text; }, [](Split) {}});
  };
  read_all();
  EXPECT_EQ(read, "the first text");
  folder.write("in/b.txt", "the second text");
  EXPECT_THAT(test::user_error(read_all), HasSubstr("b.txt: the input has changed while it was read"));
}

}  // namespace
}  // namespace shoal
