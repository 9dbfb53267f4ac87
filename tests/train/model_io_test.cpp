#include "train/model_io.h"

#include "checkpoint/writer.h"
#include "core/logged.h"
#include "train/tiny_run.h"

namespace shoal::test {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

class OtherTokenizer : public TinyRuns {
 protected:
  std::string warning(std::int64_t model_vocab_size, const Tokenizer* tokenizer) const {
    return logged([&] { warn_of_other_tokenizer(dataset_, model_vocab_size, tokenizer); });
  }

  Dataset dataset_{*data_ / "data"};
};

TEST_F(OtherTokenizer, IsGuessedFromTheVocabularyWhereTheModelHasNone) {
  EXPECT_THAT(warning(dataset_.vocab_size(), nullptr), IsEmpty());
  EXPECT_THAT(warning(dataset_.vocab_size() + 1, nullptr), HasSubstr("the model's tokenizer?"));
}

TEST_F(OtherTokenizer, IsKnownWhereBothHaveOne) {
  EXPECT_THAT(warning(dataset_.vocab_size() + 1, &dataset_.tokenizer()), IsEmpty());
  EXPECT_THAT(warning(dataset_.vocab_size(), make_byte_tokenizer().get()), HasSubstr("another tokenizer"));
}

class OddManifest : public TinyRuns {
 protected:
  // The error of `read` for a manifest in which one value differs.
  template <typename Read>
  std::string error(const char* pointer, const nlohmann::json& value, Read read) const {
    const auto config = this->config("odd", {"model.vocab_size=65"});
    auto info = make_checkpoint_info(config, to_gpt_config(config), {}, "");
    nlohmann::json fields = {{"model", info.model}, {"state", info.state}};
    fields[nlohmann::json::json_pointer(pointer)] = value;
    info.model = fields["model"], info.state = fields["state"];
    const TempFolder folder;
    CheckpointWriter writer(folder.path(), 1);
    writer.write_shard(0, 1, {});
    writer.commit(info, 1);
    const CheckpointReader reader(writer.target());
    try {
      read(reader);
    } catch (const UserError& error) {
      return error.what();
    }
    return "";
  }
};

TEST_F(OddManifest, IsNamedWithItsField) {
  const auto of_model = [&](const char* pointer, const nlohmann::json& value) {
    return error(pointer, value, [](const CheckpointReader& reader) { model_of(reader); });
  };
  EXPECT_EQ(of_model("/model/n_layer", 2), "");
  EXPECT_THAT(of_model("/model/n_head", 0), HasSubstr("\"n_head\" in its manifest is 0"));
  EXPECT_THAT(of_model("/model/n_head", 3), HasSubstr("manifest.json: n_head = 3 does not divide n_embd = "));
  EXPECT_THAT(of_model("/model/n_layer", -1), HasSubstr("\"n_layer\" in its manifest is -1"));
  EXPECT_THAT(of_model("/model/vocab_size", 0), HasSubstr("\"vocab_size\" in its manifest is 0"));
  EXPECT_THAT(of_model("/model/tie_embeddings", "x"), HasSubstr("no usable \"tie_embeddings\""));
  EXPECT_THAT(error("/state/tokenizer", "{", [](const CheckpointReader& reader) { tokenizer_of(reader); }),
              HasSubstr("the tokenizer's name is \"\""));
  EXPECT_THAT(error("/state/started_in", 3,
                    [](const CheckpointReader& reader) { load_model_config(reader.directory(), {}); }),
              HasSubstr("no usable \"started_in\""));
}

}  // namespace
}  // namespace shoal::test
