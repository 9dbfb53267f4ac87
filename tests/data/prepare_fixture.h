// The fixture of the tests of prepare(): prepares datasets in a folder of its own.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "data/prepare.h"
#include "data/temp_folder.h"
#include "data/token_ids.h"
#include "data/tokenizer.h"

namespace shoal {

class PrepareTest : public ::testing::Test {
 protected:
  PrepareOptions text(const std::vector<std::filesystem::path>& inputs, const std::string& tokenizer) const {
    PrepareOptions options;
    options.dataset = "text";
    options.out = folder / "out";
    options.inputs = inputs;
    options.tokenizer = tokenizer;
    options.threads = 2;
    options.force = true;  // many of these tests prepare several times
    options.fetch.from = test::shared_data().string();
    return options;
  }
  PrepareOptions of(const std::string& dataset) const {
    auto options = text({}, "gpt2");
    options.dataset = dataset;
    return options;
  }
  std::string decoded(const std::string& split) const {
    const Dataset data(folder / "out");
    return data.tokenizer().decode(test::ids_of(data.split(split)));
  }
  std::vector<std::string> left_behind() const {
    std::vector<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(folder.path())) {
      const auto name = entry.path().filename().string();
      if (name.starts_with("out")) names.push_back(name);
    }
    return names;
  }
  test::TempFolder folder;
};

}  // namespace shoal
