// shoal sample, on a model after a few training steps.
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>

#include <csignal>
#include <cstdlib>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>
#include <thread>

#include "cli/tiny_runs.h"
#include "core/cores.h"
#include "core/file.h"

namespace shoal::test {
namespace {

using Json = nlohmann::json;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

constexpr const char* kSampledConfig = R"(
[data]
dir = "data"
[model]
n_layer = 2
n_head = 2
n_embd = 32
block_size = 16
[train]
global_batch = 4
steps = 20
threads = 1
[optim]
lr = 1e-2
[eval]
interval = 20
batches = 1
at_start = false
)";

// The run is trained once for all tests of this file.
class Sample : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    folder_ = new TempDir;
    write_file(*folder_ / "tiny.toml", kSampledConfig);
    ASSERT_EQ(run({"prepare", "synthetic", "--out", "data"}, folder_->path()).code, 0);
    const auto trained = run({"train", "tiny.toml"}, folder_->path());
    ASSERT_EQ(trained.code, 0) << trained.err;
  }
  static void TearDownTestSuite() {
    delete folder_;
    folder_ = nullptr;
  }

  static std::vector<std::string> command(std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), {"sample", "--checkpoint", "runs/tiny"});
    return arguments;
  }
  static Result sample(std::vector<std::string> arguments) {
    return run(command(std::move(arguments)), folder_->path());
  }
  static std::string text(std::vector<std::string> arguments) {
    const auto result = sample(std::move(arguments));
    EXPECT_EQ(result.code, 0) << result.err;
    return result.out;
  }

  static inline TempDir* folder_ = nullptr;
};

TEST_F(Sample, ContinuesThePromptAndSaysHowFast) {
  const auto result = sample({"--prompt", "the ", "--max-tokens", "50"});
  EXPECT_EQ(result.code, 0);
  EXPECT_THAT(result.out, StartsWith("the "));
  EXPECT_THAT(result.out.size(),
              testing::AnyOf(4 + 50, 4 + 50 + 1));  // plus a newline, unless the text ends with one
  EXPECT_EQ(result.out.back(), '\n');
  EXPECT_THAT(result.err, HasSubstr("50 tokens in "));
  EXPECT_THAT(result.err, HasSubstr("tokens/s"));
}

TEST_F(Sample, PrintsJsonWithLogprobs) {
  const auto out =
      text({"--prompt", "the ", "--max-tokens", "8", "--json", "--logprobs", "2", "--samples", "2"});
  std::istringstream lines(out);
  int count = 0;
  for (std::string line; std::getline(lines, line); ++count) {
    const auto json = nlohmann::json::parse(line);
    EXPECT_EQ(json["index"], count);
    EXPECT_EQ(json["prompt"], "the ");
    EXPECT_EQ(json["finish_reason"], "length");
    EXPECT_EQ(json["tokens"].size(), 8u);
    ASSERT_EQ(json["logprobs"].size(), 8u);
    for (const auto& token : json["logprobs"]) {
      ASSERT_EQ(token["top"].size(), 2u);
      EXPECT_GE(token["top"][0]["logprob"], token["top"][1]["logprob"]);
      EXPECT_LE(token["logprob"], token["top"][0]["logprob"]);
    }
  }
  EXPECT_EQ(count, 2);
  const auto stopped =
      text({"--prompt", "the ", "--max-tokens", "400", "--json", "--stop", "e", "--stop", "a"});
  const auto json = nlohmann::json::parse(stopped);
  EXPECT_EQ(json["finish_reason"], "stop");
  EXPECT_THAT(std::string(json["text"]), Not(testing::AnyOf(HasSubstr("e"), HasSubstr("a"))));
}

// The reference is the data's own text behind the prompt.
TEST_F(Sample, TakesPromptsFromTheData) {
  const std::vector<std::string> arguments = {"--from-split",  "val", "--prompt-tokens", "12",
                                              "--max-tokens",  "10",  "--samples",       "2",
                                              "--temperature", "0"};
  const auto out = text(arguments);
  const auto begin = out.find("PROMPT: ") + 8, output = out.find("\nOUTPUT: "),
             end = out.find("\nREFERENCE: ");
  ASSERT_NE(end, std::string::npos) << out;
  EXPECT_EQ(output - begin, 12u);
  EXPECT_THAT(out, testing::ContainsRegex("---------------\nPROMPT: "));
  const auto whole =
      text({"--from-split", "val", "--prompt-tokens", "22", "--max-tokens", "0", "--samples", "1"});
  EXPECT_THAT(whole, HasSubstr(out.substr(begin, 12) + out.substr(end + 12, 10)));
  EXPECT_EQ(text(arguments), out);
  EXPECT_EQ(sample({"--from-split", "test"}).code, 2) << "these data have none";
}

TEST_F(Sample, PromptAndTextOfASplitMustFitIt) {
  const auto most = std::to_string(std::numeric_limits<std::int64_t>::max());
  for (const auto& tokens : {std::string("10000000"), most}) {
    expect_user_error(sample({"--from-split", "val", "--max-tokens", tokens}), "data/val.bin has ",
                      "--prompt-tokens 20", "--max-tokens " + tokens);
  }
  // The train split leaves out text that the run did not train on.
  const std::vector<std::string> train = {"--from-split", "train", "--max-tokens", "79"};
  const auto part = [&](const std::string& setting) {
    auto arguments = train;
    arguments.push_back(setting);
    return sample(arguments);
  };
  const auto tokens = static_cast<double>(fs::file_size(*folder_ / "data/train.bin") / 2);
  EXPECT_EQ(part(fmt::format("data.truncate={}", 100.5 / tokens)).code, 0);
  expect_user_error(part(fmt::format("data.truncate={}", 99.5 / tokens)), "data/train.bin has 99 tokens");
}

TEST_F(Sample, PromptsOfAnotherTokenizerAreNoticed) {
  const std::vector<std::string> from_data = {"--from-split", "val", "--max-tokens", "4", "--samples", "1"};
  const auto from = [&](const std::string& data) {
    auto arguments = from_data;
    arguments.push_back("data.dir=" + data);
    return sample(arguments);
  };
  EXPECT_THAT(sample(from_data).err, Not(HasSubstr("vocabulary")));
  write_file(*folder_ / "text.txt", "bcd" + std::string(4000, 'a'));
  ASSERT_EQ(
      run({"prepare", "text", "text.txt", "--out", "smaller", "--tokenizer", "char"}, folder_->path()).code,
      0);
  const auto smaller = from("smaller");
  EXPECT_EQ(smaller.code, 0) << smaller.err;
  EXPECT_THAT(smaller.err, HasSubstr("it was prepared with another tokenizer"));
  ASSERT_EQ(
      run({"prepare", "text", "text.txt", "--out", "larger", "--tokenizer", "bytes"}, folder_->path()).code,
      0);
  expect_user_error(from("larger"), "larger has a vocabulary of 25", "the model one of ",
                    "data of the model's own tokenizer");
}

TEST_F(Sample, ContinuesEachLineOfItsInput) {
  write_file(*folder_ / "lines", "the \nking");
  const auto first = text({"--prompt", "the ", "--max-tokens", "9", "--temperature", "0"}).substr(4);
  for (const std::string tensor : {"1", "2"}) {
    const auto command = "cd " + folder_->path().string() + " && " + SHOAL_BINARY +
                         " sample --checkpoint runs/tiny --interactive --max-tokens 9 --temperature 0 "
                         "parallel.tensor=" +
                         tensor + " <lines >out 2>err";
    ASSERT_EQ(std::system(command.c_str()), 0) << read_file(*folder_ / "err");
    EXPECT_THAT(read_file(*folder_ / "out"), StartsWith(first));
    EXPECT_THAT(read_file(*folder_ / "err"), HasSubstr("18 tokens in "));
  }
}

// There may be more lines than beams.
TEST_F(Sample, ABeamSearchContinuesEachLineOfItsInput) {
  const auto best = [&](const std::string& prompt) {
    return text({"--prompt", prompt, "--max-tokens", "9", "--beams", "2"}).substr(prompt.size());
  };
  write_file(*folder_ / "lines", "the \nking\r\nthe \n");
  const auto command = "cd " + folder_->path().string() + " && " + SHOAL_BINARY +
                       " sample --checkpoint runs/tiny --interactive --max-tokens 9 --beams 2 <lines >out "
                       "2>err";
  ASSERT_EQ(std::system(command.c_str()), 0) << read_file(*folder_ / "err");
  EXPECT_EQ(read_file(*folder_ / "out"), best("the ") + best("king") + best("the "));
}

// A text is that of its prompt alone, whatever lines are beside it.
TEST_F(Sample, ContinuesEachLineOfAFile) {
  write_file(*folder_ / "two", "a\nb\n");
  expect_user_error(sample({"--prompts", "two", "--samples", "9223372036854775807"}), "--samples");
  const std::vector<std::string> lines = {"a", "bca", "cab"};
  write_file(*folder_ / "prompts.txt", "a\nbca\ncab\n");
  const auto texts = [](const std::string& out) {
    std::vector<std::string> found;
    std::istringstream rows(out);
    for (std::string row; std::getline(rows, row);) {
      const auto json = nlohmann::json::parse(row);
      found.push_back(json["prompt"].get<std::string>() + "|" + json["text"].get<std::string>());
    }
    return found;
  };
  const auto all = [&](std::vector<std::string> more) {
    more.insert(more.end(), {"--json", "--samples", "2", "--max-tokens", "6"});
    return texts(text(more));
  };
  std::vector<std::string> expected;
  for (const auto& line : lines) {
    const auto alone = all({"--prompt", line});
    expected.insert(expected.end(), alone.begin(), alone.end());
  }
  EXPECT_EQ(all({"--prompts", "prompts.txt"}), expected);
  EXPECT_EQ(all({"--prompts", "prompts.txt", "--batch", "2", "--ranks", "2"}), expected);
  write_file(*folder_ / "windows.txt", "a\r\nbca\r\ncab\r\n");
  EXPECT_EQ(all({"--prompts", "windows.txt"}), expected);
  write_file(*folder_ / "none.txt", "");
  EXPECT_THAT(sample({"--prompts", "none.txt"}).err, HasSubstr("the file has no line"));
}

TEST_F(Sample, PenaltiesAvoidRepetition) {
  const std::vector<std::string> greedy = {"--prompt",      "the ", "--max-tokens", "40",
                                           "--temperature", "0",    "--json"};
  auto penalized = greedy;
  penalized.insert(penalized.end(), {"--presence-penalty", "1000"});
  const auto tokens = nlohmann::json::parse(text(penalized))["tokens"];
  EXPECT_EQ(std::set<int>(tokens.begin(), tokens.end()).size(), tokens.size());
  const auto plain = nlohmann::json::parse(text(greedy))["tokens"];
  EXPECT_LT(std::set<int>(plain.begin(), plain.end()).size(), plain.size());
}

TEST_F(Sample, TheCacheAndThreadsChangeNothing) {
  for (const std::string dtype : {"train.dtype=float32", "train.dtype=bfloat16"}) {
    for (const bool int8 : {false, true}) {
      const auto written = [&](std::vector<std::string> how) {
        how.insert(how.end(), {"--prompt", "the ", "--max-tokens", "60", dtype});
        if (int8) how.push_back("--int8");
        return text(how);
      };
      const auto cached = written({});
      EXPECT_EQ(written({"--no-cache"}), cached);
      EXPECT_EQ(written({"--threads", "2"}), cached);
    }
  }
}

// The largest error of a weight is half of a 127th of its row's largest.
TEST_F(Sample, WeightsInEightBitsLoseLittle) {
  const auto loss = [&](std::vector<std::string> how) {
    how.insert(how.begin(), {"eval", "--checkpoint", "runs/tiny"});
    const auto result = run(how, folder_->path());
    EXPECT_EQ(result.code, 0) << result.err;
    return std::stod(result.out.substr(result.out.find("loss") + 4));
  };
  const double whole = loss({}), in_8_bits = loss({"--int8"});
  EXPECT_NE(whole, in_8_bits);
  EXPECT_NEAR(whole, in_8_bits, 1e-3 * whole);
  EXPECT_EQ(loss({"--int8", "--ranks", "2"}), in_8_bits);
  expect_user_error(run({"eval", "--checkpoint", "runs/tiny", "--int8", "--ranks", "2", "parallel.zero=3"},
                        folder_->path()),
                    "parallel.zero=0");
}

TEST_F(Sample, SamplesAreAddressedBySeedAndNumber) {
  const auto one = text({"--max-tokens", "40"});
  const auto three = text({"--max-tokens", "40", "--samples", "3"});
  EXPECT_THAT(three, StartsWith(one + "---------------\n"));
  EXPECT_EQ(text({"--max-tokens", "40"}), one);
  EXPECT_NE(text({"--max-tokens", "40", "--seed", "2"}), one);
  EXPECT_EQ(text({"--max-tokens", "40", "--temperature", "0"}),
            text({"--max-tokens", "40", "--temperature", "0", "--seed", "2"}));
}

// Characters are tokens here, so any stop string of two spans tokens.
TEST_F(Sample, EndsBeforeTheStopString) {
  const auto whole = text({"--prompt", "the ", "--max-tokens", "60"});
  const auto stop = whole.substr(24, 3);
  auto expected = whole.substr(0, whole.find(stop, 4));
  if (!expected.ends_with('\n')) expected += '\n';
  EXPECT_EQ(text({"--prompt", "the ", "--max-tokens", "60", "--stop", stop}), expected);
  EXPECT_EQ(text({"--prompt", "the ", "--max-tokens", "60", "--stop", stop, "run.seed=1"}), expected);
  for (const std::string& option : {"--stop=[" + stop + "]", "--stop=[" + stop + ",e]"})
    EXPECT_EQ(text({"--prompt", "the ", "--max-tokens", "60", option}), whole);
}

TEST_F(Sample, APromptLongerThanTheBlockIsCutWithAWarning) {
  std::string prompt;
  for (int i = 0; i < 10; ++i) prompt += "the ";
  write_file(*folder_ / "prompt.txt", prompt);
  const auto result = sample({"--prompt-file", "prompt.txt", "--max-tokens", "5"});
  EXPECT_EQ(result.code, 0);
  EXPECT_THAT(result.out, StartsWith(prompt));
  EXPECT_THAT(result.err, HasSubstr("40 tokens, but the model's block_size is 16; only the last 8 are used"));
}

TEST_F(Sample, PromptsThatTheVocabularyLacks) {
  write_file(*folder_ / "bad.txt", "the \xFF");
  expect_user_error(sample({"--prompt-file", "bad.txt"}), "0xFF at offset 4", "not UTF-8");
  expect_user_error(sample({"--prompt", "the \u20AC"}), "U+20AC", "offset 4", "vocabulary");
  expect_user_error(sample({"--prompt-file", "absent.txt"}), "absent.txt", "No such file");
  expect_user_error(sample({"--prompt-file", "runs"}), "runs is a folder");
  expect_user_error(sample({"--prompt", "a", "--prompt-file", "bad.txt"}), "--prompt");
}

TEST_F(Sample, OptionsOutOfRange) {
  expect_user_error(sample({"--temperature", "-1"}), "'-1' is not allowed; it takes a number, at least 0");
  expect_user_error(sample({"--top-p", "0"}), "--top-p", "above 0 and at most 1");
  expect_user_error(sample({"--top-k", "-5"}), "--top-k", "at least 0");
  expect_user_error(sample({"--max-tokens", "-1"}), "--max-tokens", "at least 0");
  expect_user_error(sample({"--samples", "0"}), "--samples", "at least 1");
  expect_user_error(sample({"--threads", "-1"}), "--threads", "at least 0");
  expect_user_error(sample({"--backend", "abacus"}), "abacus");
  expect_user_error(run({"sample", "--checkpoint", "runs/none"}, folder_->path()), "runs/none");
}

TEST_F(Sample, BeamsFindTheLikeliestTexts) {
  const auto texts_of = [&](std::vector<std::string> arguments) {
    arguments.insert(arguments.end(), {"--prompt", "the ", "--max-tokens", "10", "--json"});
    std::vector<Json> all;
    std::istringstream lines(text(arguments));
    for (std::string line; std::getline(lines, line);) all.push_back(Json::parse(line));
    return all;
  };
  const auto best = texts_of({"--beams", "4"});
  ASSERT_EQ(best.size(), 1u);
  EXPECT_LT(best[0]["score"], 0);
  const auto four = texts_of({"--beams", "4", "--samples", "4"});
  ASSERT_EQ(four.size(), 4u);
  EXPECT_EQ(four[0]["tokens"], best[0]["tokens"]);
  for (std::size_t i = 1; i < four.size(); ++i) {
    EXPECT_LE(four[i]["score"], four[i - 1]["score"]);
    EXPECT_NE(four[i]["tokens"], four[i - 1]["tokens"]);
  }
  EXPECT_EQ(texts_of({"--beams", "4", "--samples", "4", "--ranks", "2"}), four);
  const auto greedy = texts_of({"--temperature", "0", "--logprobs", "0"});
  double sum = 0;
  for (const auto& token : greedy[0]["logprobs"]) sum += token["logprob"].get<double>();
  EXPECT_GE(best[0]["score"].get<double>(), sum / 10 - 1e-6) << "a search finds no less than the greedy text";
  const auto one = texts_of({"--beams", "1"});
  EXPECT_EQ(one[0]["tokens"], greedy[0]["tokens"]);
  EXPECT_NEAR(one[0]["score"], sum / 10, 1e-6);

  expect_user_error(sample({"--beams", "2", "--samples", "3"}), "--beams 2", "--samples");
  expect_user_error(sample({"--beams", "2", "--temperature", "1"}), "--beams", "--temperature");
  expect_user_error(sample({"--beams", "2", "--max-tokens", "100"}), "tokens at most");
}

// Sums over ranks are rounded differently, so that texts are compared where the most likely token is taken.
TEST_F(Sample, TensorRanksShareAModel) {
  const std::vector<std::string> greedy = {"--prompt", "the ", "--temperature", "0", "--max-tokens", "40"};
  auto shared = greedy;
  shared.push_back("parallel.tensor=2");
  EXPECT_EQ(text(shared), text(greedy));

  const auto several = [&](const std::vector<std::string>& how) {
    std::vector<std::string> all = {"--samples", "5", "--max-tokens", "30", "parallel.tensor=2"};
    all.insert(all.end(), how.begin(), how.end());
    return text(all);
  };
  const auto once = several({});
  EXPECT_EQ(several({"--batch", "2"}), once);
  EXPECT_EQ(several({"--ranks", "4"}), once) << "two groups of two ranks";
}

TEST_F(Sample, RefusesMeshesThatDoNotFit) {
  expect_user_error(sample({"parallel.pipeline=2"}), "parallel.pipeline");
  expect_user_error(sample({"parallel.tensor=2", "--ranks", "3"}), "3 ranks", "parallel.tensor");
  expect_user_error(sample({"parallel.tensor=3"}), "heads");
  for (const char* ranks : {"2", "all"}) {
    if (usable_cores() == 1) continue;  // which are all
    expect_user_error(sample({"--interactive", "--ranks", ranks}), "--interactive", "without --ranks");
  }
}

TEST_F(Sample, AnInterruptEndsTheTextCleanly) {
  Process process(command({"--max-tokens", "1000000000"}), folder_->path());
  for (int i = 0; i < 1000 && process.out_so_far().size() < 100; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  process.signal(SIGINT);
  const auto result = process.wait();
  EXPECT_EQ(result.code, 0);
  EXPECT_GE(result.out.size(), 100u);
  EXPECT_EQ(result.out.back(), '\n');
  EXPECT_THAT(result.err, StartsWith("stopped: "));
}

TEST_F(Sample, AnInterruptEndsTheWaitForALine) {
  const auto lines = *folder_ / "pipe", out = *folder_ / "talk", err = *folder_ / "talk-err";
  ASSERT_EQ(::mkfifo(lines.c_str(), 0600), 0);
  const FileDescriptor input(::open(lines.c_str(), O_RDWR));  // so that the lines have no end
  ASSERT_EQ(::write(input.get(), "the \nking\n", 10), 10);
  const auto line = fmt::format(
      "cd '{}' && {{ trap - INT; exec {} sample --checkpoint runs/tiny --interactive --max-tokens 9 "
      "<pipe >talk 2>talk-err; }} & echo $! >'{}/pid'",
      folder_->path().string(), SHOAL_BINARY, folder_->path().string());
  ASSERT_EQ(std::system(line.c_str()), 0);
  const auto pid = std::stoi(read_file(*folder_ / "pid"));
  EXPECT_TRUE(eventually([&] { return read_file(out).size() >= 18; }));
  ::kill(pid, SIGTERM);
  EXPECT_TRUE(eventually([&] { return read_file(err).find("18 tokens in ") != std::string::npos; }));
  ::kill(pid, SIGKILL);
}

TEST_F(Sample, OutputThatCannotBeWrittenIsAnError) {
  if (!fs::exists("/dev/full")) GTEST_SKIP() << "there is no /dev/full here";
  const auto line =
      std::string(SHOAL_BINARY) + " sample --checkpoint runs/tiny --max-tokens 5 >/dev/full 2>err";
  const auto folder = folder_->path().string();
  EXPECT_EQ(WEXITSTATUS(std::system(("cd '" + folder + "' && " + line).c_str())), 2);
  EXPECT_THAT(read_file(*folder_ / "err"),
              HasSubstr("shoal: error: cannot write to standard output: No space left on device"));
}

}  // namespace
}  // namespace shoal::test
