#include "config/config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "config/optimizer_schemes.h"
#include "config/schema.h"
#include "core/error.h"

namespace shoal {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using Arguments = std::vector<std::string>;

constexpr const char* kMinimal = "[data]\ndir = 'd'\n[train]\nsteps = 10\n";

Config parse(const std::string& more, const Arguments& arguments = {}) {
  return parse_config(kMinimal + more, "c.toml", arguments);
}

// The message of the UserError that reading throws.
std::string config_error(const std::string& toml, const Arguments& arguments = {}) {
  try {
    parse_config(toml, "c.toml", arguments);
  } catch (const UserError& error) {
    return error.what();
  }
  return "no error";
}
std::string error_with(const std::string& more, const Arguments& arguments = {}) {
  return config_error(kMinimal + more, arguments);
}

TEST(Config, EveryKeyHasItsOwnMemberDefaultAndExplanation) {
  Config defaults;
  std::map<const void*, std::string> members;
  for (const auto& field : config_fields()) {
    const auto* member = std::visit(
        [](auto pointer) -> const void* {
          if constexpr (std::is_same_v<decltype(pointer), Choice>)
            return pointer.number;
          else
            return pointer;
        },
        field.ref(defaults));
    EXPECT_TRUE(members.emplace(member, field.name()).second)
        << field.name() << " shares " << members[member];
    EXPECT_FALSE(field.doc.empty()) << field.name();
    EXPECT_EQ(find_field(field.name()), &field);
    // A default must be allowed as an explicit value.
    Config copy;
    EXPECT_NO_THROW(apply_arguments(copy, Arguments{field.name() + "=" + field.value(defaults)}))
        << field.name();
  }
}

TEST(Config, EveryKeyCanBeSetAndIsWrittenAndReadBack) {
  // For each key, an allowed value other than the default.
  Arguments arguments;
  for (const auto& field : config_fields()) {
    std::string value;
    for (const std::string candidate :
         {"true", "false", "2", "64", "0.5", "0.25", "[0.5, 0.25]", "{\"a/b\" = 0.5, c = 2}", "word"}) {
      Config trial;
      try {
        apply_arguments(trial, Arguments{field.name() + "=" + candidate});
      } catch (const UserError&) {
        continue;
      }
      if (field.value(trial) != field.value(Config{})) value = candidate;
    }
    if (value.empty()) {
      ASSERT_FALSE(field.choices.empty()) << field.name();
      value = field.choices.back() == "hf:DIR" ? "hf:x" : std::string(field.choices.back());
    }
    arguments.push_back(field.name() + "=" + value);
  }
  Config changed;
  apply_arguments(changed, arguments);
  for (const auto& field : config_fields()) {
    EXPECT_NE(field.value(changed), field.value(Config{})) << field.name();
  }
  EXPECT_EQ(diff(Config{}, changed).size(), config_fields().size());
  EXPECT_TRUE(diff(config_from_json(to_json(changed), "test"), changed).empty());
}

TEST(Config, TomlReadsBackToTheSameConfig) {
  auto config = parse("[optim]\nlr = 0.1234567890123456789\nweight_decay = 1e-300\nbetas = [0.1, 0.2]\n");
  config.run.name = "a \"quoted\" name\\ with\ttab and ü";
  for (const bool comments : {false, true}) {
    const auto again = parse_config(to_toml(config, comments), "again.toml");
    EXPECT_THAT(diff(config, again), testing::IsEmpty()) << to_toml(config);
    EXPECT_EQ(again.optim.lr, config.optim.lr);
  }
}

TEST(Config, NumbersAreTakenInBothKindsWhereNothingIsLost) {
  const auto config = parse("[lr_schedule]\ndecay_steps = 1e6\n[optim]\nweight_decay = 1\n");
  EXPECT_EQ(config.lr_schedule.decay_steps, 1000000);
  EXPECT_EQ(config.optim.weight_decay, 1.0);
  EXPECT_THAT(
      error_with("[lr_schedule]\nwarmup_steps = 1.5\n"),
      AllOf(HasSubstr("c.toml:6: lr_schedule.warmup_steps = 1.5"), HasSubstr("an integer, at least 0")));
}

TEST(Config, ArgumentsComeAfterTheFileAndTheLastWins) {
  const auto config =
      parse("[optim]\nlr = 0.5\n", {"optim.lr=0.25", "--optim.betas=0.8,0.9", "optim.lr=1e-3", "run.name=123",
                                    "run.dir=\"my runs\"", "model.bias=false"});
  EXPECT_EQ(config.optim.lr, 1e-3);
  EXPECT_THAT(config.optim.betas, testing::ElementsAre(0.8, 0.9));
  EXPECT_EQ(config.run.name, "123");
  EXPECT_EQ(config.run.dir, "my runs");
  EXPECT_FALSE(config.model.bias);
  EXPECT_THAT(parse("", {"optim.betas=[0.7, 0.6]"}).optim.betas, testing::ElementsAre(0.7, 0.6));
  EXPECT_THAT(parse("", {"init.from=checkpoint:a=b.c"}).init.from, "checkpoint:a=b.c");
}

TEST(Config, PresetsSetSizesAndExplicitSizesOverrideThem) {
  auto model = parse("[model]\npreset = 'gpt2-xl'\n").model;
  EXPECT_THAT((std::array{model.n_layer, model.n_head, model.n_embd}), testing::ElementsAre(48, 25, 1600));
  model = parse("[model]\nn_layer = 2\nblock_size = 64\npreset = 'gpt2'\n").model;
  EXPECT_THAT((std::array{model.n_layer, model.n_head, model.n_embd}), testing::ElementsAre(2, 12, 768));
  // A preset given as an argument replaces the file's sizes, but no keys that presets do not set.
  model = parse("[model]\nn_layer = 2\nblock_size = 64\n", {"model.preset=gpt-nano", "model.n_head=6"}).model;
  EXPECT_THAT((std::array{model.n_layer, model.n_head, model.n_embd, model.block_size}),
              testing::ElementsAre(3, 6, 48, 64));
}

TEST(Config, EpochsGivenAloneReplaceTheInterval) {
  const Arguments epochs = {"data.sampling=epochs", "checkpoint.epochs=2", "eval.epochs=1"};
  auto config = parse("", epochs);
  EXPECT_EQ(config.checkpoint.interval, 0);
  EXPECT_EQ(config.eval.interval, 0);
  EXPECT_TRUE(diff(parse_config(to_toml(config), "again.toml"), config).empty());
  config = parse("[checkpoint]\ninterval = 7\n", epochs);
  EXPECT_EQ(config.checkpoint.interval, 7);
  EXPECT_EQ(config.checkpoint.epochs, 2);
}

TEST(Config, AnEvaluationsSizeIsGivenInSequencesOrInBatches) {
  EXPECT_EQ(eval_sequences(parse("global_batch = 6\n")), 256);
  EXPECT_EQ(eval_sequences(parse("global_batch = 6\n[eval]\nsequences = 10\n")), 10);
  EXPECT_EQ(eval_sequences(parse("global_batch = 6\n[eval]\nsequences = 0\n")), 0);
  EXPECT_EQ(eval_sequences(parse("global_batch = 6\n[eval]\nbatches = 5\n")), 30);
  EXPECT_EQ(eval_sequences(parse("global_batch = 6\n[eval]\nbatches = 0\n")), 0);
  EXPECT_EQ(eval_sequences(parse("global_batch = 6\n[eval]\nbatches = 5\n", {"train.global_batch=8"})), 40);
  EXPECT_THAT(error_with("[eval]\nbatches = 5\nsequences = 10\n"),
              AllOf(HasSubstr("eval.batches = 5 (c.toml:6)"), HasSubstr("eval.sequences = 10 (c.toml:7)"),
                    HasSubstr("give one of them")));
  EXPECT_THAT(error_with("[eval]\nbatches = 1000000000000\n"),
              HasSubstr("more than 1,099,511,627,776 sequences"));
}

// A later source replaces a length by one in the other unit.
TEST(Arguments, ReplaceLengthsInStepsByLengthsInTokens) {
  const std::string written =
      "[train]\nsteps = 100\n[data]\ndir = \"d\"\n[lr_schedule]\nwarmup_steps = 9\ndecay_tokens = 8000\n";
  const auto config = parse_config(written, "c.toml",
                                   Arguments{"lr_schedule.warmup_tokens=700", "lr_schedule.decay_steps=50"});
  EXPECT_EQ(config.lr_schedule.warmup_steps, 0);
  EXPECT_EQ(config.lr_schedule.warmup_tokens, 700);
  EXPECT_EQ(config.lr_schedule.decay_steps, 50);
  EXPECT_EQ(config.lr_schedule.decay_tokens, 0);
}

// An argument replaces the file's number of evaluated sequences, whichever key the file or the argument uses,
// also in a config that was written with all keys.
TEST(Config, AnArgumentReplacesAnEvaluationsSizeByEitherKey) {
  for (const auto& file : {parse("[eval]\nbatches = 5\n"), parse("[eval]\nsequences = 10\n"), parse("")}) {
    const auto written = to_toml(file);
    EXPECT_TRUE(diff(parse_config(written, "c.toml"), file).empty());
    EXPECT_EQ(eval_sequences(parse_config(written, "c.toml", Arguments{"eval.sequences=64"})), 64);
    EXPECT_EQ(eval_sequences(parse_config(written, "c.toml", Arguments{"eval.batches=2"})), 24);
  }
}

TEST(Config, UnknownNamesAreRefusedWithTheNearest) {
  EXPECT_THAT(error_with("[model]\nn_layers = 3\n"),
              AllOf(HasSubstr("c.toml:6:"), HasSubstr("did you mean model.n_layer?")));
  EXPECT_THAT(error_with("[modle]\nbias = true\n"), AllOf(HasSubstr("[modle]"), HasSubstr("model.bias")));
  EXPECT_THAT(error_with("[optimiser]\n"), HasSubstr("did you mean [optim]?"));
  EXPECT_THAT(error_with("lr = 1\n"), HasSubstr("did you mean optim.lr?"));  // in [train]
  EXPECT_THAT(config_error("lr = 1\n"), HasSubstr("c.toml:1: lr needs its section: optim.lr"));
  EXPECT_THAT(config_error("dir = 'x'\n"), HasSubstr("dir needs its section: run.dir or data.dir"));
  EXPECT_THAT(config_error("learning_rat = 1\n"), HasSubstr("unknown key learning_rat; "));
  EXPECT_THAT(config_error("n_layers = 1\n"), HasSubstr("did you mean model.n_layer?"));
  EXPECT_THAT(error_with("[train.optim]\nlr = 1\n"), AllOf(HasSubstr("train.optim")));
  EXPECT_THAT(error_with("", {"nonsense"}), HasSubstr("section.key=value"));
  EXPECT_THAT(error_with("", {"model.=3"}), HasSubstr("unknown key model."));
}

TEST(Config, WrongValuesNameWhatIsAllowed) {
  EXPECT_THAT(error_with("[model]\nbias = 1\n"),
              HasSubstr("model.bias = 1 is not allowed: it takes true or false"));
  EXPECT_THAT(error_with("[model]\ndropout = 1\n"), HasSubstr("at least 0 and below 1"));
  EXPECT_THAT(error_with("[optim]\nlr = nan\n"), HasSubstr("optim.lr = nan is not allowed"));
  EXPECT_THAT(error_with("[optim]\nlr = inf\n"), HasSubstr("optim.lr"));
  EXPECT_THAT(error_with("[optim]\nlr = -1e-3\n"), HasSubstr("above 0"));
  EXPECT_THAT(error_with("[optim]\nbetas = [0.9]\n"), HasSubstr("a list of 2 numbers"));
  EXPECT_THAT(error_with("[optim]\nbetas = ['a', 'b']\n"), HasSubstr("a list of 2 numbers"));
  EXPECT_THAT(error_with("[model]\ngelu = 'thanh'\n"), HasSubstr("did you mean \"tanh\"?"));
  EXPECT_THAT(error_with("[init]\nfrom = 'checkpoint:'\n"), HasSubstr("\"checkpoint:DIR\""));
  EXPECT_THAT(error_with("", {"train.global_batch=99999999999"}),
              HasSubstr("train.global_batch = 99999999999"));
  EXPECT_THAT(error_with("", {"train.global_batch=1e300"}), HasSubstr("train.global_batch"));
  EXPECT_THAT(error_with("", {"train.threads=\"1\"\nx = 3"}), HasSubstr("train.threads"));
  EXPECT_THAT(error_with("[run]\nseed = 1979-05-27\n"), HasSubstr("a date or time"));
}

TEST(Config, BrokenTomlNamesLineAndColumn) {
  EXPECT_THAT(config_error("[data]\ndir = \n"), HasSubstr("c.toml:2:7:"));
  EXPECT_THAT(error_with("steps = 11\n"), HasSubstr("c.toml:5:"));  // a duplicate
}

TEST(Config, JsonMistakesNameTheSource) {
  const auto json = nlohmann::ordered_json::parse(R"({"model": {"n_layer": "x"}})");
  try {
    config_from_json(json, "manifest.json");
    FAIL();
  } catch (const UserError& error) {
    EXPECT_THAT(error.what(), AllOf(HasSubstr("manifest.json"), HasSubstr("model.n_layer")));
  }
  EXPECT_THROW(config_from_json(nlohmann::ordered_json::parse("[1]"), "m"), UserError);
  EXPECT_THROW(config_from_json(nlohmann::ordered_json::parse(R"({"model": 3})"), "m"), UserError);
}

TEST(Config, DifferencesNameKeysAndValues) {
  const auto differences = diff(parse(""), parse("[model]\nn_layer = 3\n[optim]\nlr = 0.5\n"));
  ASSERT_EQ(differences.size(), 2u);
  EXPECT_EQ(differences[0].key, "model.n_layer");
  EXPECT_EQ(differences[0].a, "12");
  EXPECT_EQ(differences[0].b, "3");
  EXPECT_EQ(differences[1].key, "optim.lr");
}

// rules_test.cpp has all of them.
TEST(ConfigRules, NameTheKeysWithTheirPlace) {
  EXPECT_THAT(error_with("[model]\nn_head = 5\n"),
              HasSubstr("model.n_head = 5 (c.toml:6) does not divide model.n_embd = 768"));
  EXPECT_THAT(config_error("[data]\ndir = 'd'\n"), HasSubstr("train.steps"));
  EXPECT_THAT(config_error("[train]\nsteps = 1\n"), HasSubstr("data.dir is not set"));
  EXPECT_THAT(error_with("epochs = 2\n"), HasSubstr("both set the length"));
  EXPECT_THAT(error_with("", {"parallel.replicate=2"}), HasSubstr("parallel.replicate = 2 (argument"));
}

TEST(Config, StagesByHandAreAListOfIntegers) {
  const std::vector<std::string> pipeline = {"parallel.pipeline=2"};
  EXPECT_THAT(parse("").parallel.stages, testing::IsEmpty());
  const auto config = parse("[parallel]\nstages = [5, 7]\n", pipeline);
  EXPECT_THAT(config.parallel.stages, testing::ElementsAre(5, 7));
  EXPECT_THAT(to_toml(config), HasSubstr("stages = [5, 7]\n"));
  EXPECT_THAT(to_toml(parse("")), HasSubstr("stages = []\n"));
  EXPECT_TRUE(diff(config, parse_config(to_toml(config), "again")).empty());
  EXPECT_TRUE(diff(config, config_from_json(to_json(config), "json")).empty());
  EXPECT_THAT(parse("", {"parallel.pipeline=2", "parallel.stages=4,8"}).parallel.stages,
              testing::ElementsAre(4, 8));
  EXPECT_THAT(parse("[parallel]\nstages = [5, 7]\n", {"parallel.stages="}).parallel.stages,
              testing::IsEmpty());
  for (const std::string list : {"[6.5, 5.5]", "[12, 0]", "[3000000000]", "['a']", "6"}) {
    EXPECT_THAT(error_with("[parallel]\nstages = " + list + "\n"),
                HasSubstr("a list of integers, at least 1"))
        << list;
  }
}

TEST(ConfigRules, KeysThatAnOptimizerDoesNotReadAreKeys) {
  for (const auto& scheme : optimizer_schemes()) {
    for (const auto key : scheme.unread) {
      EXPECT_TRUE(key.empty() || find_field(key) != nullptr) << key;
    }
  }
}

TEST(ConfigRules, GossipIsBetweenWorkers) {
  const auto error = [](std::vector<std::string> settings) {
    settings.insert(settings.begin(), "parallel.engine=gossip");
    return error_with("", settings);
  };
  EXPECT_THAT(error({"gossip.topology=rink"}), AllOf(HasSubstr("gossip.topology"), HasSubstr("ring")));
  EXPECT_THAT(error({"gossip.worker_size=0"}), HasSubstr("gossip.worker_size"));
  EXPECT_THAT(error({"gossip.bucket_mib=0"}), HasSubstr("gossip.bucket_mib"));
  EXPECT_THAT(error({"gossip.clip=no"}), HasSubstr("gossip.clip"));
  const auto config = parse("", {"parallel.engine=gossip", "gossip.worker_size=2", "parallel.zero=3",
                                 "parallel.data=8", "parallel.tensor=2", "gossip.topology=file:mine.toml"});
  EXPECT_EQ(config.gossip.worker_size, 2);
  EXPECT_EQ(parse("", {"parallel.engine=gossip", "gossip.clip=bucket"}).gossip.clip, GossipClip::bucket);
  EXPECT_EQ(parse("", {"parallel.engine=gossip", "optim.ema=0.9"}).optim.ema, 0.9);
}

TEST(ConfigRules, AnArgumentReplacesWhetherTheFileEvaluates) {
  const auto eval_of = [](const std::string& eval, const std::string& argument) {
    const auto file = "[data]\ndir = 'd'\nsampling = 'epochs'\n[train]\nsteps = 10\n[eval]\n" + eval;
    return parse_config(file, "c.toml", Arguments{argument}).eval;
  };
  const auto never = eval_of("epochs = 2\n", "eval.interval=-1");
  EXPECT_EQ(never.interval, -1);
  EXPECT_EQ(never.epochs, 0);
  const auto by_epochs = eval_of("interval = -1\n", "eval.epochs=2");
  EXPECT_EQ(by_epochs.interval, 0);
  EXPECT_EQ(by_epochs.epochs, 2);
  EXPECT_EQ(eval_of("interval = -1\n", "eval.epochs=0").interval, -1);
}

// A gossip run may go on with all-reduce.
TEST(ConfigRules, AnArgumentForAllReduceReplacesTheFilesGossip) {
  const std::string gossip = "[parallel]\nengine = 'gossip'\n[gossip]\ntopology = 'ring'\nclip = 'bucket'\n";
  EXPECT_EQ(parse(gossip, {"parallel.engine=allreduce"}).gossip.topology, "exp");
  EXPECT_THAT(
      error_with(gossip, {"parallel.engine=allreduce", "gossip.clip=bucket"}),
      HasSubstr("gossip.topology = \"ring\" (c.toml:8) has no meaning without parallel.engine=gossip"));
}

TEST(ConfigRules, CheckpointsOfEarlierVersionsMayHaveKeysOfNoEffect) {
  auto config = parse("");
  config.gossip.topology = "ring";
  config.eval.interval = -1, config.eval.epochs = 2;
  const auto stored = stored_config(to_toml(config), "manifest.json");
  EXPECT_EQ(stored.gossip.topology, "exp");
  EXPECT_EQ(stored.eval.epochs, 0);
}

TEST(ConfigRules, ChunksGoWithInterleavedStages) {
  const auto config =
      parse("", {"parallel.pipeline=4", "parallel.chunks=3", "parallel.schedule=interleaved"});
  EXPECT_EQ(config.parallel.chunks, 3);
}

TEST(Config, ModelConfigBecomesTheModels) {
  const auto gpt = to_gpt_config(parse("[model]\ngelu = 'erf'\nbias = false\nvocab_size = 65\n").model);
  EXPECT_EQ(gpt.gelu, Gelu::erf);
  EXPECT_FALSE(gpt.bias);
  EXPECT_EQ(gpt.vocab_size, 65);
}

}  // namespace
}  // namespace shoal
