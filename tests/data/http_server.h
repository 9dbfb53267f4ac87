// A server on 127.0.0.1 that answers every GET with one file's bytes, one connection at a time.
#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <mutex>
#include <string>
#include <thread>

namespace shoal::test {

class HttpServer {
 public:
  explicit HttpServer(std::string content, bool ranges = true)
      : content_(std::move(content)), ranges_(ranges) {
    socket_ = socket(AF_INET, SOCK_STREAM, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t length = sizeof address;
    bind(socket_, reinterpret_cast<sockaddr*>(&address), length);
    listen(socket_, 4);
    getsockname(socket_, reinterpret_cast<sockaddr*>(&address), &length);
    url_ = "http://127.0.0.1:" + std::to_string(ntohs(address.sin_port));
    thread_ = std::thread([this] { serve(); });
  }
  ~HttpServer() {
    shutdown(socket_, SHUT_RDWR);  // accept returns
    thread_.join();
    close(socket_);
  }

  const std::string& url() const { return url_; }
  std::string last_range() {
    const std::lock_guard lock(mutex_);
    return range_;
  }
  void break_after(std::size_t bytes) { break_after_ = bytes; }
  int requests() const { return requests_; }

 private:
  void serve() {
    for (;;) {
      const int client = accept(socket_, nullptr, nullptr);
      if (client < 0) return;
      answer(client);
      close(client);
    }
  }

  void answer(int client) {
    ++requests_;
    std::string request;
    char buffer[4096];
    while (request.find("\r\n\r\n") == std::string::npos) {
      const auto count = recv(client, buffer, sizeof buffer, 0);
      if (count <= 0) return;
      request.append(buffer, static_cast<std::size_t>(count));
    }
    const std::lock_guard lock(mutex_);
    std::size_t start = 0;
    const std::string header = "Range: bytes=";
    const auto at = request.find(header);
    range_ = at == std::string::npos
                 ? ""
                 : request.substr(at + header.size(), request.find('\r', at) - at - header.size());
    if (ranges_ && !range_.empty()) start = std::stoul(range_);
    const auto body = content_.substr(start);
    std::string response = start > 0 ? "HTTP/1.1 206 Partial Content\r\n" : "HTTP/1.1 200 OK\r\n";
    if (start > 0) {
      response += "Content-Range: bytes " + std::to_string(start) + "-" +
                  std::to_string(content_.size() - 1) + "/" + std::to_string(content_.size()) + "\r\n";
    }
    response += "Connection: close\r\nContent-Length: " + std::to_string(body.size()) + "\r\n\r\n";
    response += body.substr(0, break_after_);
    for (std::size_t sent = 0; sent < response.size();) {
      const auto count = send(client, response.data() + sent, response.size() - sent, MSG_NOSIGNAL);
      if (count <= 0) return;
      sent += static_cast<std::size_t>(count);
    }
    // Waits until the client has read all data: closing at once could discard it.
    shutdown(client, SHUT_WR);
    while (recv(client, buffer, sizeof buffer, 0) > 0) {
    }
  }

  std::string content_, url_, range_;
  std::mutex mutex_;  // guards range_
  bool ranges_;
  std::atomic<std::size_t> break_after_ = std::string::npos;
  std::atomic<int> requests_ = 0;
  int socket_ = -1;
  std::thread thread_;
};

}  // namespace shoal::test
