#include "data/http.h"

#include <curl/curl.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>
#include <mutex>

#include "core/error.h"
#include "core/log.h"
#include "core/progress.h"
#include "core/version.h"

namespace shoal {
namespace {

void initialise_curl() {
  static std::once_flag once;
  std::call_once(once, [] { curl_global_init(CURL_GLOBAL_DEFAULT); });
}

std::size_t on_body(char* data, std::size_t, std::size_t count, void* user) {
  const auto& request = *static_cast<const HttpRequest*>(user);
  return !request.on_body || request.on_body({data, count}) ? count : 0;
}

std::size_t on_header(char* data, std::size_t, std::size_t count, void* user) {
  const std::string_view line(data, count);
  auto& headers = static_cast<HttpResponse*>(user)->headers;
  if (line.starts_with("HTTP/")) {  // the status of the next response
    std::erase_if(headers, [](const auto& header) { return !header.first.starts_with("x-"); });
    return count;
  }
  const auto colon = line.find(':');
  if (colon == std::string_view::npos) return count;
  std::string name(line.substr(0, colon));
  std::ranges::transform(name, name.begin(), [](unsigned char c) { return std::tolower(c); });
  auto value = line.substr(colon + 1);
  const auto begin = value.find_first_not_of(" \t"), end = value.find_last_not_of(" \t\r\n");
  value = begin == std::string_view::npos ? "" : value.substr(begin, end - begin + 1);
  headers.try_emplace(std::move(name), value);
  return count;
}

[[noreturn]] void fail_file(const std::filesystem::path& partial, int reason) {
  throw DownloadFileError(fmt::format("cannot write {}: {}", partial.string(), std::strerror(reason)));
}

}  // namespace

HttpResponse http_get(const HttpRequest& request) {
  initialise_curl();
  const std::unique_ptr<CURL, void (*)(CURL*)> curl(curl_easy_init(), curl_easy_cleanup);
  if (!curl) fail("libcurl cannot be initialised");
  HttpResponse response;
  std::unique_ptr<curl_slist, void (*)(curl_slist*)> headers(nullptr, curl_slist_free_all);
  for (const auto& header : request.headers) {
    headers.reset(curl_slist_append(headers.release(), header.c_str()));
  }
  std::array<char, CURL_ERROR_SIZE> message{};
  curl_easy_setopt(curl.get(), CURLOPT_URL, request.url.c_str());
  curl_easy_setopt(curl.get(), CURLOPT_USERAGENT, fmt::format("shoal/{}", kVersion).c_str());  // copied
  curl_easy_setopt(curl.get(), CURLOPT_HTTPHEADER, headers.get());
  curl_easy_setopt(curl.get(), CURLOPT_PROTOCOLS_STR, "http,https,file");
  curl_easy_setopt(curl.get(), CURLOPT_REDIR_PROTOCOLS_STR, "http,https");
  curl_easy_setopt(curl.get(), CURLOPT_FOLLOWLOCATION, 1L);
  curl_easy_setopt(curl.get(), CURLOPT_FAILONERROR, 1L);
  curl_easy_setopt(curl.get(), CURLOPT_NOSIGNAL, 1L);
  curl_easy_setopt(curl.get(), CURLOPT_NOBODY, request.head ? 1L : 0L);
  curl_easy_setopt(curl.get(), CURLOPT_CONNECTTIMEOUT, 15L);
  curl_easy_setopt(curl.get(), CURLOPT_LOW_SPEED_LIMIT, 1L);
  curl_easy_setopt(curl.get(), CURLOPT_LOW_SPEED_TIME, 30L);
  curl_easy_setopt(curl.get(), CURLOPT_ERRORBUFFER, message.data());
  curl_easy_setopt(curl.get(), CURLOPT_WRITEFUNCTION, on_body);
  curl_easy_setopt(curl.get(), CURLOPT_WRITEDATA, &request);
  curl_easy_setopt(curl.get(), CURLOPT_HEADERFUNCTION, on_header);
  curl_easy_setopt(curl.get(), CURLOPT_HEADERDATA, &response);
  curl_easy_setopt(curl.get(), CURLOPT_RESUME_FROM_LARGE, static_cast<curl_off_t>(request.start));

  const CURLcode code = curl_easy_perform(curl.get());
  curl_easy_getinfo(curl.get(), CURLINFO_RESPONSE_CODE, &response.status);
  if (code == CURLE_OK) return response;
  response.cannot_resume = request.start > 0 && (code == CURLE_RANGE_ERROR ||
                                                 code == CURLE_BAD_DOWNLOAD_RESUME || response.status == 416);
  response.problem = message[0] != 0 ? message.data() : curl_easy_strerror(code);
  return response;
}

HttpResponse http_append(HttpRequest request, const std::filesystem::path& partial, const std::string& name,
                         std::int64_t size) {
  std::error_code missing;
  const auto there = std::filesystem::file_size(partial, missing);
  request.start = missing ? 0 : static_cast<std::int64_t>(there);
  if (size > 0 && request.start >= size) return {};

  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> out(std::fopen(partial.c_str(), "ab"), std::fclose);
  if (!out) fail_file(partial, errno);
  if (request.start > 0) log::info("resuming the download of {}", name);
  Progress progress("downloading " + name, static_cast<double>(size), "B");
  std::int64_t received = request.start;
  bool too_long = false;
  int failed = 0;  // the reason why a write did
  request.on_body = [&](std::string_view data) {
    received += static_cast<std::int64_t>(data.size());
    too_long = size > 0 && received > size;
    if (too_long) return false;
    if (std::fwrite(data.data(), 1, data.size(), out.get()) != data.size()) failed = errno;
    progress.update(static_cast<double>(received));
    return failed == 0;
  };
  auto response = http_get(request);
  progress.finish();
  if (failed == 0 && std::fflush(out.get()) != 0) failed = errno;
  if (failed != 0) fail_file(partial, failed);
  if (too_long) {
    response.problem = "it is longer than the file should be";
    response.cannot_resume = true;
  }
  return response;
}

}  // namespace shoal
