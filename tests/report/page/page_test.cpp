// Tests of the page of runs: its data, that nothing of a file becomes markup, and that it loads nothing.
#include "report/page/page.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "model/unit.h"
#include "report/page/template.h"

namespace shoal {
namespace {

using nlohmann::json;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

int count(std::string_view text, std::string_view word) {
  int found = 0;
  for (auto at = text.find(word); at != std::string::npos; at = text.find(word, at + 1)) ++found;
  return found;
}

// The data of a page, read as a browser does: up to the first end of a script.
json data_of(const std::string& page) {
  constexpr std::string_view kBefore = "<script id=\"data\" type=\"application/json\">";
  const auto begin = page.find(kBefore) + kBefore.size();
  return json::parse(page.substr(begin, page.find("</script", begin) - begin));
}
json page_data(std::vector<PageRun> runs, int refresh = 0) {
  return data_of(runs_page(std::move(runs), refresh));
}

Config tiny_config() {
  Config config;
  config.model.n_layer = 4;
  config.model.n_head = 2;
  config.model.n_embd = 16;
  config.model.block_size = 8;
  config.model.vocab_size = 32;
  config.train.global_batch = 8;
  config.train.micro_batch = 2;
  config.train.steps = 20;
  config.parallel.data = 1;
  return config;
}

PageRun run_of(const std::string& name, const Config& config) {
  PageRun run{.name = name, .folder = "/runs/" + name, .config = config, .plan = config};
  run.metrics.evals = {{.step = 0, .train_loss = 3.5, .val_loss = 3.4},
                       {.step = 10, .train_loss = 2.25, .val_loss = 2.5, .val_accuracy = 0.25},
                       {.step = 20, .train_loss = 2, .val_loss = 2.75, .val_accuracy = 0.5}};
  for (const int step : {10, 20}) {
    run.metrics.steps.push_back({.step = step,
                                 .loss = 30.0 / step,
                                 .lr = 1e-3,
                                 .grad_norm = 1.5,
                                 .tokens = step * 64,
                                 .tokens_per_s = 640,
                                 .ms_per_step = 100,
                                 .memory_per_rank = 1e6});
  }
  return run;
}

TEST(Page, HasTheCurvesAndFiguresOfARun) {
  const auto config = tiny_config();
  const auto data = page_data({run_of("a", config)}, 7);
  EXPECT_EQ(data["refresh"], 7);
  const auto& run = data["runs"][0];
  EXPECT_EQ(run["name"], "a");
  EXPECT_EQ(run["step"], 20);
  EXPECT_EQ(run["steps"], 20);
  EXPECT_EQ(run["flops_per_token"], flops_per_token(to_gpt_config(config.model)));
  EXPECT_THAT(run["config"].get<std::string>(), HasSubstr("n_embd = 16"));
  const auto& curves = run["curves"];
  EXPECT_EQ(curves["loss"], json::parse(R"({"x": [10, 20], "y": [3, 1.5]})"));
  EXPECT_EQ(curves["val_loss"], json::parse(R"({"x": [0, 10, 20], "y": [3.4, 2.5, 2.75]})"));
  EXPECT_EQ(curves["val_accuracy"]["y"], json::parse("[null, 0.25, 0.5]"));
  EXPECT_EQ(curves["clock"],
            json::parse(R"({"step": [0, 10, 20], "tokens": [0, 640, 1280], "seconds": [0, 1, 2]})"));
  EXPECT_FALSE(curves.contains("peak_share"));  // not known
  EXPECT_FALSE(curves.contains("consensus_distance"));
  const auto& finals = run["finals"];
  EXPECT_EQ(finals["last"]["val_loss"], 2.75);
  EXPECT_EQ(finals["best"]["step"], 10);
  EXPECT_EQ(finals["tokens"], 1280);
  EXPECT_EQ(finals["seconds"], 2);
  EXPECT_EQ(finals["tokens_per_s"], 640);
  EXPECT_TRUE(finals["peak_share"].is_null());
}

TEST(Page, HasTextsOfSomeEvaluationsTheNewestFirst) {
  auto run = run_of("a", tiny_config());
  run.metrics.evals[0].samples = {"first"};
  run.metrics.evals[2].samples = {"last", "of two"};
  EXPECT_EQ(page_data({run})["runs"][0]["samples"],
            json::parse(R"([{"step": 20, "texts": ["last", "of two"]}, {"step": 0, "texts": ["first"]}])"));
  run.metrics.evals.assign(120, {.samples = {"text"}});
  run.metrics.evals.back().step = 1000;
  const auto many = page_data({run})["runs"][0]["samples"];
  EXPECT_EQ(many.size(), 40u);
  EXPECT_EQ(many[0]["step"], 1000);
}

TEST(Page, ComparesTheKeysOfRuns) {
  auto config = tiny_config();
  auto other = config;
  other.optim.lr = 0.5;
  other.run.name = "b";
  const auto rows = page_data({run_of("a", config), run_of("b", other)})["differences"]["rows"];
  ASSERT_EQ(rows.size(), 1u) << rows;
  EXPECT_EQ(rows[0]["key"], "optim.lr");
  EXPECT_EQ(rows[0]["values"], json::parse(R"(["0.0006", "0.5"])"));

  auto unknown = run_of("c", config);
  unknown.config.reset();
  const auto three = page_data({run_of("a", config), unknown, run_of("b", other)})["differences"]["rows"];
  EXPECT_EQ(three[0]["values"], json::parse(R"(["0.0006", null, "0.5"])"));

  const auto alone = page_data({run_of("a", other)})["differences"];
  EXPECT_EQ(alone["columns"], json::parse(R"(["default", "a"])"));
  EXPECT_TRUE(std::ranges::any_of(alone["rows"], [](const json& row) {
    return row["key"] == "optim.lr" && row["values"] == json::parse(R"(["0.0006", "0.5"])");
  }));
}

TEST(Page, ShowsThePlanAndAPipelinesSchedule) {
  auto config = tiny_config();
  config.parallel.pipeline = 2;
  const auto plans = page_data({run_of("plain", tiny_config()), run_of("stages", config)})["plans"];
  ASSERT_EQ(plans["schedules"].size(), 1u);
  EXPECT_EQ(plans["schedules"][0]["run"], 1);
  EXPECT_THAT(plans["schedules"][0]["svg"].get<std::string>(), HasSubstr("1F1B on 2 ranks, 4 micro-batches"));
  const auto row = [&](const std::string& key) {
    for (const auto& entry : plans["rows"]) {
      if (entry["key"] == key) return entry["values"];
    }
    return json();
  };
  EXPECT_EQ(row("ranks"), json::array({"1", "2 (2 stages)"}));
  EXPECT_EQ(row("batch")[0], "8 x 8 = 64 tokens, micro-batches of 2");
  EXPECT_THAT(row("stage 0")[1].get<std::string>(), HasSubstr("embedding"));
  EXPECT_TRUE(row("stage 0")[0].is_null());
}

TEST(Page, APlanThatCannotBeMadeIsANote) {
  auto run = run_of("a", tiny_config());
  run.plan->parallel.engine = EngineKind::gossip;
  run.plan->parallel.data = 4;
  run.plan->gossip.topology = "/nowhere/topology.toml";
  const auto data = page_data({run});
  EXPECT_THAT(data["runs"][0]["notes"][0].get<std::string>(), HasSubstr("/nowhere/topology.toml"));
}

TEST(Page, NothingOfARunBecomesMarkup) {
  const std::string name = "a</script><script>alert(1)</script><!--\"'&\xff";
  auto config = tiny_config();
  config.data.dir = "</SCRIPT ><img src=x onerror=alert(2)>";
  auto run = run_of(name, config);
  run.notes = {"</script>"};
  const auto page = runs_page({run}, 0);
  EXPECT_EQ(count(page, "</script"), count(kPageTemplate, "</script"));
  EXPECT_EQ(count(page, "<!--"), count(kPageTemplate, "<!--"));
  EXPECT_THAT(page, Not(HasSubstr("</SCRIPT")));
  const auto data = data_of(page);
  EXPECT_EQ(data["runs"][0]["name"], name.substr(0, name.size() - 1) + "\uFFFD");
  EXPECT_THAT(data["runs"][0]["config"].get<std::string>(), HasSubstr(config.data.dir));
}

TEST(Page, LoadsNothing) {
  auto config = tiny_config();
  config.parallel.pipeline = 2;
  auto page = runs_page({run_of("a", config)}, 5);
  EXPECT_THAT(page, HasSubstr("content=\"default-src 'none';"));
  constexpr std::string_view kNamespace = "http://www.w3.org/2000/svg";  // a name, which nothing loads
  for (auto at = page.find(kNamespace); at != std::string::npos; at = page.find(kNamespace))
    page.erase(at, kNamespace.size());
  for (const char* word :
       {"http://", "https://", " src=", "@import", "href=\"page", "fetch(", "XMLHttp", "import("})
    EXPECT_THAT(page, Not(HasSubstr(word)));
  EXPECT_EQ(count(page, "url("), count(page, "url(#"));
}

TEST(Page, LongCurvesKeepTheirExtremesGapsAndMeans) {
  PageRun run{.name = "long", .folder = "long"};
  constexpr int kSteps = 100'000;
  for (int step = 1; step <= kSteps; ++step) {
    run.metrics.steps.push_back({.step = step,
                                 .loss = step % 2 == 0 ? 2.0 : 4.0,
                                 .lr = 1,
                                 .grad_norm = NAN,
                                 .tokens = step * 10,
                                 .ms_per_step = 1000});
  }
  run.metrics.steps[70'000].loss = 50;
  run.metrics.steps[80'000].loss = NAN;
  const auto curves = page_data({run})["runs"][0]["curves"];
  const auto& loss = curves["loss"];
  EXPECT_LT(loss["x"].size(), 3000u);
  EXPECT_EQ(loss["x"].size(), loss["y"].size());
  EXPECT_TRUE(std::ranges::is_sorted(loss["x"].get<std::vector<double>>()));
  const auto at = [&](int step) {
    const auto found = std::ranges::find(loss["x"], json(step));
    return found == loss["x"].end() ? json("left out") : loss["y"][found - loss["x"].begin()];
  };
  EXPECT_EQ(at(70'001), 50);
  EXPECT_TRUE(at(80'001).is_null());
  EXPECT_EQ(loss["mean_x"].size(), 800u) << "of the bucket that begins with a NaN, too";
  EXPECT_EQ(loss["mean_x"].size(), loss["mean_y"].size());
  EXPECT_NEAR(loss["mean_y"][3].get<double>(), 3, 0.05);
  EXPECT_LT(curves["clock"]["step"].size(), 2000u);
  EXPECT_EQ(curves["clock"]["step"].back(), kSteps);
  EXPECT_EQ(curves["clock"]["seconds"].back(), kSteps);
  EXPECT_FALSE(curves.contains("grad_norm"));  // never finite
}

TEST(Page, ARunThatHasJustBegunHasATable) {
  PageRun run{.name = "new", .folder = "new", .notes = {"no config"}};
  const auto data = page_data({run});
  EXPECT_EQ(data["runs"][0]["step"], 0);
  EXPECT_TRUE(data["runs"][0]["finals"]["last"].is_null());
  EXPECT_FALSE(data["runs"][0].contains("flops_per_token"));
  EXPECT_TRUE(data["differences"]["rows"].empty());
  EXPECT_TRUE(data["plans"]["rows"].empty());
}

}  // namespace
}  // namespace shoal
