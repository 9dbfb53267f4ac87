#include "data/documents.h"

#include <gmock/gmock.h>

#include "core/logged.h"
#include "data/archive.h"
#include "data/packing.h"
#include "data/temp_folder.h"
#include "data/text_cut.h"
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
using ::testing::Not;
using ::testing::Pair;

// (name without the folder, text) of every document
Members documents(const TempFolder& folder, const std::vector<fs::path>& inputs,
                  const std::string& field = "text") {
  Members result;
  bool inside = false;
  double bytes = 0;
  read_documents(inputs, {field}, [&](const DocumentPiece& piece) {
    EXPECT_EQ(piece.first, !inside);
    EXPECT_GE(piece.input_bytes, bytes);
    bytes = piece.input_bytes;
    if (piece.first) {
      auto name = std::string(piece.name);
      if (name.starts_with(folder.path().string())) name = name.substr(folder.path().string().size() + 1);
      result.emplace_back(name, "");
    }
    result.back().second += piece.text;
    inside = !piece.last;
    return true;
  });
  EXPECT_FALSE(inside);
  EXPECT_LE(bytes, input_size(inputs));
  return result;
}

std::string error_of(const TempFolder& folder, const fs::path& input, const std::string& field = "text") {
  return user_error([&] { documents(folder, {input}, field); });
}

TEST(Documents, FilesAndFoldersInOrder) {
  const TempFolder folder;
  const auto z = folder.write("z.txt", "last named first");
  folder.write("texts/b.md", "bee");
  folder.write("texts/a/deep.txt", "deep");
  folder.write("texts/empty.txt", "");
  folder.write("texts/.hidden", "no");
  folder.write("texts/image.png", std::string("\x89PNG\0\0", 6));
  fs::create_directory_symlink(folder.path(), folder / "texts/loop");
  EXPECT_THAT(documents(folder, {z, folder / "texts"}),
              ElementsAre(Pair("z.txt", "last named first"), Pair("texts/a/deep.txt", "deep"),
                          Pair("texts/b.md", "bee")));
}

TEST(Documents, FoldersLeftOut) {
  const TempFolder folder;
  folder.write("texts/a.txt", "read");
  folder.write("texts/b/c.txt", "left out");
  folder.write("texts/b.more/d.txt", "read too");
  const std::vector<fs::path> inputs = {folder / "texts"}, left_out = {folder / "texts/b", folder / "absent"};
  std::string read;
  read_documents(inputs, {.left_out = left_out}, [&](const DocumentPiece& piece) {
    read += piece.text;
    return true;
  });
  EXPECT_EQ(read, "readread too");
  EXPECT_EQ(input_size(inputs, left_out), 12);
}

TEST(Documents, EveryArchive) {
  const TempFolder folder;
  const Members members = {{"a/", ""}, {"a/one.txt", "one"}, {"a/none.txt", ""}, {"two.txt", "two\n"}};
  const std::vector<std::pair<std::string, Packing>> kinds = {
      {"x.tar", {}},
      {"x.tar.gz", {ARCHIVE_FORMAT_TAR_USTAR, ARCHIVE_FILTER_GZIP}},
      {"x.tgz", {ARCHIVE_FORMAT_TAR_PAX_RESTRICTED, ARCHIVE_FILTER_GZIP}},
      {"x.tar.xz", {ARCHIVE_FORMAT_TAR_USTAR, ARCHIVE_FILTER_XZ}},
      {"x.tar.zst", {ARCHIVE_FORMAT_TAR_USTAR, ARCHIVE_FILTER_ZSTD}},
      {"x.zip", {ARCHIVE_FORMAT_ZIP, ARCHIVE_FILTER_NONE}}};
  for (const auto& [name, packing] : kinds) {
    EXPECT_THAT(documents(folder, {pack(folder / name, members, packing)}),
                ElementsAre(Pair(name + ":a/one.txt", "one"), Pair(name + ":two.txt", "two\n")));
  }
}

TEST(Documents, CompressedTextsAndRecords) {
  const TempFolder folder;
  const std::string records = "{\"text\": \"one\"}\n{\"text\": \"two\"}\n";
  EXPECT_THAT(documents(folder, {compress(folder / "a.txt.gz", "gee", ARCHIVE_FILTER_GZIP),
                                 compress(folder / "b.xz", "exzee", ARCHIVE_FILTER_XZ),
                                 compress(folder / "c.jsonl.zst", records, ARCHIVE_FILTER_ZSTD),
                                 compress(folder / "none.txt.gz", "", ARCHIVE_FILTER_GZIP),
                                 compress(folder / "none.jsonl.zst", "", ARCHIVE_FILTER_ZSTD)}),
              ElementsAre(Pair("a.txt.gz:a.txt", "gee"), Pair("b.xz:b", "exzee"),
                          Pair("c.jsonl.zst:c.jsonl:1", "one"), Pair("c.jsonl.zst:c.jsonl:2", "two")));
}

TEST(Documents, NamesMayBeInUpperCase) {
  const TempFolder folder;
  const std::string records = "{\"text\": \"one\"}\n";
  const Packing zip{ARCHIVE_FORMAT_ZIP, ARCHIVE_FILTER_NONE};
  fs::create_directories(folder / "in");
  pack(folder / "in/B.ZIP", {{"B.JSONL", records}}, zip);
  compress(folder / "in/C.NDJSON.GZ", records, ARCHIVE_FILTER_GZIP);
  EXPECT_THAT(documents(folder, {folder.write("A.JSONL", records), folder / "in"}),
              ElementsAre(Pair("A.JSONL:1", "one"), Pair("in/B.ZIP:B.JSONL:1", "one"),
                          Pair("in/C.NDJSON.GZ:C.NDJSON:1", "one")));
  EXPECT_THAT(error_of(folder, folder.write("d.txt", read_file(folder / "in/B.ZIP"))),
              AllOf(HasSubstr("NUL"), HasSubstr("name must end in .tar, .zip")));
}

// C4's files are named so.
TEST(Documents, JsonLinesMayBeNamedJson) {
  const TempFolder folder;
  const std::string one = "{\"text\": \"one\"}", two = one + "\n{\"text\": \"two\"}\n";
  std::string large = one;
  large.insert(1, std::string(3'000'000, ' '));
  const auto records = ElementsAre(Pair(HasSubstr("json:1"), "one"), Pair(HasSubstr("json:2"), "two"));
  EXPECT_THAT(documents(folder, {folder.write("a.json", two)}), records);
  EXPECT_THAT(documents(folder, {compress(folder / "c4.json.gz", two, ARCHIVE_FILTER_GZIP)}), records);
  EXPECT_THAT(documents(folder, {folder.write("mark.JSON", "\xef\xbb\xbf" + two)}), ::testing::SizeIs(2));
  EXPECT_THAT(documents(folder, {folder.write("blank.json", "\n" + one + " \r\n\n" + one)}),
              ElementsAre(Pair("blank.json:2", "one"), Pair("blank.json:4", "one")));
  EXPECT_THAT(documents(folder, {folder.write("large.json", large + "\n" + two)}), ::testing::SizeIs(3));
  EXPECT_THAT(error_of(folder, folder.write("bad.json", two + "{")), HasSubstr("bad.json:3: not valid JSON"));
  // Other JSON is text.
  const std::vector<std::string> others = {one,      one + "\n",      "[" + two + "]",
                                           "{\n{\n", one + "\n[1]\n", "{\"a\": [\n{\"b\": 1},\n{\"b\": 2}]}",
                                           " "};
  for (const auto& text : others) {
    EXPECT_THAT(documents(folder, {folder.write("a.json", text)}), ElementsAre(Pair("a.json", text)));
  }
}

TEST(Documents, JsonOfOpenWebTextIsLinesOrNoDocument) {
  const TempFolder folder;
  const std::string records = "{\"text\": \"one\"}\n{\"text\": \"two\"}\n";
  fs::create_directories(folder / "in");
  compress(folder / "in/c4.json.gz", records, ARCHIVE_FILTER_GZIP);
  compress(folder / "in/other.json.gz", "{}", ARCHIVE_FILTER_GZIP);
  folder.write("in/other.json", "[]");
  std::string read;
  read_documents({folder / "in"}, {.texts = TextFiles::openwebtext}, [&](const DocumentPiece& piece) {
    read += std::string(piece.text) + "|";
    return true;
  });
  EXPECT_EQ(read, "one|two|");
}

TEST(Documents, LinksThatLeadNowhereAreLeftOut) {
  const TempFolder folder;
  folder.write("in/a.txt", "a");
  fs::create_symlink("two", folder / "in/one");
  fs::create_symlink("one", folder / "in/two");
  fs::create_symlink("nowhere", folder / "in/three");
  EXPECT_THAT(documents(folder, {folder / "in"}), ElementsAre(Pair(HasSubstr("a.txt"), "a")));
}

TEST(Documents, LinksThatAreNotFollowedGetAWarning) {
  const TempFolder folder;
  folder.write("in/deep/a.txt", "a");
  folder.write("b.txt", "b");
  fs::create_symlink("../b.txt", folder / "in/b.txt");
  for (const char* name : {"in/one", "in/deep/two", "in/.hidden"})
    fs::create_directory_symlink(folder.path(), folder / name);
  fs::create_symlink("nowhere", folder / "in/three");
  const auto path = [&](const char* name) { return (folder / name).string(); };
  const auto lines = test::logged([&] { EXPECT_EQ(documents(folder, {folder / "in"}).size(), 2u); });
  EXPECT_THAT(lines, AllOf(HasSubstr("skipped 2 files: links to folders are not followed; name the folder"),
                           HasSubstr("the first is " + path("in/one") + "\n"),
                           HasSubstr("skipped " + path("in/three") + ": there is no file where")));
  EXPECT_EQ(test::logged([&] { documents(folder, {folder / "b.txt"}); }), "");
}

TEST(Documents, ArchivesWithinArchives) {
  // The format of OpenWebText: a tar of xz-compressed tars of texts. Also a zip in a tar, which cannot seek.
  const TempFolder folder;
  const auto inner = read_file(pack(folder / "inner", {{"0001.txt", "first"}, {"0002.txt", "second"}},
                                    {ARCHIVE_FORMAT_TAR_USTAR, ARCHIVE_FILTER_XZ}));
  const auto zip =
      read_file(pack(folder / "zip", {{"z.txt", "zipped"}}, {ARCHIVE_FORMAT_ZIP, ARCHIVE_FILTER_NONE}));
  EXPECT_THAT(
      documents(folder, {pack(folder / "owt.tar", {{"s/0_data.xz", inner}, {"z.zip", zip}}, {})}),
      ElementsAre(Pair("owt.tar:s/0_data.xz:0001.txt", "first"),
                  Pair("owt.tar:s/0_data.xz:0002.txt", "second"), Pair("owt.tar:z.zip:z.txt", "zipped")));
}

TEST(Documents, RecordsWithAnyField) {
  const TempFolder folder;
  const auto file = folder.write(
      "a.jsonl", "{\"n\": 1, \"body\": \"caf\\u00e9\\n\"}\r\n\n{\"body\": \"\"}\n{\"body\":\"end\"}");
  EXPECT_THAT(documents(folder, {file}, "body"),
              ElementsAre(Pair("a.jsonl:1", "café\n"), Pair("a.jsonl:4", "end")));
  EXPECT_THAT(error_of(folder, file),
              AllOf(HasSubstr("a.jsonl:1"), HasSubstr("\"text\""), HasSubstr("\"body\", \"n\"")));
}

TEST(Documents, BadRecordsNameTheLine) {
  const TempFolder folder;
  const auto error = [&](const std::string& line) {
    return error_of(folder, folder.write("bad.jsonl", "{\"text\": \"good\"}\n" + line + "\n"));
  };
  EXPECT_THAT(error("{\"text\": "), HasSubstr("bad.jsonl:2: not valid JSON: it ends too early"));
  EXPECT_THAT(error("{\"text\": \"é\" \"b\"}"),
              HasSubstr("bad.jsonl:2: not valid JSON: column 16: '\"' is not expected"));
  EXPECT_THAT(error("{\"text\":\"abc\",\"x\":1e999}"),
              AllOf(HasSubstr("bad.jsonl:2: a number is out of range"), Not(HasSubstr("not valid"))));
  EXPECT_THAT(error("[1]"), AllOf(HasSubstr("bad.jsonl:2"), HasSubstr("array")));
  EXPECT_THAT(error("{\"text\": 3}"), AllOf(HasSubstr("bad.jsonl:2"), HasSubstr("number")));
  EXPECT_THAT(error("{}"), AllOf(HasSubstr("bad.jsonl:2"), HasSubstr("it has none")));
}

TEST(Documents, BadFilesAreNamed) {
  const TempFolder folder;
  EXPECT_THAT(error_of(folder, folder / "none.txt"), AllOf(HasSubstr("none.txt"), HasSubstr("no such file")));
  EXPECT_THAT(error_of(folder, folder.write("wide.txt", std::string("h\0i\0", 4))),
              AllOf(HasSubstr("wide.txt"), HasSubstr("NUL"), HasSubstr("UTF-16")));
  EXPECT_THAT(error_of(folder, folder.write("plain.gz", "just text")),
              HasSubstr("it is compressed, but it is not"));
  EXPECT_THAT(error_of(folder, folder.write("plain.tar.gz", "just text, and no tar in it")),
              HasSubstr("plain.tar.gz"));
  EXPECT_THAT(error_of(folder, folder.write("empty.zip", "")), HasSubstr("empty.zip"));
}

TEST(Documents, BinaryFilesWithoutNulAreRefused) {
  const TempFolder folder;
  const auto pdf = folder.write("in/a.txt", "%PDF-1.7\n1 0 obj");
  EXPECT_THAT(error_of(folder, pdf), HasSubstr("a.txt: not a text but a PDF; extract its text first"));
  EXPECT_THAT(error_of(folder, folder.write("b.txt", "\x1f\x8b\x08\x08gzip")), HasSubstr("must end in .gz"));
  EXPECT_THAT(error_of(folder, folder.write("c.txt", "BZh91AY&SY")), HasSubstr("must end in .bz2"));
  EXPECT_THAT(error_of(folder, folder.write("d.txt", "\x28\xb5\x2f\xfd")), HasSubstr("must end in .zst"));
  folder.write("in/e.txt", "about %PDF-1.7");
  for (const auto texts : {TextFiles::all, TextFiles::openwebtext}) {
    std::string read;
    const auto lines = test::logged([&] {
      read_documents({folder / "in"}, {.texts = texts}, [&](const DocumentPiece& piece) {
        read += piece.text;
        return true;
      });
    });
    EXPECT_EQ(read, "about %PDF-1.7");
    EXPECT_THAT(lines, HasSubstr("skipped " + pdf.string()));
  }
}

TEST(Documents, TextsThatAreNotUtf8GetAWarning) {
  const TempFolder folder;
  const auto first = folder.write("in/a.txt", "caf\xe9 au lait");
  std::string long_text;
  while (long_text.size() < 3'000'000) long_text += "naïve words\n";
  folder.write("in/b.txt", long_text);
  pack(folder / "in/c.tar", {{"d.txt", long_text + "\xe9"}, {"e.txt", "é"}}, {});
  folder.write("in/f.jsonl", "{\"text\": \"é\"}");
  const auto lines = test::logged([&] { EXPECT_EQ(documents(folder, {folder / "in"}).size(), 5u); });
  EXPECT_THAT(
      lines,
      HasSubstr("read 2 files: not valid UTF-8, so kept byte for byte; convert text in another encoding "
                "first; the first is " +
                first.string() + "\n"));
}

// With any names: alone, in a folder and in an archive.
TEST(Documents, TablesSayHowToConvertThem) {
  const TempFolder folder;
  const std::string parquet = "PAR1\x15\x04 and columns PAR1", stream("\xff\xff\xff\xff\x78\0\0\0\x10\0", 10);
  const auto path = [&](const std::string& name) { return (folder / name).string(); };
  EXPECT_THAT(
      error_of(folder, folder.write("a.parquet", parquet)),
      AllOf(HasSubstr("a.parquet: a Parquet file, which is not read; convert it"),
            HasSubstr(
                "pandas.read_parquet(sys.argv[1]).to_json(sys.argv[2], orient='records', lines=True)\" '" +
                path("a.parquet") + "' '" + path("a.jsonl") + "'")));
  EXPECT_THAT(error_of(folder, folder.write("a.txt", parquet)), HasSubstr("a Parquet file"));
  EXPECT_THAT(error_of(folder, folder.write("a.jsonl", parquet)), HasSubstr("a Parquet file"));
  EXPECT_THAT(error_of(folder, folder.write("a.arrow", std::string("ARROW1\0\0", 8) + "more")),
              AllOf(HasSubstr("an Arrow (Feather) file"), HasSubstr("pandas.read_feather")));
  EXPECT_THAT(error_of(folder, folder.write("data-00000.arrow", stream)),
              AllOf(HasSubstr("an Arrow stream"), HasSubstr("pyarrow.ipc.open_stream")));
  EXPECT_THAT(error_of(folder, folder.path()), HasSubstr("a.arrow: an Arrow"));
  const Packing zip{ARCHIVE_FORMAT_ZIP, ARCHIVE_FILTER_NONE};
  EXPECT_THAT(error_of(folder, pack(folder / "x.zip", {{"one.txt", "one"}, {"in/b", parquet}}, zip)),
              AllOf(HasSubstr("x.zip:in/b: a Parquet file"), HasSubstr("extract it"),
                    HasSubstr("'in/b' 'in/b.jsonl'")));
  const std::string long_name(400, 'n');  // that no file may have
  EXPECT_THAT(error_of(folder, pack(folder / "y.zip", {{long_name, parquet}}, zip)),
              HasSubstr("y.zip:" + long_name + ": a Parquet file"));
  EXPECT_THAT(documents(folder, {folder.write("c.txt", "PAR is 1")}), ElementsAre(Pair("c.txt", "PAR is 1")));
}

TEST(Documents, TruncatedArchivesNameTheMember) {
  const TempFolder folder;
  std::string noise;  // incompressible, so that the truncation is inside the second member
  for (std::uint32_t i = 0, x = 1; i < 300'000; ++i)
    noise += static_cast<char>(33 + (x = x * 1664525 + 1013904223) % 64);
  const Members members = {{"one.txt", "one"}, {"two.txt", noise}};
  const std::vector<std::pair<std::string, Packing>> kinds = {
      {"x.tar", {}},
      {"x.tar.gz", {ARCHIVE_FORMAT_TAR_USTAR, ARCHIVE_FILTER_GZIP}},
      {"x.tar.xz", {ARCHIVE_FORMAT_TAR_USTAR, ARCHIVE_FILTER_XZ}},
      {"x.tar.zst", {ARCHIVE_FORMAT_TAR_USTAR, ARCHIVE_FILTER_ZSTD}}};
  for (const auto& [name, packing] : kinds) {
    const auto file = pack(folder / name, members, packing);
    fs::resize_file(file, fs::file_size(file) / 2);
    EXPECT_THAT(error_of(folder, file), AllOf(HasSubstr(name), HasSubstr("damaged"))) << name;
  }
  EXPECT_THAT(error_of(folder, folder / "x.tar"), HasSubstr("member two.txt"));
  for (const auto& [name, filter] : {std::pair{"a.txt.gz", ARCHIVE_FILTER_GZIP},
                                     {"a.txt.xz", ARCHIVE_FILTER_XZ},
                                     {"a.txt.zst", ARCHIVE_FILTER_ZSTD}}) {
    const auto file = compress(folder / name, noise, filter);
    fs::resize_file(file, fs::file_size(file) / 2);
    EXPECT_THAT(error_of(folder, file), AllOf(HasSubstr(name), HasSubstr("damaged"))) << name;
  }
}

TEST(Documents, TarsMayBeJoined) {
  const TempFolder folder;
  for (const auto& [name, filter] : {std::pair{"x.tar", ARCHIVE_FILTER_NONE},
                                     {"x.tar.gz", ARCHIVE_FILTER_GZIP},
                                     {"x.tar.xz", ARCHIVE_FILTER_XZ}}) {
    const auto tar = [&](const Members& members) {
      return read_file(pack(folder / "part", members, {ARCHIVE_FORMAT_TAR_USTAR, filter}));
    };
    const auto file = folder.write(name, tar({{"a.txt", "one"}}) + tar({}) + tar({{"b.txt", "two"}}));
    const auto lines = test::logged([&] {
      EXPECT_THAT(documents(folder, {file}),
                  ElementsAre(Pair(HasSubstr("a.txt"), "one"), Pair(HasSubstr("b.txt"), "two")));
    });
    EXPECT_EQ(lines, "");
  }
  const auto more = read_file(folder / "x.tar") + std::string(600, 'x');
  EXPECT_THAT(error_of(folder, folder.write("x.tar", more)), AllOf(HasSubstr("x.tar"), HasSubstr("damaged")));
}

TEST(Documents, TarsWithoutAnEndGetAWarning) {
  const TempFolder folder;
  const std::string binary = std::string("\0", 1) + std::string(2'000'000, 'x');
  const auto whole =
      read_file(pack(folder / "whole.tar", {{"a.txt", "one"}, {"b.bin", binary}, {"c.txt", "two"}}, {}));
  const auto of = [&](std::string_view bytes, const char* name = "in/x.tar") {
    const auto file = folder.write(name, bytes);
    const auto lines = test::logged([&] { EXPECT_FALSE(documents(folder, {file}).empty()); });
    fs::remove(file);
    return lines;
  };
  const auto warning =
      HasSubstr("x.tar: a tar without the blocks of zeros at its end, so members may be missing");
  EXPECT_THAT(of(whole), Not(warning));
  EXPECT_THAT(of(std::string_view(whole).substr(0, whole.find_last_not_of('\0') / 512 * 512 + 512)), warning);
  EXPECT_THAT(of(std::string_view(whole).substr(0, 1024)), warning);
  // A member that is skipped ends early: libarchive seeks past it.
  folder.write("in/x.tar", std::string_view(whole).substr(0, 1'500'160));
  EXPECT_THAT(test::logged([&] {
                try {
                  documents(folder, {folder / "in/x.tar"});
                } catch (const UserError& error) {
                  log::warn("{}", error.what());
                }
              }),
              ::testing::AnyOf(warning, HasSubstr("damaged")));
  compress(folder / "x.tar.gz", whole.substr(0, 1024), ARCHIVE_FILTER_GZIP);
  EXPECT_THAT(of(read_file(folder / "x.tar.gz"), "x.tar.gz"), HasSubstr("x.tar.gz: a tar without"));
}

TEST(Documents, ATarWithADamagedHeaderIsRefused) {
  const TempFolder folder;
  auto bytes =
      read_file(pack(folder / "x.tar", {{"one.txt", "one"}, {"two.txt", "two"}, {"three.txt", "3"}}, {}));
  const auto header = bytes.find("two.txt");
  ASSERT_EQ(header % 512, 0u);
  bytes[header] ^= 1;
  EXPECT_THAT(error_of(folder, folder.write("x.tar", bytes)),
              AllOf(HasSubstr("x.tar"), HasSubstr("damaged")));
}

// A bit of every byte is flipped in turn. Some mean nothing: those of the time in gzip's header, for example.
TEST(Documents, AFlippedBitOfGzipIsNoticed) {
  const TempFolder folder;
  const Packing tar_gz = {ARCHIVE_FORMAT_TAR_USTAR, ARCHIVE_FILTER_GZIP};
  for (const auto& file :
       {compress(folder / "a.txt.gz", "Some text, and more text.\n", ARCHIVE_FILTER_GZIP),
        compress(folder / "a.jsonl.gz", "{\"text\": \"some text\"}\n", ARCHIVE_FILTER_GZIP),
        pack(folder / "a.tar.gz", {{"one.txt", "one"}, {"two.txt", "two"}}, tar_gz)}) {
    const auto whole = documents(folder, {file});
    ASSERT_FALSE(whole.empty());
    const auto bytes = read_file(file);
    int refused = 0;
    for (std::size_t i = 0; i < bytes.size(); ++i) {
      auto damaged = bytes;
      damaged[i] = static_cast<char>(damaged[i] ^ (1 << i % 8));
      folder.write(file.filename().string(), damaged);
      try {
        EXPECT_EQ(documents(folder, {file}), whole) << file << " byte " << i;
      } catch (const UserError& error) {
        EXPECT_THAT(error.what(), HasSubstr(file.filename().string()));
        ++refused;
      }
    }
    EXPECT_GT(refused, 0);
  }
}

TEST(Documents, GzipMayHaveSeveralPartsAndZerosBehindThem) {
  const TempFolder folder;
  const auto gzip = [&](const std::string& text) {
    return read_file(compress(folder / "part", text, ARCHIVE_FILTER_GZIP));
  };
  const auto parts = gzip("one, ") + gzip("") + gzip("two");
  const auto text = [&](const std::string& bytes) {
    return documents(folder, {folder.write("a.txt.gz", bytes)});
  };
  EXPECT_THAT(text(parts), ElementsAre(Pair("a.txt.gz:a.txt", "one, two")));
  EXPECT_THAT(text(parts + std::string(700'000, '\0')), ElementsAre(Pair("a.txt.gz:a.txt", "one, two")));
  const auto error = [&](const std::string& bytes) {
    return error_of(folder, folder.write("a.txt.gz", bytes));
  };
  EXPECT_THAT(error(parts + "more"),
              AllOf(HasSubstr("a.txt.gz"), HasSubstr("damaged"), HasSubstr("not gzip")));
  EXPECT_THAT(error(parts + std::string(9, '\0') + gzip("three")), HasSubstr("not gzip"));
  EXPECT_THAT(error(parts.substr(0, parts.size() - 1)), AllOf(HasSubstr("damaged"), HasSubstr("too early")));
}

// A wrong checksum is noticed in archives within archives, too, and at the end of much text.
TEST(Documents, ChecksumsOfGzipAreChecked) {
  const TempFolder folder;
  std::string text;
  while (text.size() < 1'000'000) text += fmt::format("line {}\n", text.size());
  const auto with_wrong_checksum = [](std::string bytes) {
    bytes[bytes.size() - 8] ^= 1;
    return bytes;
  };
  const auto plain = with_wrong_checksum(read_file(compress(folder / "a.gz", text, ARCHIVE_FILTER_GZIP)));
  const auto tar = with_wrong_checksum(
      read_file(pack(folder / "x", {{"a.txt", text}}, {ARCHIVE_FORMAT_TAR_USTAR, ARCHIVE_FILTER_GZIP})));
  for (const auto& file : {pack(folder / "plain.tar", {{"a.gz", plain}}, {}), folder.write("a.gz", plain),
                           pack(folder / "tar.tar", {{"a.tar.gz", tar}}, {}), folder.write("a.tgz", tar)})
    EXPECT_THAT(error_of(folder, file), AllOf(HasSubstr("damaged"), HasSubstr("check"))) << file;
  EXPECT_THAT(error_of(folder, folder / "plain.tar"), HasSubstr("plain.tar:a.gz: "));
}

TEST(Documents, AHugeTextComesInPieces) {
  const TempFolder folder;
  std::string text;
  while (text.size() < 5'000'000) text += "Some words and then a line;\n";
  const auto file = folder.write("huge.txt", text);
  std::string joined;
  std::size_t pieces = 0, longest = 0;
  read_documents({file}, {}, [&](const DocumentPiece& piece) {
    EXPECT_EQ(piece.offset, static_cast<std::int64_t>(joined.size()));
    joined += piece.text;
    longest = std::max(longest, piece.text.size());
    ++pieces;
    EXPECT_EQ(piece.last, joined.size() == text.size());
    return true;
  });
  EXPECT_EQ(joined, text);
  EXPECT_GE(pieces, 4u);
  EXPECT_LE(longest, std::size_t{2} << 20);
}

TEST(Documents, ATextWithoutAnyCutStaysBoundedAndKeepsItsCharacters) {
  const TempFolder folder;
  std::string text;
  while (text.size() < 20'000'000) text += "€";
  std::string joined;
  read_documents({folder.write("euro.txt", text)}, {}, [&](const DocumentPiece& piece) {
    EXPECT_LE(piece.text.size(), std::size_t{9} << 20);
    EXPECT_EQ(piece.text.size() % 3, 0u);
    joined += piece.text;
    return true;
  });
  EXPECT_EQ(joined, text);
}

TEST(Documents, TheVisitorMayStop) {
  const TempFolder folder;
  int seen = 0;
  read_documents({folder.write("a.txt", "a"), folder.write("b.txt", "b")}, {}, [&](const DocumentPiece&) {
    ++seen;
    return false;
  });
  EXPECT_EQ(seen, 1);
}

TEST(TextCut, Places) {
  EXPECT_EQ(last_safe_cut("one two"), 3u);
  EXPECT_EQ(last_safe_cut("one two three "), 7u);  // the text after the last space is unknown
  EXPECT_EQ(last_safe_cut("one\ntwo"), 4u);
  EXPECT_EQ(last_safe_cut("one  two"), 0u);
  EXPECT_EQ(last_safe_cut("one\r\ntwo\n\nthree"), 0u);
  EXPECT_EQ(last_safe_cut("é é"), 2u);
  EXPECT_EQ(last_safe_cut("a\u00a0 b"), 0u);
  EXPECT_EQ(last_safe_cut("a \u3000"), 0u);
  EXPECT_EQ(last_safe_cut("a \xff"), 0u);
  EXPECT_EQ(last_safe_cut(""), 0u);
  EXPECT_EQ(last_safe_cut(" "), 0u);
  EXPECT_EQ(whole_characters("ab€"), 5u);
  EXPECT_EQ(whole_characters("ab\xe2\x82"), 2u);
  EXPECT_EQ(whole_characters("ab\xe2"), 2u);
  EXPECT_EQ(whole_characters("\x80\x80\x80\x80"), 4u);
}

TEST(TextCut, KeepsGpt2Tokens) {
  SHOAL_NEEDS_SHARED("gpt2/encoder.json");
  const auto tokenizer = load_bpe_tokenizer(test::shared_data() / "gpt2");
  // All strings of five of these pieces, so that all possible contexts of a cut occur.
  const std::vector<std::string> pieces = {"a", " ", "\n", "'s", "1", ".", "é", "\t", "\u3000", "\xc3"};
  int cuts = 0;
  for (int code = 0; code < 100'000; ++code) {
    std::string text;
    for (int i = 0, rest = code; i < 5; ++i, rest /= 10) text += pieces[static_cast<std::size_t>(rest % 10)];
    const auto cut = last_safe_cut(text);
    if (cut == 0) continue;
    ++cuts;
    std::vector<std::int32_t> whole, parts;
    tokenizer->encode(text, whole);
    tokenizer->encode(std::string_view(text).substr(0, cut), parts);
    tokenizer->encode(std::string_view(text).substr(cut), parts);
    ASSERT_EQ(parts, whole) << ::testing::PrintToString(text) << " cut at " << cut;
  }
  EXPECT_GT(cuts, 10'000);
}

}  // namespace
}  // namespace shoal
