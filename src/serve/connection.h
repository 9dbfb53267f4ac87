// A connection's socket, which cpp-httplib before 0.18 does not show to its handlers.
#pragma once

#include <string>

namespace shoal::serve {

// The socket of this process whose other end is `address` (as numbers) and `port`; -1 where there is none.
int find_socket(const std::string& address, int port);

// Whether the client has closed the connection. False for -1.
bool is_closed(int socket);

// No more can be read than what has come. Does nothing for -1.
void end_reading(int socket);
// The same for all connections to a port of this process.
void end_reading_at(int port);

// Ends the answer, and reads for a second at most what the client still sends: it sees the answer, which the
// reset of a connection closed at once might take from it.
void finish_answer(int socket);

}  // namespace shoal::serve
