#include "data/openwebtext.h"
#include "data/prepare.h"

#include <gmock/gmock.h>

#include <nlohmann/json.hpp>

#include "data/documents.h"
#include "data/packing.h"
#include "data/prepare_parts.h"
#include "data/temp_folder.h"
#include "data/tokenizer.h"

namespace shoal {
namespace {

namespace fs = std::filesystem;
using test::compress;
using test::Members;
using test::pack;
using test::Packing;
using test::read_file;
using test::TempFolder;
using test::user_error;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr Packing kXz = {ARCHIVE_FORMAT_TAR_USTAR, ARCHIVE_FILTER_XZ};

std::string number_name(const std::string& stem, int i, const std::string& ending) {
  return stem + fmt::format("{:04}", i) + ending;
}

// Document i, like a scraped page: words, paragraphs, other scripts, irregular white space.
std::string page(int i) {
  std::string text = fmt::format("\n\n  Title of page {}\r\n\r\n\r\n", i);
  for (int line = 0; line < 3 + i % 40; ++line) {
    text += fmt::format("It's line {} of {}, naïve — 日本語 {}.{}", line, i, line * 7919 % 1000,
                        line % 5 == 0 ? "\n\n\n\n" : "\n");
  }
  return text + std::string(static_cast<std::size_t>(i % 3), '\0');
}

std::string tidy_page(int i) {
  std::string text = page(i), tidy;
  std::erase(text, '\r');
  std::erase(text, '\0');
  for (const char c : text) {
    if (c != '\n' || !tidy.ends_with("\n\n")) tidy += c;
  }
  const auto begin = tidy.find_first_not_of(" \n");
  return tidy.substr(begin, tidy.find_last_not_of(" \n") + 1 - begin);
}

Members pages(int first, int end) {
  Members members;
  for (int i = first; i < end; ++i) members.emplace_back(number_name("", i, "-page.txt"), page(i));
  return members;
}

std::string records(int first, int end) {
  std::string lines;
  for (int i = first; i < end; ++i)
    lines += nlohmann::json({{"id", i}, {"text", tidy_page(i)}}).dump() + "\n";
  return lines;
}

class OpenWebText : public ::testing::Test {
 protected:
  void SetUp() override { SHOAL_NEEDS_SHARED("gpt2/encoder.json"); }

  PrepareOptions options(const std::vector<fs::path>& inputs, const std::string& out = "out") const {
    PrepareOptions result;
    result.dataset = "openwebtext";
    result.out = folder / out;
    result.inputs = inputs;
    result.seed = kOpenWebTextSeed;
    result.val_fraction = 0.05;
    result.threads = 2;
    result.force = true;
    result.fetch.from = test::shared_data().string();
    return result;
  }
  std::string bytes(const std::string& out = "out") const {
    return read_file(folder / out / "train.bin") + "|" + read_file(folder / out / "val.bin");
  }
  std::string result_of(const std::vector<fs::path>& inputs) const {
    prepare(options(inputs));
    return bytes();
  }
  // The same documents, prepared as general text.
  std::string expected(int documents) const {
    auto plain = options({folder.write("plain/all.jsonl", records(0, documents))}, "expected");
    plain.dataset = "text";
    prepare(plain);
    return bytes("expected");
  }
  // The distributed format: a tar.xz of xz-compressed tars with 60 documents each.
  fs::path corpus(int documents, const std::string& name = "openwebtext.tar.xz") const {
    Members subsets = {{"openwebtext/", ""}};
    for (int i = 0; i < documents; i += 60) {
      const auto inner = pack(folder / "inner", pages(i, std::min(i + 60, documents)), kXz);
      subsets.emplace_back(number_name("openwebtext/urlsf_subset", i, "_data.xz"), read_file(inner));
    }
    return pack(folder / name, subsets, kXz);
  }
  // The extracted subsets.
  fs::path subsets(int documents) const {
    fs::create_directories(folder / "subsets");
    for (int i = 0; i < documents; i += 60) {
      pack(folder / number_name("subsets/urlsf_subset", i, "_data.xz"), pages(i, std::min(i + 60, documents)),
           kXz);
    }
    return folder / "subsets";
  }
  // The texts of both splits, one after the other.
  std::string decoded() const {
    const Dataset data(folder / "out");
    std::string text;
    for (const std::string split : {"train", "val"}) {
      std::vector<std::int32_t> ids(static_cast<std::size_t>(data.split(split).size()));
      data.split(split).copy(0, ids);
      text += data.tokenizer().decode(ids);
    }
    return text;
  }
  std::string error_of(const fs::path& input) const {
    return user_error([&] { prepare(options({input})); });
  }
  bool left_behind() const { return fs::exists(folder / "out") || fs::exists(folder / "out.partial"); }

  TempFolder folder;
};

TEST_F(OpenWebText, NestedArchivesGiveEveryDocumentsTokensAndEndOfText) {
  const auto meta = prepare(options({corpus(250)}));
  const auto tokenizer = load_bpe_tokenizer(test::shared_data() / "gpt2");
  const SplitRule rule(kOpenWebTextSeed, 0.05,
                       250);  // with fewer than 10 / 0.05, exactly a share is val
  std::array<std::vector<std::int32_t>, 2> ids;
  for (int i = 0; i < 250; ++i) {
    auto& split = ids[static_cast<std::size_t>(rule(i))];
    tokenizer->encode(tidy_page(i), split);
    split.push_back(50256);
  }
  const Dataset data(folder / "out");
  for (const auto split : {Split::train, Split::val}) {
    const auto& file = split == Split::train ? data.train() : data.val();
    std::vector<std::int32_t> read(static_cast<std::size_t>(file.size()));
    file.copy(0, read);
    EXPECT_EQ(read, ids[static_cast<std::size_t>(split)]);
    EXPECT_EQ(file.bytes_per_token(), 2);
  }
  EXPECT_NO_THROW(data.verify_checksums());
  EXPECT_EQ(meta.dataset, "openwebtext");
  EXPECT_EQ(meta.vocab_size, 50257);
  EXPECT_FALSE(fs::exists(folder / "out.partial"));
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder / "out")) names.push_back(entry.path().filename());
  EXPECT_THAT(names, ::testing::UnorderedElementsAre("train.bin", "val.bin", "meta.json"));
}

TEST_F(OpenWebText, EveryPackagingGivesTheSame) {
  const auto all = expected(130);
  EXPECT_EQ(result_of({corpus(130)}), all);
  EXPECT_EQ(result_of({subsets(130)}), all);
  for (int i = 0; i < 130; ++i) folder.write(number_name("txt/", i, ".txt"), page(i));
  EXPECT_EQ(result_of({folder / "txt"}), all);
  EXPECT_EQ(result_of({pack(folder / "a.tar", pages(0, 40), {}),
                       pack(folder / "b.zip", pages(40, 130), {ARCHIVE_FORMAT_ZIP, ARCHIVE_FILTER_NONE})}),
            all);
  EXPECT_EQ(result_of({folder.write("a.jsonl", records(0, 130))}), all);
  EXPECT_EQ(result_of({compress(folder / "a.jsonl.gz", records(0, 50), ARCHIVE_FILTER_GZIP),
                       compress(folder / "b.jsonl.zst", records(50, 130), ARCHIVE_FILTER_ZSTD)}),
            all);
}

TEST_F(OpenWebText, ThreadsDoNotMatter) {
  auto with = options({corpus(300), folder.write("more.jsonl", records(300, 3000))});
  prepare(with);
  const auto two = bytes(), meta = read_file(folder / "out/meta.json");
  for (const int threads : {1, 3, 4}) {
    with.threads = threads;
    prepare(with);
    EXPECT_EQ(bytes(), two) << threads;
    EXPECT_EQ(read_file(folder / "out/meta.json"), meta);
  }
  with.seed = 1;
  prepare(with);
  EXPECT_NE(bytes(), two);
}

// An archive is truncated at any subset, as by an interrupted download. With the whole archive, the same call
// continues.
TEST_F(OpenWebText, GoesOnAfterADamagedFile) {
  const auto input = subsets(300);
  const auto undisturbed = result_of({input});
  const auto meta = read_file(folder / "out/meta.json");
  auto with = options({input});
  with.save_every = 0;
  with.val_fraction = 0.2;  // drawn from 50 documents on: the count does not reach the damage
  prepare(with);
  const auto whole = bytes();
  for (int broken = 60; broken < 300; broken += 60) {
    fs::remove_all(folder / "out");
    const auto file = input / number_name("urlsf_subset", broken, "_data.xz");
    const auto content = read_file(file);
    fs::resize_file(file, content.size() / 2);
    EXPECT_THAT(user_error([&] { prepare(with); }), AllOf(HasSubstr("urlsf_subset"), HasSubstr("damaged")));
    EXPECT_FALSE(fs::exists(folder / "out"));
    EXPECT_TRUE(fs::exists(folder / "out.partial/progress.json"));
    std::ofstream(file, std::ios::binary) << content;

    auto other = with;
    other.seed = 4;
    EXPECT_THAT(user_error([&] { prepare(other); }), AllOf(HasSubstr("other settings"), HasSubstr("seed 4")));
    with.threads = 1 + broken / 60;
    prepare(with);
    EXPECT_EQ(bytes(), whole);
    EXPECT_FALSE(fs::exists(folder / "out.partial"));
    EXPECT_FALSE(fs::exists(folder / "out/progress.json"));
  }
  EXPECT_EQ(result_of({input}), undisturbed);
  EXPECT_EQ(read_file(folder / "out/meta.json"), meta);
}

// Continues inside a single file: an archive too large for one thread, with texts and archives, and lines of
// records.
TEST_F(OpenWebText, GoesOnWithinAFile) {
  std::string text;  // so that the archive is large
  while (text.size() < 4'000'000) text += "some words, and again some words\n";
  Members members;
  for (int i = 0; i < 9; ++i) {
    members.emplace_back(number_name("a", i, ".txt"), text);
    members.emplace_back(number_name("b", i, ".xz"),
                         read_file(pack(folder / "inner", pages(60 * i, 60 * i + 60), kXz)));
    members.emplace_back(number_name("c", i, ".jsonl"), records(i * 500, i * 500 + 500));
  }
  const auto input = pack(folder / "all.tar", members, {});
  auto with = options({folder.write("first.txt", "the first"), input});
  with.save_every = 0;
  with.val_fraction = 0.2;
  prepare(with);
  const auto whole = bytes();
  const auto content = read_file(input);
  ASSERT_GT(content.size(), std::size_t{35} << 20);
  for (const double share : {0.5, 0.9}) {
    fs::resize_file(input, static_cast<std::size_t>(share * static_cast<double>(content.size())));
    EXPECT_THAT(user_error([&] { prepare(with); }), AllOf(HasSubstr("all.tar"), HasSubstr("damaged")));
    const auto progress = nlohmann::json::parse(read_file(folder / "out.partial/progress.json"));
    EXPECT_EQ(progress["files"], 1);
    EXPECT_GT(progress["tasks"], 1);
    std::ofstream(input, std::ios::binary) << content;
    prepare(with);
    EXPECT_EQ(bytes(), whole);
  }
  // Refused when another file is at the saved position, or before it.
  fs::resize_file(input, content.size() / 10 * 6);
  EXPECT_THAT(user_error([&] { prepare(with); }), HasSubstr("damaged"));
  auto other = content;
  other[1'000'000] ^= 1;
  std::ofstream(input, std::ios::binary) << other;
  EXPECT_THAT(user_error([&] { prepare(with); }), HasSubstr("the input has changed"));
  std::ofstream(input, std::ios::binary) << content;
  folder.write("first.txt", "another");
  EXPECT_THAT(user_error([&] { prepare(with); }), HasSubstr("the input has changed"));
  // Refused when the written files have changed.
  folder.write("out.partial/train.bin", "short");
  EXPECT_THAT(user_error([&] { prepare(with); }), AllOf(HasSubstr("train.bin"), HasSubstr("start over")));
}

// Texts of one MiB together are one task, whether they are of the current file or of those before it.
TEST_F(OpenWebText, GoesOnAfterFilesOfExactlyATask) {
  std::string text;
  while (text.size() < 16'384) text += "words of 16 byte";
  for (int i = 0; i < 64; ++i) folder.write(number_name("in/", i, ".txt"), text);
  const auto whole = read_file(pack(folder / "in/cut.xz", pages(0, 9), kXz));
  auto with = options({folder / "in"});
  with.save_every = 0;
  with.val_fraction = 0.2;  // the count does not reach the damage
  folder.write("in/cut.xz", whole.substr(0, whole.size() / 2));
  EXPECT_THAT(user_error([&] { prepare(with); }), HasSubstr("damaged"));
  folder.write("in/cut.xz", whole);
  EXPECT_NO_THROW(prepare(with));
}

// The warning counts the files skipped before and after the interruption, in archives and outside.
TEST_F(OpenWebText, CountsAllSkippedFilesAfterAnInterruption) {
  auto members = pages(0, 60);
  members.emplace_back("b.md", "in an archive");
  members.emplace_back("latin.txt", "caf\xe9");
  folder.write("in/a.md", "outside");
  folder.write("in/a.txt", "caf\xe9");
  pack(folder / "in/b.tar", members, {});
  const auto whole = read_file(pack(folder / "in/c.xz", {{"c.md", "after"}, {"c.txt", "text"}}, kXz));
  folder.write("in/d.md", "after");
  fs::create_directory_symlink(folder.path(), folder / "in/link");
  auto with = options({folder / "in"});
  with.save_every = 0;
  with.val_fraction = 0.2;  // the count does not reach the damage
  folder.write("in/c.xz", whole.substr(0, whole.size() / 2));
  EXPECT_THAT(user_error([&] { prepare(with); }), HasSubstr("damaged"));
  const auto progress = read_file(folder / "out.partial/progress.json");
  const auto prepared = [&] {
    folder.write("in/c.xz", whole);
    testing::internal::CaptureStderr();
    prepare(with);
    return testing::internal::GetCapturedStderr();
  };
  EXPECT_THAT(prepared(), AllOf(HasSubstr("skipped 4 files"), HasSubstr("read 2 files: not valid UTF-8")));
  // Progress that an older version saved has no counts.
  auto older = nlohmann::json::parse(progress);
  EXPECT_EQ(older["odd"]["skipped"]["count"], 1);
  EXPECT_EQ(older["odd_in_parcels"]["skipped"]["count"], 1);
  older.erase("odd");
  older.erase("odd_in_parcels");
  folder.write("in/c.xz", whole.substr(0, whole.size() / 2));
  EXPECT_THAT(user_error([&] { prepare(with); }), HasSubstr("damaged"));
  folder.write("out.partial/progress.json", older.dump());
  EXPECT_THAT(prepared(), AllOf(HasSubstr("skipped 2 files"), HasSubstr("in/link: links to folders")));
}

TEST_F(OpenWebText, InvalidUtf8SurvivesAndEmptyDocumentsGo) {
  folder.write("in/a.txt", "caf\xe9 \xff\xfe au lait");
  folder.write("in/b.txt", " \n\n\t ");
  folder.write("in/c.txt", "");
  folder.write("in/d.txt", std::string("nul\0inside", 10));
  folder.write("in/LICENSE", "no document");
  prepare(options({folder / "in"}));
  const auto text = decoded();
  const std::string a = "caf\xe9 \xff\xfe au lait<|endoftext|>",
                    d = std::string("nul\0inside", 10) + "<|endoftext|>";
  EXPECT_TRUE(text == a + d || text == d + a) << text;
}

// Without a safe cut a piece ends after 8 MiB, and then there is nothing left for the last one.
TEST_F(OpenWebText, ATextOfExactlyTheLargestPieceEnds) {
  std::string text;
  while (text.size() < std::size_t{8} << 20) text += "ab  ";  // cuts are before single spaces
  text.replace(text.size() - 2, 2, "cd");
  const auto large = folder.write("large.txt", text);
  prepare(options({large, folder.write("after.jsonl", R"({"text": "after"})")}));
  text += "<|endoftext|>";
  const std::string after = "after<|endoftext|>";
  const auto both = decoded();
  EXPECT_TRUE(both == text + after || both == after + text);
}

TEST_F(OpenWebText, BadInputIsNamedAndLeavesNothing) {
  const auto good = pack(folder / "good.xz", pages(0, 60), kXz);
  const auto cut = folder.write("cut.xz", read_file(good).substr(0, fs::file_size(good) / 2));
  EXPECT_THAT(error_of(cut), AllOf(HasSubstr("cut.xz"), HasSubstr("damaged")));
  const auto nested = pack(folder / "nested.tar", {{"s.xz", read_file(good)}, {"t.xz", read_file(cut)}}, {});
  EXPECT_THAT(error_of(nested), AllOf(HasSubstr("nested.tar:t.xz"), HasSubstr("damaged")));
  EXPECT_THAT(error_of(compress(folder / "subset_data.xz", "no tar in it", ARCHIVE_FILTER_XZ)),
              AllOf(HasSubstr("subset_data.xz"), HasSubstr("neither a tar")));
  EXPECT_THAT(error_of(folder.write("p/train-00000.parquet", "PAR1")),
              AllOf(HasSubstr("Parquet"), HasSubstr("jsonl")));
  EXPECT_THAT(error_of(folder / "p"), HasSubstr("Parquet"));
  EXPECT_THAT(error_of(folder.write("notes.md", "text")), HasSubstr("notes.md"));
  EXPECT_THAT(error_of(folder.write("one.txt", "alone")), HasSubstr("only one document"));
  EXPECT_THAT(error_of(folder.write("none/empty.txt", "\n")), HasSubstr("no documents"));
  EXPECT_THAT(error_of(folder / "absent.tar.xz"), HasSubstr("no such file"));
  EXPECT_THAT(error_of(folder.write("bad.jsonl", records(0, 3) + "{\"text\": \"caf\xe9\"}\n")),
              AllOf(HasSubstr("bad.jsonl:4"), HasSubstr("not valid JSON")));
  EXPECT_THAT(error_of(folder.write("field.jsonl", "{\"content\": \"x\"}\n")),
              AllOf(HasSubstr("field.jsonl:1"), HasSubstr("\"content\"")));
  EXPECT_THAT(error_of(folder.write("long.jsonl", "{\"text\": \"" + std::string(40 << 20, 'a') + "\"}\n")),
              AllOf(HasSubstr("long.jsonl:1"), HasSubstr("longer than 32.0 MiB")));
  EXPECT_THAT(user_error([&] { prepare(options({})); }), HasSubstr("no files or folders of the corpus"));
  auto other = options({good});
  other.tokenizer = "bytes";
  EXPECT_THAT(user_error([&] { prepare(other); }), HasSubstr("the tokenizer is gpt2, not bytes"));
  EXPECT_FALSE(left_behind());
}

// The documents in parcels equal those of the plain reader, for all kinds of inputs.
TEST(Parcels, HoldWhatReadDocumentsReads) {
  const TempFolder folder;
  Members members;
  for (int i = 0; i < 4; ++i)
    members.emplace_back(number_name("x", i, ".txt"), std::string(5'000'000, 'a') + page(i));
  members.emplace_back("y.xz", read_file(pack(folder / "inner", pages(0, 9), kXz)));
  members.emplace_back("z.jsonl", records(0, 3000));
  const std::vector<fs::path> inputs = {pack(folder / "large.tar", members, {}),
                                        folder.write("k.txt", page(1)), folder / "inner"};
  fs::rename(folder / "inner", folder / "inner.tar.xz");
  const std::vector<fs::path> all = {inputs[0], inputs[1], folder / "inner.tar.xz"};
  const DocumentOptions reading = {"text", TextFiles::openwebtext};
  std::string plain, parcelled;
  read_documents(all, reading, [&](const DocumentPiece& piece) {
    plain += std::string(piece.text) + (piece.last ? "|" + std::string(piece.name) + "|" : "");
    return true;
  });
  const auto add = [&](const DocumentPiece& piece) {
    parcelled += std::string(piece.text) + (piece.last ? "|" + std::string(piece.name) + "|" : "");
  };
  int parcels = 0;
  read_in_parcels(all, reading,
                  {[](const fs::path&, const OddFiles&) { return true; }, add,
                   [&](Parcel&& parcel) {
                     ++parcels;
                     read_parcel(parcel, reading, add);
                   }});
  EXPECT_TRUE(plain == parcelled);
  EXPECT_GE(parcels, 4);

  // Files that are skipped count as read: of the whole, only the last one is left.
  double before = 0;
  read_in_parcels(all, reading,
                  {[&](const fs::path& path, const OddFiles&) { return path == all.back(); },
                   [](const DocumentPiece&) {}, [&](Parcel&& parcel) { before = parcel.input_bytes; }});
  EXPECT_GE(before, fs::file_size(all[0]) + fs::file_size(all[1]));
  EXPECT_LE(before, input_size(all));
}

}  // namespace
}  // namespace shoal
