#include "data/http.h"

#include <curl/curl.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <memory>
#include <mutex>

#include "core/error.h"
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
  const auto colon = line.find(':');
  if (colon == std::string_view::npos) return count;
  std::string name(line.substr(0, colon));
  std::ranges::transform(name, name.begin(), [](unsigned char c) { return std::tolower(c); });
  auto value = line.substr(colon + 1);
  const auto begin = value.find_first_not_of(" \t"), end = value.find_last_not_of(" \t\r\n");
  value = begin == std::string_view::npos ? "" : value.substr(begin, end - begin + 1);
  static_cast<HttpResponse*>(user)->headers.try_emplace(std::move(name), value);
  return count;
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

}  // namespace shoal
