#include "data/table_file.h"

#include <filesystem>

#include "core/error.h"

namespace shoal {
namespace {

struct Table {
  std::string_view kind, python;  // `python` is an expression that reads the file
};

// An Arrow stream begins with a message: a continuation marker and the size of its metadata, a multiple of 8.
bool begins_arrow_stream(std::string_view head) {
  return head.size() >= 8 && head.starts_with("\xff\xff\xff\xff") && head[4] != 0 && head[4] % 8 == 0 &&
         head[7] == 0;
}

Table table_of(std::string_view head) {
  if (head.starts_with("PAR1"))
    return {"a Parquet file", "import sys, pandas; pandas.read_parquet(sys.argv[1])"};
  if (head.starts_with("ARROW1") || head.starts_with("FEA1")) {
    return {"an Arrow (Feather) file", "import sys, pandas; pandas.read_feather(sys.argv[1])"};
  }
  if (begins_arrow_stream(head)) {
    return {"an Arrow stream",
            "import sys, pyarrow; pyarrow.ipc.open_stream(pyarrow.memory_map(sys.argv[1])).read_pandas()"};
  }
  return {};
}

}  // namespace

void refuse_table(std::string_view head, const std::string& name) {
  const auto [kind, python] = table_of(head);
  if (kind.empty()) return;
  std::error_code error;                                      // of a name that is too long for a file
  const bool member = !std::filesystem::exists(name, error);  // "books.zip:a.parquet"
  const auto file = member ? name.substr(name.rfind(':') + 1) : name;
  fail_user(
      "{}: {}, which is not read; {}convert it to JSON lines and prepare those, with the name of the "
      "column that holds the text: python3 -c \"{}.to_json(sys.argv[2], orient='records', lines=True)\" '{}' "
      "'{}'",
      name, kind, member ? "extract it, " : "", python, file,
      std::filesystem::path(file).replace_extension(".jsonl").string());
}

}  // namespace shoal
