// The commands in the comments of the configs and in the README: each is accepted and prints the documented
// figures.
#include <fmt/format.h>

#include <set>
#include <sstream>

#include "cli/run.h"
#include "ops/cpu/cpu.h"

namespace shoal::test {
namespace {

using Words = std::vector<std::string>;

const fs::path kRoot = SHOAL_SOURCE_DIR;

std::vector<fs::path> configs() {
  std::vector<fs::path> files;
  for (const auto& entry : fs::directory_iterator(kRoot / "configs")) {
    if (entry.is_regular_file()) files.push_back(entry.path());
  }
  std::ranges::sort(files);
  return files;
}

// A line of a document, `shoal size CONFIG   # 1.1 GiB`.
struct Command {
  Words words;         // the program and its arguments; "two words" in quotes are one
  std::string remark;  // after the #
};

Command read_command(const std::string& line) {
  Command command;
  std::string word;
  bool quoted = false, begun = false;
  const auto end_word = [&] {
    if (begun) command.words.push_back(word);
    word.clear();
    begun = false;
  };
  for (std::size_t i = 0; i < line.size(); ++i) {
    if (line[i] == '"') {
      quoted = !quoted;
      begun = true;
    } else if (line[i] == '#' && !quoted && !begun) {
      command.remark = line.substr(i + 1);
      break;
    } else if (line[i] == ' ' && !quoted) {
      end_word();
    } else {
      word += line[i];
      begun = true;
    }
  }
  end_word();
  return command;
}

// The comments of a config, without the #.
std::vector<std::string> comments(const fs::path& config) {
  std::vector<std::string> lines;
  std::istringstream text(read_file(config));
  for (std::string line; std::getline(text, line);) {
    if (line.starts_with('#')) lines.push_back(line.substr(1));
  }
  return lines;
}

// The lines that are indented and begin with a program: "   shoal train configs/quickstart.toml".
std::vector<Command> commands(const std::vector<std::string>& lines) {
  std::vector<Command> found;
  for (const auto& line : lines) {
    auto command = read_command(line);
    static const std::set<std::string> kPrograms{"shoal", "mpirun", "sbatch"};
    if (line.starts_with("   ") && !command.words.empty() && kPrograms.contains(command.words[0]))
      found.push_back(std::move(command));
  }
  return found;
}

// `section.key=value ...` between backticks.
std::vector<Words> hints(const std::vector<std::string>& lines) {
  std::string text;
  for (const auto& line : lines) text += line;
  std::vector<Words> found;
  for (auto begin = text.find('`'); begin != std::string::npos; begin = text.find('`', begin + 1)) {
    const auto end = text.find('`', begin + 1);
    if (end == std::string::npos) break;
    const auto words = read_command(text.substr(begin + 1, end - begin - 1)).words;
    const auto sets = [](const std::string& word) { return word.find('.') < word.find('='); };
    if (!words.empty() && std::ranges::all_of(words, sets) && words[0].find('=') != std::string::npos)
      found.push_back(words);
    begin = end;
  }
  return found;
}

// "5.0 GiB" and the like.
std::vector<std::string> figures(const std::string& remark) {
  static const std::set<std::string> kUnits{"KiB", "MiB", "GiB", "MFLOP", "GFLOP", "TFLOP", "PFLOP"};
  std::vector<std::string> found;
  std::istringstream words(remark);
  for (std::string word, before; words >> word; before = word) {
    while (!word.empty() && std::ispunct(static_cast<unsigned char>(word.back()))) word.pop_back();
    if (kUnits.contains(word)) found.push_back(before + " " + word);
  }
  return found;
}

// The command for threads of one process that replaces mpirun or shoal launch, and the number of ranks.
Words without_launcher(Words words) {
  int ranks = 0;
  for (std::size_t i = 0; i + 1 < words.size(); ++i) {
    if (words[i] == "-n") ranks = std::stoi(words[i + 1]);
    if (words[i] != "--hosts") continue;
    std::istringstream hosts(words[i + 1]);
    for (std::string host; std::getline(hosts, host, ',');)
      ranks += std::stoi(host.substr(host.find(':') + 1));
  }
  const bool launch = words[0] == "shoal" && words[1] == "launch";
  if (words[0] == "mpirun" || launch) {
    const auto program = std::ranges::find(words, launch ? "--" : "shoal");
    words.erase(words.begin() + (launch ? 1 : 0), program + (launch ? 1 : 0));
    words.insert(words.end(), {"--ranks", std::to_string(ranks)});
  }
  words.erase(words.begin());
  return words;
}

// Documents say what a run takes with AVX-512 and its vectors of bfloat16; elsewhere, and with AMX, products
// have other buffers.
bool takes_what_is_documented(bool bfloat16) {
  return cpu_level() == CpuLevel::avx512_bf16 || (!bfloat16 && cpu_level() == CpuLevel::avx512);
}

class DocumentedCommands : public testing::Test {
 protected:
  DocumentedCommands() { fs::create_directory_symlink(kRoot / "configs", folder_ / "configs"); }

  Result accepted(const Words& words) const {
    auto result = run(words, folder_.path());
    EXPECT_EQ(result.code, 0) << testing::PrintToString(words) << "\n" << result.err;
    return result;
  }
  // Checks the plan of train and size, without data.
  void check_plan(const Command& command) const {
    if (command.words[0] == "sbatch") {
      for (const auto& word : command.words) {
        const bool path = word.find('/') != std::string::npos;
        EXPECT_TRUE(!path || fs::exists(kRoot / word)) << word;
      }
      return;
    }
    auto words = without_launcher(command.words);
    if (words[0] != "train" && words[0] != "size") return;
    if (words[0] == "train" && std::ranges::count(words, "--dry-run") == 0) words.push_back("--dry-run");
    words.push_back("train.threads=1");  // each thread takes scratch memory
    const auto result = accepted(words);
    if (!takes_what_is_documented(result.out.find("bfloat16") != std::string::npos)) return;
    for (const auto& figure : figures(command.remark))
      EXPECT_THAT(result.out, testing::HasSubstr(" " + figure)) << testing::PrintToString(words);
  }

  TempDir folder_;
};

TEST_F(DocumentedCommands, OfConfigsAreAcceptedAndPrintTheirFigures) {
  for (const auto& config : configs()) {
    const auto found = commands(comments(config));
    bool trains = false;
    for (const auto& command : found) {
      SCOPED_TRACE(config.string());
      check_plan(command);
      const auto words = command.words[0] == "sbatch" ? Words{} : without_launcher(command.words);
      trains = trains ||
               (!words.empty() && words[0] == "train" && words[1] == "configs/" + config.filename().string());
    }
    EXPECT_TRUE(trains) << config << " has no command to train it";
  }
}

TEST_F(DocumentedCommands, HintsOfConfigsAreAccepted) {
  std::size_t count = 0;
  for (const auto& config : configs()) {
    for (auto words : hints(comments(config))) {
      words.insert(words.begin(), {"train", "configs/" + config.filename().string(), "--dry-run"});
      accepted(words);
      ++count;
    }
  }
  EXPECT_GT(count, 10u);
}

TEST_F(DocumentedCommands, OfDocumentsAreAcceptedAndPrintTheirFigures) {
  std::vector<fs::path> documents = {kRoot / "README.md"};
  for (const auto& entry : fs::directory_iterator(kRoot / "docs")) {
    if (entry.path().extension() == ".md") documents.push_back(entry.path());
  }
  for (const auto& document : documents) {
    std::vector<std::string> lines;
    std::istringstream text(read_file(document));
    for (std::string line; std::getline(text, line);) lines.push_back(line);
    for (const auto& command : commands(lines)) {
      const bool whole = std::ranges::none_of(command.words, [](const std::string& word) {
        return word == "CONFIG" || word == "CONFIG.toml" || word == "..." || word.ends_with(":DIR");
      });
      if (!whole) continue;
      SCOPED_TRACE(document.string());
      check_plan(command);
    }
  }
}

// From files of the names that they give; GPT-2's vocabulary and the corpora are not there.
TEST_F(DocumentedCommands, OfConfigsPrepareTheirData) {
  std::size_t count = 0;
  for (const auto& config : configs()) {
    for (const auto& command : commands(comments(config))) {
      if (command.words[0] != "shoal" || command.words[1] != "prepare") continue;
      ++count;
      if (command.words[2] == "openwebtext")
        continue;  // looks for the vocabulary first: openwebtext_test.cpp
      const TempDir folder;
      auto words = without_launcher(command.words);
      for (auto& word : words) {
        if (word == "gpt2") word = "bytes";
        if (word == "FILES" || word.ends_with(".raw"))
          write_file(folder / word, fmt::format("{:a>400} text of {}", "", word));
      }
      if (words[1] == "synthetic") words.insert(words.end(), {"--size", "20000"});
      if (words[1] == "text" && std::ranges::count(words, "--tokenizer") == 0)
        words.insert(words.end(), {"--tokenizer", "bytes"});
      const bool fetches = words[1] != "text" && words[1] != "synthetic";
      if (fetches && std::ranges::count(words, "--from") == 0)
        words.insert(words.end(), {"--from", "absent"});
      const auto result = run(words, folder.path(), {"SHOAL_DATA_DIR="});
      EXPECT_EQ(result.code, fetches ? 2 : 0) << testing::PrintToString(words) << "\n" << result.err;
      if (fetches) expect_user_error(result, "absent");
    }
  }
  EXPECT_GE(count, configs().size());
}

// Each config in small, on a text of its own, with the commands that come after training.
TEST_F(DocumentedCommands, OfConfigsWorkFromTextToSamples) {
  const auto ships = [](int lines) {
    std::string text;
    for (int i = 0; i < lines; ++i) text += "The " + std::to_string(i) + " ships sail past the island.\n";
    return text;
  };
  write_file(folder_ / "a.txt", ships(400));
  write_file(folder_ / "test.txt", ships(10));
  write_file(folder_ / "prompt.txt", "The ships");
  for (const auto& config : configs()) {
    SCOPED_TRACE(config.string());
    const auto found = commands(comments(config));
    if (std::ranges::none_of(found, [](const Command& command) {
          return command.words[0] == "shoal" && command.words[1] == "sample";
        }))
      continue;
    const auto data = config.stem().string() + "-data";
    accepted({"prepare", "text", "a.txt", "--test", "test.txt", "--tokenizer", "char", "--out", data});
    accepted({"train", "configs/" + config.filename().string(), "data.dir=" + data, "init.from=scratch",
              "model.preset=", "model.n_layer=1", "model.n_head=2", "model.n_embd=16", "model.block_size=8",
              "model.vocab_size=0", "train.steps=2", "train.epochs=0", "train.global_batch=8",
              "train.micro_batch=1", "train.threads=1", "lr_schedule.warmup_steps=1", "eval.interval=2",
              "eval.epochs=0", "checkpoint.epochs=0"});
    for (const auto& command : found) {
      const auto& name = command.words[1];
      if (name != "eval" && name != "sample" && name != "plot" && name != "export") continue;
      auto words = without_launcher(command.words);
      if (std::ranges::count(words, "hf:openai-community/gpt2") > 0) continue;
      if (name == "sample" && std::ranges::count(words, "--max-tokens") == 0)
        words.insert(words.end(), {"--max-tokens", "4"});
      if (name == "sample" && std::ranges::count(words, "--prompt") > 0)
        *(std::ranges::find(words, "--prompt") + 1) = "The";
      accepted(words);
    }
  }
}

TEST(DocumentedCommand, IsReadAsAShellReadsIt) {
  const auto command =
      read_command("   shoal sample --prompt \"Once upon\" a=\"\"   # 1.1 GiB a rank, 4.4 TFLOP.");
  EXPECT_EQ(command.words, (Words{"shoal", "sample", "--prompt", "Once upon", "a="}));
  EXPECT_EQ(figures(command.remark), (Words{"1.1 GiB", "4.4 TFLOP"}));
  EXPECT_EQ(hints({" try `train.steps=1", " a.b=2`, `optim.decay` or `x`"}),
            (std::vector<Words>{{"train.steps=1", "a.b=2"}}));
  EXPECT_EQ(without_launcher({"mpirun", "-n", "4", "--bind-to", "none", "shoal", "train", "a.toml"}),
            (Words{"train", "a.toml", "--ranks", "4"}));
  EXPECT_EQ(without_launcher({"shoal", "launch", "--hosts", "a:2,b:3", "--", "train", "a.toml"}),
            (Words{"train", "a.toml", "--ranks", "5"}));
}

}  // namespace
}  // namespace shoal::test
