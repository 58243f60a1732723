// The private folder in which the ranks of a session find each other. It holds a token and rank 0's
// socket; rank 0 makes it, owns it by a lock, and removes it. What a dead session left is replaced.
#pragma once

#include <cstdint>
#include <string>

#include "base/unique_fd.hpp"
#include "gcmoe/status.hpp"
#include "group/unix_socket.hpp"

namespace gcmoe::group {

// 128 random bits that name a session.
struct Token {
    std::uint64_t words[2] = {0, 0};
    bool operator==(const Token&) const = default;
};

// Bits that nobody guesses.
Status draw_random(void* out, std::size_t bytes);

// Rank 0's side.
class OwnedFolder {
  public:
    // Makes the folder (mode 0700) or takes one over whose session is dead; a live one is waited
    // for. keep_token: rank 0 is a replacement, and the session goes on. Errors: kBadInput (not a
    // folder, of another user, another mode, in use by a session that has not ended in time, a path
    // that is too long, no session to go on with), kUnsupported.
    static Status open(const std::string& path, bool keep_token, double wait_s, OwnedFolder* out);

    OwnedFolder() = default;
    OwnedFolder(OwnedFolder&&) = default;
    OwnedFolder& operator=(OwnedFolder&& other) noexcept;
    ~OwnedFolder();
    [[nodiscard]] const Token& token() const { return token_; }
    [[nodiscard]] int listener() const { return listener_.get(); }

  private:
    std::string path_;
    UniqueFd lock_;  // the folder itself, locked
    UniqueFd listener_;
    Token token_;
};

// The other ranks' side: waits until rank 0 of a live session listens there.
// Errors: kBadInput (as above), kStalled (rank 0 has not come in time).
Status find_session(const std::string& path, const Deadline& deadline, Token* out);

// The session that the folder names now, and the process of its rank 0. False: it names none.
bool read_session(const std::string& path, Token* token, int* pid);

// The folder's name without slashes at its end: behind one a link would be followed.
std::string folder_name(const std::string& path);

// Path of rank 0's socket.
std::string socket_path(const std::string& folder);

}  // namespace gcmoe::group
