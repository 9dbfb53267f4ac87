// A model of the hub, from a server on this machine that answers as the hub does.
#include "data/hub.h"

#include <gmock/gmock.h>
#include <httplib.h>

#include <atomic>
#include <map>
#include <mutex>
#include <nlohmann/json.hpp>
#include <thread>

#include "data/file_digest.h"
#include "data/temp_folder.h"

namespace shoal {
namespace {

namespace fs = std::filesystem;
using test::read_file;
using test::TempFolder;
using test::user_error;
using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr const char* kCommit = "0123456789abcdef0123456789abcdef01234567";

// Large files are redirected to a second server, as to the hub's storage, small ones to a cache. org/old is
// the former name of org/model.
class Hub : public ::testing::Test {
 protected:
  Hub() {
    setenv("no_proxy", "127.0.0.1", 1);
    add("config.json", R"({"model_type": "gpt2"})", false);
    add("vocab.json", "{}", false);
    add("merges.txt", "#version: 0.2\n", false);
    std::string weights;
    for (int i = 0; i < 300'000; ++i) weights += static_cast<char>('a' + i % 997 % 23);
    add("model.safetensors", weights, true);
    site_.Get(R"(/api/models/(.+)/revision/([0-9a-z]+))", [this](const auto& request, auto& response) {
      ++requests_;
      if (refused(request, response)) return;
      nlohmann::json siblings = nlohmann::json::array();
      for (const auto& [name, file] : files_) siblings.push_back({{"rfilename", name}});
      const std::string revision = request.matches[2];
      const auto& commit = revision == "main" ? commit_ : revision;
      response.set_content(nlohmann::json{{"sha", commit}, {"siblings", siblings}}.dump(),
                           "application/json");
    });
    site_.Get(R"(/(.+)/resolve/([^/]+)/(.+))", [this](const auto& request, auto& response) {
      ++requests_;
      if (refused(request, response)) return;
      const auto found = files_.find(request.matches[3]);
      if (found == files_.end()) {
        response.status = 404;
        return;
      }
      if (request.matches[1] == "org/old")
        return redirect(response, "/org/model/resolve/" + commit_ + "/" + found->first);
      const auto& [content, etag, large] = found->second;
      response.set_header("X-Repo-Commit", kCommit);
      if (!large) return redirect(response, "/api/resolve-cache/" + found->first);
      response.set_header("X-Linked-Etag", "\"" + etag + "\"");
      response.set_header("X-Linked-Size", std::to_string(content.size()));
      response.set_redirect(storage_url_ + "/" + found->first + "?signature=1");
    });
    site_.Get("/api/resolve-cache/(.+)", [this](const auto& request, auto& response) {
      const auto& file = files_.at(request.matches[1]);
      response.set_header("ETag", "\"" + file.etag + "\"");
      response.set_content(file.content, "text/plain");
    });
    storage_.Get("/(.+)", [this](const auto& request, auto& response) {
      if (request.method == "GET") ranges_.push_back(request.get_header_value("Range"));
      if (request.has_header("Authorization")) leaked_ = true;
      const auto content = files_.at(request.matches[1]).content;
      const auto stop = break_after_.load();
      response.set_content_provider(content.size(), "application/octet-stream",
                                    [content, stop](std::size_t offset, std::size_t length, auto& sink) {
                                      const auto count = std::min<std::size_t>(length, 10'000);
                                      if (offset + count > stop) return false;
                                      return sink.write(content.data() + offset, count);
                                    });
    });
    site_url_ = start(site_, threads_[0]);
    storage_url_ = start(storage_, threads_[1]);
  }
  ~Hub() override {
    site_.stop();
    storage_.stop();
    for (auto& thread : threads_) thread.join();
  }

  static std::string start(httplib::Server& server, std::thread& thread) {
    const int port = server.bind_to_any_port("127.0.0.1");
    thread = std::thread([&server] { server.listen_after_bind(); });
    while (!server.is_running()) std::this_thread::yield();
    return "http://127.0.0.1:" + std::to_string(port);
  }
  // The hub answers so, with a body and an ETag that are not the file's.
  static void redirect(httplib::Response& response, const std::string& to) {
    response.set_header("ETag", "\"redirect\"");
    response.set_content("Temporary Redirect. Redirecting to " + to, "text/plain");
    response.set_redirect(to, 307);
  }
  bool refused(const httplib::Request& request, httplib::Response& response) const {
    if (request.path.find("none") != std::string::npos) response.status = 404;
    if (!token_.empty() && request.get_header_value("Authorization") != "Bearer " + token_)
      response.status = 401;
    return response.status >= 400;
  }
  void add(const std::string& name, const std::string& content, bool large) {
    const auto path = files_folder_.write(name, content);
    files_[name] = {content, large ? sha256_of_file(path) : git_digest_of_file(path), large};
  }
  fs::path fetch(const std::string& name = "org/model", const std::string& token = "",
                 bool offline = false) const {
    return hub_folder(name,
                      {.cache = cache_.path(), .endpoint = site_url_, .token = token, .offline = offline});
  }

  struct File {
    std::string content, etag;
    bool large;
  };
  std::map<std::string, File> files_;
  std::string commit_ = kCommit, token_, site_url_, storage_url_;
  std::atomic<std::size_t> break_after_ = std::string::npos;
  std::atomic<int> requests_ = 0;
  std::atomic<bool> leaked_ = false;
  std::vector<std::string> ranges_;
  TempFolder files_folder_, cache_;
  httplib::Server site_, storage_;
  std::thread threads_[2];
};

TEST_F(Hub, FillsTheHubsOwnCacheAndThenAsksNobody) {
  const auto folder = fetch();
  EXPECT_EQ(folder, cache_ / "models--org--model/snapshots" / kCommit);
  EXPECT_EQ(read_file(cache_ / "models--org--model/refs/main"), kCommit);
  for (const auto& [name, file] : files_) {
    EXPECT_EQ(read_file(folder / name), file.content);
    EXPECT_EQ(fs::read_symlink(folder / name), fs::path("../../blobs") / file.etag);
  }
  const int before = requests_;
  EXPECT_EQ(fetch(), folder);
  EXPECT_EQ(fetch("org/model", "", true), folder);
  EXPECT_EQ(requests_, before);
  EXPECT_EQ(fetch("model"), cache_ / "models--model/snapshots" / kCommit);
}

TEST_F(Hub, TakesAFilesSizeAndChecksumFromBehindRedirects) {
  for (const std::string name : {"org/model", "org/old"}) {
    const auto folder = fetch(name);
    for (const auto& [file, stored] : files_) {
      EXPECT_EQ(read_file(folder / file), stored.content) << name;
      EXPECT_EQ(fs::read_symlink(folder / file).filename(), stored.etag) << name;
    }
  }
}

// transformers leaves such a cache where its user wanted the weights alone.
TEST_F(Hub, CompletesACacheWithoutItsTokenizer) {
  const auto folder = fetch();
  const HubOptions online{.cache = cache_.path(), .endpoint = site_url_};
  const auto lacks = [&] { return !fs::exists(folder / "vocab.json") || !fs::exists(folder / "merges.txt"); };
  for (const char* name : {"vocab.json", "merges.txt"}) fs::remove(folder / name);
  commit_ = std::string(40, 'a');  // the model has changed meanwhile
  auto offline = online;
  offline.offline = true;
  complete_hub_tokenizer(folder, offline);
  complete_hub_tokenizer(folder, {.cache = cache_.path(), .endpoint = "http://127.0.0.1:1"});
  EXPECT_TRUE(lacks());
  complete_hub_tokenizer(folder, online);
  EXPECT_FALSE(lacks());
  const int before = requests_;
  complete_hub_tokenizer(folder, online);
  complete_hub_tokenizer(cache_.path(), online);
  EXPECT_EQ(requests_, before);
}

TEST_F(Hub, AsksOnceForATokenizerThatTheHubDoesNotHave) {
  for (const char* name : {"vocab.json", "merges.txt"}) files_.erase(name);
  const auto folder = fetch();
  const int before = requests_;
  complete_hub_tokenizer(folder, {.cache = cache_.path(), .endpoint = site_url_});
  EXPECT_EQ(requests_, before);
}

TEST_F(Hub, ResumesADownloadThatBroke) {
  break_after_ = 120'000;
  EXPECT_THAT(user_error([&] { fetch(); }), AllOf(HasSubstr("model.safetensors"), HasSubstr("HF_HOME")));
  EXPECT_FALSE(fs::exists(cache_ / "models--org--model/refs/main"));
  break_after_ = std::string::npos;
  const auto folder = fetch();
  EXPECT_EQ(ranges_.back(), "bytes=120000-");
  EXPECT_EQ(read_file(folder / "model.safetensors"), files_["model.safetensors"].content);
}

TEST_F(Hub, VerifiesChecksums) {
  files_["model.safetensors"].etag[0] ^= 1;
  EXPECT_THAT(user_error([&] { fetch(); }), HasSubstr("another file than its checksum says"));
  for (const auto& entry : fs::directory_iterator(cache_ / "models--org--model/blobs"))
    EXPECT_NE(entry.path().filename(), files_["model.safetensors"].etag);
  files_["config.json"].etag[0] ^= 1;
  EXPECT_THAT(user_error([&] { fetch("org/other"); }), HasSubstr("config.json"));
}

TEST_F(Hub, SendsTheTokenToTheHubAlone) {
  token_ = "hf_secret";
  EXPECT_THAT(user_error([&] { fetch(); }), AllOf(HasSubstr("without a token"), HasSubstr("HF_TOKEN")));
  EXPECT_THAT(user_error([&] { fetch("org/model", "wrong"); }), HasSubstr("with this token"));
  fetch("org/model", "hf_secret");
  EXPECT_FALSE(leaked_);
}

TEST_F(Hub, NamesWhatIsNotThere) {
  EXPECT_THAT(user_error([&] { fetch("org/none"); }), AllOf(HasSubstr("org/none"), HasSubstr("no such")));
  EXPECT_THAT(user_error([&] { fetch("org/model", "", true); }), HasSubstr("HF_HUB_OFFLINE"));
  files_.erase("model.safetensors");
  EXPECT_THAT(user_error([&] { fetch(); }), HasSubstr("neither model.safetensors nor pytorch_model.bin"));
  add("pytorch_model.bin", "pickled", true);
  EXPECT_EQ(read_file(fetch() / "pytorch_model.bin"), "pickled");
  EXPECT_THAT(
      user_error([&] { hub_folder("a/b", {.cache = cache_.path(), .endpoint = "http://127.0.0.1:1"}); }),
      HasSubstr("folder of your own"));
}

TEST_F(Hub, RefusesAnswersThatAreNotTheHubs) {
  httplib::Server other;
  std::string answer;
  other.Get("/api/.*", [&](const auto&, auto& response) { response.set_content(answer, "text/html"); });
  std::thread thread;
  const auto url = start(other, thread);
  const auto error = [&] {
    return user_error([&] { hub_folder("a/b", {.cache = cache_.path(), .endpoint = url}); });
  };
  for (const std::string wrong :
       {"<html>", "[]", "{}", R"({"sha": 5, "siblings": []})", R"({"sha": "12"})"}) {
    answer = wrong;
    EXPECT_EQ(error(), url + " does not answer as the hub does when asked for a/b") << wrong;
  }
  answer = R"({"sha": "../up", "siblings": []})";
  EXPECT_EQ(error(), url + ": \"../up\" is no commit");
  other.stop();
  thread.join();
}

TEST_F(Hub, TakesTheShardsOfAnIndex) {
  files_.erase("model.safetensors");
  add("model-1.safetensors", "first", true);
  add("model-2.safetensors", "second", true);
  add("model.safetensors.index.json",
      R"({"weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors", "c": "model-1.safetensors"}})",
      false);
  const auto folder = fetch();
  EXPECT_EQ(read_file(folder / "model-2.safetensors"), "second");
  fs::remove(folder / "model-2.safetensors");
  EXPECT_EQ(read_file(fetch() / "model-2.safetensors"), "second") << "an incomplete snapshot is completed";
}

// No answer of a server makes a file outside the cache.
TEST_F(Hub, RefusesNamesThatLeadOut) {
  add("model.safetensors.index.json", R"({"weight_map": {"a": "../../../../out"}})", false);
  const auto weights = files_.extract("model.safetensors");
  EXPECT_THAT(user_error([&] { fetch(); }), HasSubstr("not the name of a file"));
  files_.erase("model.safetensors.index.json");
  files_.insert({"model.safetensors", {weights.mapped().content, "../../out", true}});
  EXPECT_THAT(user_error([&] { fetch(); }), HasSubstr("no name for its contents"));
  commit_ = "../../out";
  EXPECT_THAT(user_error([&] { fetch("org/third"); }), HasSubstr("no commit"));
}

TEST(HubNames, AreThoseOfModels) {
  for (const char* name : {"gpt2", "openai-community/gpt2", "a_b/c.d-e"})
    EXPECT_TRUE(is_hub_name(name)) << name;
  for (const char* name : {"", "/gpt2", "a/b/c", "../x", "a/..", ".", "models/gpt 2", "a/b/", "~/gpt2"})
    EXPECT_FALSE(is_hub_name(name)) << name;
}

TEST(HubOptions, ComeFromTheEnvironment) {
  const TempFolder home;
  home.write("token", "hf_stored\n");
  for (const char* name : {"HF_HUB_CACHE", "HF_TOKEN", "HF_HUB_OFFLINE", "XDG_CACHE_HOME"}) unsetenv(name);
  setenv("HF_HOME", home.path().c_str(), 1);
  setenv("HF_ENDPOINT", "http://mirror/", 1);
  auto options = HubOptions::from_environment();
  EXPECT_EQ(options.cache, home / "hub");
  EXPECT_EQ(options.endpoint, "http://mirror");
  EXPECT_EQ(options.token, "hf_stored");
  EXPECT_FALSE(options.offline);
  setenv("HF_TOKEN", "hf_given", 1);
  setenv("HF_HUB_OFFLINE", "1", 1);
  unsetenv("HF_HOME");
  unsetenv("HF_ENDPOINT");
  setenv("XDG_CACHE_HOME", "/tmp/xdg", 1);
  options = HubOptions::from_environment();
  EXPECT_EQ(options.cache, "/tmp/xdg/huggingface/hub");
  EXPECT_EQ(options.token, "hf_given");
  EXPECT_TRUE(options.offline);
  for (const char* yes : {"True", "true", "yes", "YES", "on", "ON"}) {
    setenv("HF_HUB_OFFLINE", yes, 1);
    EXPECT_TRUE(HubOptions::from_environment().offline) << yes;
  }
  for (const char* no : {"", "0", "no", "off", "False", "2"}) {
    setenv("HF_HUB_OFFLINE", no, 1);
    EXPECT_FALSE(HubOptions::from_environment().offline) << no;
  }
  unsetenv("HF_TOKEN");
  unsetenv("HF_HUB_OFFLINE");
  unsetenv("XDG_CACHE_HOME");
}

// A ~ in quotes, or in a file of variables, is no shell's.
TEST(HubOptions, AHomeIsExpanded) {
  const std::string before = std::getenv("HOME") ? std::getenv("HOME") : "";
  for (const char* name : {"HF_HOME", "HF_HUB_CACHE", "XDG_CACHE_HOME"}) unsetenv(name);
  setenv("HOME", "/home/me/", 1);
  const auto cache = [] { return HubOptions::from_environment().cache.string(); };
  EXPECT_EQ(cache(), "/home/me/.cache/huggingface/hub");
  setenv("XDG_CACHE_HOME", "~/xdg", 1);
  EXPECT_EQ(cache(), "/home/me/xdg/huggingface/hub");
  setenv("HF_HOME", "~/hf", 1);
  EXPECT_EQ(cache(), "/home/me/hf/hub");
  setenv("HF_HOME", "/data/~/hf", 1);
  EXPECT_EQ(cache(), "/data/~/hf/hub");
  setenv("HF_HUB_CACHE", "~", 1);
  EXPECT_EQ(cache(), "/home/me");
  setenv("HF_HUB_CACHE", "~root/cache", 1);
  EXPECT_EQ(cache(), "/root/cache");
  setenv("HF_HUB_CACHE", "~no such user/cache", 1);
  EXPECT_EQ(cache(), "~no such user/cache");
  for (const char* name : {"HF_HOME", "HF_HUB_CACHE", "XDG_CACHE_HOME"}) unsetenv(name);
  setenv("HOME", before.c_str(), 1);
}

}  // namespace
}  // namespace shoal
