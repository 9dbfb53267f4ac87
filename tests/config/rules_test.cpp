// The rules between keys: rules.txt has for each arguments that break it, with the whole message, and some
// that just keep it.
#include <gtest/gtest.h>

#include <fstream>
#include <iterator>
#include <sstream>

#include "config/config.h"
#include "core/error.h"

namespace shoal {
namespace {

std::string outcome_of(const std::string& arguments) {
  std::istringstream words(arguments);
  const std::vector<std::string> list{std::istream_iterator<std::string>(words), {}};
  try {
    parse_config("[data]\ndir = 'd'\n[train]\nsteps = 10\n", "c.toml", list);
  } catch (const UserError& error) {
    std::string message = error.what();
    for (const auto& argument : list) {
      const auto place = " (argument '" + argument + "')";
      for (std::size_t at; (at = message.find(place)) != std::string::npos;) message.erase(at, place.size());
    }
    return message;
  }
  return "accepted";
}

TEST(ConfigRules, SayWhatTheySayAndWhereTheyBegin) {
  std::ifstream file(SHOAL_SOURCE_DIR "/tests/config/rules.txt");
  int cases = 0;
  for (std::string arguments, expected; std::getline(file, arguments);) {
    if (arguments.empty() || arguments[0] == '#') continue;
    ASSERT_TRUE(std::getline(file, expected) && expected.starts_with("    ")) << arguments;
    EXPECT_EQ(outcome_of(arguments), expected.substr(4)) << arguments;
    ++cases;
  }
  EXPECT_GT(cases, 100);
}

}  // namespace
}  // namespace shoal
