// Damaged files: every file that the program reads, with bits flipped, cut short, with ranges that are
// missing or there twice, and with huge numbers. A command reads it well or ends with an error that names it;
// it never crashes, hangs, or takes all memory.
//
// Mutations are the same every time. SHOAL_MUTATIONS is their number for each file: 6 are the default, and 60
// take a few minutes.
//
//   SHOAL_MUTATIONS=60 build/release/tests/test_cli --gtest_filter='*MutatedFiles*'
#include <fmt/ranges.h>

#include <random>
#include <set>

#include "cli/tiny_runs.h"
#include "core/hash.h"
#include "data/llmc_files.h"

namespace shoal::test {
namespace {

using Bytes = std::string;

class Mutator {
 public:
  explicit Mutator(std::uint64_t seed) : random_(seed) {}

  Bytes mutate(Bytes bytes) {
    for (auto times = 1 + below(2); times > 0; --times) mutate_once(bytes);
    return bytes;
  }

 private:
  std::size_t below(std::size_t end) { return end == 0 ? 0 : random_() % end; }

  void mutate_once(Bytes& bytes) {
    const auto begin = below(bytes.size()), length = below(std::min<std::size_t>(bytes.size() - begin, 300));
    switch (below(10)) {
      case 0:
      case 1:
        if (!bytes.empty()) bytes[begin] ^= static_cast<char>(1 << below(8));
        break;
      case 2:
        bytes.resize(begin);
        break;
      case 3:
        bytes.erase(begin, length);
        break;
      case 4:
        bytes.insert(begin, bytes.substr(begin, length));
        break;
      case 5:
        for (auto i = begin; i < begin + length; ++i) bytes[i] = static_cast<char>(random_());
        break;
      case 6:
        overwrite_integer(bytes, begin);
        break;
      default:
        replace_number(bytes, begin);
    }
  }
  // One in a text, the next from `begin` on.
  void replace_number(Bytes& bytes, std::size_t begin) {
    static constexpr const char* kNumbers[] = {"18446744073709551615",
                                               "9223372036854775807",
                                               "-9223372036854775808",
                                               "4294967296",
                                               "2147483647",
                                               "-1",
                                               "0",
                                               "1e308",
                                               "1e999",
                                               "0.5"};
    const auto first = bytes.find_first_of("0123456789", begin);
    if (first == Bytes::npos) return;
    const auto end = std::min(bytes.find_first_not_of("0123456789", first), bytes.size());
    bytes.replace(first, end - first, kNumbers[below(std::size(kNumbers))]);
  }
  // Four or eight bytes of a binary file.
  void overwrite_integer(Bytes& bytes, std::size_t begin) {
    static constexpr std::uint64_t kIntegers[] = {
        ~0ull, ~0ull >> 1, 1ull << 63, 1ull << 40, (1ull << 31) - 1, 1ull << 31, 0};
    const auto value = kIntegers[below(std::size(kIntegers))];
    const auto size = below(2) == 0 ? 4u : 8u;
    begin -= begin % 4;
    for (std::size_t i = 0; i < size && begin + i < bytes.size(); ++i)
      bytes[begin + i] = static_cast<char>(value >> (8 * i));
  }

  std::mt19937_64 random_;
};

// A file, the commands that read it, and other words that may stand for its name in their errors.
struct Reading {
  std::string file;
  std::vector<std::vector<std::string>> commands;
  std::vector<std::string> names = {};
};

class MutatedFiles : public TinyRuns {
 protected:
  MutatedFiles() {
    make_files();
    fs::copy(file("runs/tiny"), file("kept"), kWithLinks);
    ::getrlimit(RLIMIT_AS, &before_);
    auto limit = before_;
    limit.rlim_cur =
        std::min<rlim_t>(limit.rlim_max, rlim_t{4} << 30);  // bytes, for all commands from now on
    if (!kSanitized) ::setrlimit(RLIMIT_AS, &limit);
  }
  ~MutatedFiles() override { ::setrlimit(RLIMIT_AS, &before_); }

  void make_files() const {
    Bytes text;
    for (int i = 0; i < 200; ++i) text += fmt::format("the {} of {} texts that are here.\n", i, i * i);
    write_file(file("text.txt"), text);
    write_file(file("records.jsonl"),
               "{\"text\":\"" + Bytes(900, 'a') + "\"}\n{\"text\":\"" + Bytes(900, 'b') + "\"}\n");
    write_file(file("task.jsonl"), R"({"context":"the","choices":[" of","texts"],"answer":1}
{"context":"of","choices":["the","here"],"answer":0}
)");
    write_file(file("words.jsonl"), "{\"text\":\"the of texts\"}\n{\"text\":\"that are here\"}\n");
    write_file(file("prompts.txt"), "the\nof\n");
    write_file(file("pairs.toml"), "name = \"pairs\"\nrounds = [[[0, 1], [2, 3]], [[0, 2], [1, 3]]]\n");
    write_file(file("steps.csv"),
               "gpus,global_batch,micro_batch,n_embd,n_head,n_layer,block_size,tensor,data,pipeline,step_ms\n"
               "8,64,4,2048,16,24,1024,1,8,1,520\n"
               "8,64,4,2048,16,24,1024,8,1,1,1900\n");
    fs::copy(kSource / "configs/clusters/a100.toml", file("cluster.toml"));
    const std::pair<const char*, const char*> kept[] = {
        {"documents/lines.gz", "two.jsonl.gz"}, {"documents/lines.xz", "two.jsonl.xz"},
        {"documents/two.tar", "two.tar"},       {"documents/two.targz", "two.tar.gz"},
        {"documents/two.zip", "two.zip"},       {"torch/ckpt-2.pt", "ckpt.pt"}};
    for (const auto& [from, to] : kept) fs::copy(kSource / "tests/fuzz/corpus" / from, file(to));
    const std::vector<std::uint16_t> tokens(200, 7);
    for (const char* name : {"nano/train.bin", "nano/val.bin"}) write_file(file(name), bytes_of(tokens));
    fs::copy(kSource / "tests/data/fixtures/nanogpt/meta-3.pkl", file("nano/meta.pkl"));
    for (const char* name : {"llmc/x_train_000001.bin", "llmc/x_train_000002.bin", "llmc/x_val_000000.bin"})
      write_file(file(name), llmc_file(tokens));

    work({"prepare", "text", "text.txt", "--tokenizer", "bpe:300", "--out", "text"});
    work({"train", "tiny.toml", "--ranks", "2", "--trace", "trace.json"});
    work({"train", "tiny.toml", "run.name=text", "data.dir=text", "train.steps=2"});
    work({"train", "tiny.toml", "run.name=tuned", "init.from=checkpoint:runs/text", "data.dir=text",
          "lora.rank=2", "train.steps=2"});
    work({"export", "--checkpoint", "runs/text", "--out", "hf"});
    // The tokenizer of models of one file.
    for (const char* name : {"vocab.json", "merges.txt"}) fs::copy(file("hf") / name, file(name));
    work({"export", "--checkpoint", "runs/tuned", "--out", "adapters", "--format", "peft"});
    work({"export", "--checkpoint", "runs/text", "--out", "gpt.bin", "--format", "llmc"});
    work({"export", "--checkpoint", "runs/text", "--out", "gpt.safetensors", "--format",
          "nanogpt-safetensors"});
  }
  void work(const Settings& command) const {
    const auto result = shoal(command);
    ASSERT_EQ(result.code, 0) << fmt::format("{}", fmt::join(command, " ")) << result.err;
  }

  // Takes away what a command has made, and what a resumed run has changed.
  void clean_up(const Settings& command) const {
    for (const char* made : {"new", "runs/new"}) fs::remove_all(file(made));
    if (std::ranges::find(command, "init.from=resume") == command.end()) return;
    fs::remove_all(file("runs/tiny"));
    fs::copy(file("kept"), file("runs/tiny"), kWithLinks);
  }

  void expect_handled(const Reading& reading, int number) const {
    const auto& command = reading.commands[static_cast<std::size_t>(number) % reading.commands.size()];
    SCOPED_TRACE(fmt::format("mutation {} of {}: shoal {}", number, reading.file, fmt::join(command, " ")));
    const auto whole = read_file(file(reading.file));
    Mutator mutator(fnv1a(reading.file) + static_cast<std::uint64_t>(number));
    write_file(file(reading.file), mutator.mutate(whole));
    Process process(command, folder_.path(), {"XDG_CACHE_HOME=" + file("cache").string()});
    EXPECT_TRUE(eventually([&] { return process.has_ended(); })) << "it hangs: " << process.err_so_far();
    if (!process.has_ended()) return;
    const auto result = process.wait();
    clean_up(command);
    write_file(file(reading.file), whole);
    if (result.code == 0) return;
    EXPECT_TRUE(result.code == 1 || result.code == 2) << result.code << result.err;
    auto names = reading.names;
    names.push_back(fs::path(reading.file).filename());
    const auto message = result.err.substr(std::min(result.err.find("shoal: error: "), result.err.size()));
    EXPECT_TRUE(std::ranges::any_of(names, [&](const auto& name) {
      return message.find(name) != std::string::npos;
    })) << result.err;
  }

  rlimit before_{};
  static inline const fs::path kSource = SHOAL_SOURCE_DIR;
  static constexpr auto kWithLinks = fs::copy_options::recursive | fs::copy_options::copy_symlinks;
};

std::vector<Reading> readings() {
  using Commands = std::vector<std::vector<std::string>>;
  const auto train = [](std::vector<std::string> settings) {
    settings.insert(settings.begin(),
                    {"train", "tiny.toml", "train.steps=1", "eval.batches=1", "run.name=new"});
    return settings;
  };
  const auto prepare = [](const std::string& name) {
    return Reading{name, {{"prepare", "text", name, "--tokenizer", "bytes", "--out", "new"}}};
  };
  const Commands of_run = {{"train", "tiny.toml", "--ranks", "2", "init.from=resume", "train.steps=21"},
                           {"eval", "--checkpoint", "runs/tiny", "--batches", "1"},
                           {"report", "runs/tiny", "-o", "page.html"},
                           {"plot", "runs/tiny", "-o", "curves.svg"}};
  const Commands of_checkpoint = {of_run[0],
                                  of_run[1],
                                  {"sample", "--checkpoint", "runs/tiny", "--max-tokens", "3"},
                                  {"checkpoint", "list", "runs/tiny", "--verify"},
                                  {"checkpoint", "inspect", "runs/tiny"},
                                  {"checkpoint", "verify", "runs/tiny"},
                                  {"export", "--checkpoint", "runs/tiny", "--out", "new"},
                                  train({"init.from=checkpoint:runs/tiny"})};
  const auto of_weights = [&](const std::string& weights) {
    return Commands{{"eval", "--checkpoint", weights, "data.dir=text"},
                    {"sample", "--checkpoint", weights, "--prompt", "the", "--max-tokens", "3"},
                    {"export", "--checkpoint", weights, "--out", "new"},
                    train({"data.dir=text", "init.from=" + weights})};
  };
  const Commands of_adapters = {
      {"export", "--checkpoint", "runs/text", "--adapter", "adapters", "--out", "new"},
      train({"data.dir=text", "init.from=checkpoint:runs/text", "lora.rank=2", "lora.from=adapters"})};
  const Commands of_cluster = {{"plan", "tiny.toml", "--ranks", "2", "--cluster", "cluster.toml"},
                               {"plan", "--table", "steps.csv", "--cluster", "cluster.toml"}};
  const std::string checkpoint = "runs/tiny/checkpoints/step-00000020/", step = "step-00000020";
  // Weights that are no numbers, which only some formats have checksums against.
  const std::vector<std::string> nan = {"weights are damaged", "first tensor that is not finite"};
  return {
      {"tiny.toml",
       {{"train", "tiny.toml", "--dry-run"}, {"config", "--dump", "tiny.toml"}, {"size", "tiny.toml"}}},
      {"data/meta.json", {train({}), of_run[1]}},
      {"data/train.bin", {train({}), of_run[0]}},
      {"data/val.bin", {train({}), of_run[1]}},
      {"text/meta.json", {train({"data.dir=text"}), {"eval", "--checkpoint", "runs/text"}}},
      {"nano/train.bin", {train({"data.dir=nano"})}},
      {"nano/meta.pkl", {train({"data.dir=nano"})}},
      {"llmc/x_train_000001.bin", {train({"data.dir=llmc"})}},
      {"runs/tiny/config.toml", of_run},
      {"runs/tiny/metrics.jsonl", of_run},
      {"runs/tiny/.lock", of_run},
      {checkpoint + "manifest.json", of_checkpoint, {step}},
      {checkpoint + "shard-00000-of-00002.safetensors", of_checkpoint, {step}},
      {"hf/config.json", of_weights("hf:hf")},
      {"hf/model.safetensors", of_weights("hf:hf"), nan},
      {"hf/vocab.json",
       {of_weights("hf:hf")[1], {"prepare", "text", "text.txt", "--tokenizer", "hf", "--out", "new"}}},
      {"hf/merges.txt",
       {of_weights("hf:hf")[1], {"prepare", "text", "text.txt", "--tokenizer", "hf", "--out", "new"}}},
      {"gpt.bin", of_weights("llmc:gpt.bin"), nan},
      {"gpt.safetensors", of_weights("nanogpt:gpt.safetensors"), nan},
      {"ckpt.pt", {of_weights("nanogpt:ckpt.pt")[2]}},
      {"adapters/adapter_config.json", of_adapters},
      {"adapters/adapter_model.safetensors", of_adapters, nan},
      {"pairs.toml",
       {{"gossip", "topology", "pairs.toml"},
        {"train", "tiny.toml", "--dry-run", "--ranks", "4", "parallel.engine=gossip",
         "gossip.topology=file:pairs.toml"}}},
      {"cluster.toml", of_cluster},
      {"steps.csv", {of_cluster[1]}},
      {"trace.json", {{"trace", "trace.json", "-o", "step.svg"}}},
      {"task.jsonl", {{"eval", "--checkpoint", "runs/text", "--task", "task.jsonl"}}},
      {"words.jsonl", {{"eval", "--checkpoint", "runs/text", "--task", "words.jsonl"}}},
      {"prompts.txt",
       {{"sample", "--checkpoint", "runs/text", "--prompts", "prompts.txt", "--max-tokens", "3"},
        {"sample", "--checkpoint", "runs/text", "--prompt-file", "prompts.txt", "--max-tokens", "3"}}},
      prepare("text.txt"),
      prepare("records.jsonl"),
      prepare("two.jsonl.gz"),
      prepare("two.jsonl.xz"),
      prepare("two.tar"),
      prepare("two.tar.gz"),
      prepare("two.zip"),
  };
}

TEST_F(MutatedFiles, AreReadOrNamed) {
  const char* given = std::getenv("SHOAL_MUTATIONS");
  const int mutations = given ? std::atoi(given) : 6;
  std::set<Settings> tried;
  for (const auto& reading : readings()) {
    for (const auto& command : reading.commands) {
      if (!tried.insert(command).second) continue;
      work(command);
      clean_up(command);
    }
    for (int number = 0; number < mutations; ++number) expect_handled(reading, number);
  }
}

}  // namespace
}  // namespace shoal::test
