#include "group/session_folder.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cinttypes>
#include <cstdio>
#include <string_view>
#include <system_error>
#include <thread>
#include <utility>

namespace gcmoe::group {
namespace {

constexpr mode_t kFolderMode = 0700;
constexpr mode_t kFileMode = 0600;
constexpr const char* kTokenFile = "token";
constexpr const char* kFreshTokenFile = "token.new";
constexpr const char* kSocketFile = "rank0";
constexpr ssize_t kMostTokenBytes = 45;  // 32 digits, a process number, a space, a newline
constexpr std::chrono::milliseconds kRetry{5};
constexpr int kMostRefusals = 4;
// Each failed try is a session that has just ended.
constexpr int kMostTries = 1000;

std::string errno_text() { return std::generic_category().message(errno); }

Status refuse(const std::string& path, const std::string& why) {
    return {Code::kBadInput, fmt::format("session folder '{}' {}", path, why)};
}

Status check_path(const std::string& path) {
    if (socket_path(path).size() <= kMostPathBytes) return {};
    return refuse(path, fmt::format("is too long: a socket in it would have a path of {} bytes, "
                                    "at most {} are possible",
                                    socket_path(path).size(), kMostPathBytes));
}

// What lies there must be this user's, and closed to others.
Status judge_folder(const std::string& path, int folder) {
    struct stat info {};
    if (::fstat(folder, &info) != 0) return refuse(path, errno_text());
    if (info.st_uid != ::geteuid()) {
        return refuse(path,
                      fmt::format("belongs to user {}, not to user {}", info.st_uid, ::geteuid()));
    }
    if ((info.st_mode & 07777) != kFolderMode) {
        const mode_t missing = kFolderMode & ~info.st_mode;
        return refuse(
            path,
            fmt::format("has mode {:04o}, not {:04o}: {}", info.st_mode & 07777, kFolderMode,
                        missing != 0 ? "its owner cannot use it" : "others could reach the ranks"));
    }
    return {};
}

// An empty descriptor: no folder, or a link.
UniqueFd open_any(const std::string& path) {
    return UniqueFd(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
}

// Opens the folder and judges what it is. An empty descriptor with an Ok status: nothing is there.
Status open_folder(const std::string& path, UniqueFd* out) {
    UniqueFd folder = open_any(path);
    if (!folder.is_open()) {
        if (errno == ENOENT) return {};
        if (errno == ENOTDIR || errno == ELOOP) return refuse(path, "is no folder (or a link)");
        return refuse(path, "cannot be opened: " + errno_text());
    }
    GCMOE_RETURN_IF_ERROR(judge_folder(path, folder.get()));
    *out = std::move(folder);
    return {};
}

// The folder was removed while it was waited for.
bool is_gone(int folder) {
    struct stat info {};
    return ::fstat(folder, &info) != 0 || info.st_nlink == 0;
}

// The token and the process that wrote it.
bool read_token(int folder, Token* token, int* pid) {
    const UniqueFd file(::openat(folder, kTokenFile, O_RDONLY | O_NOFOLLOW | O_CLOEXEC));
    char text[64] = {};
    if (!file.is_open() || ::read(file.get(), text, sizeof(text) - 1) <= 0) return false;
    return std::sscanf(text, "%16" SCNx64 "%16" SCNx64 " %d", &token->words[0], &token->words[1],
                       pid) == 3;
}

// A name that sessions use is free, or what a session left there: a socket, or a short file of hex
// digits. Anything else is the user's and stays.
Status check_name(const std::string& path, int folder, const char* name) {
    struct stat info {};
    if (::fstatat(folder, name, &info, AT_SYMLINK_NOFOLLOW) != 0) return {};
    bool is_ours = S_ISSOCK(info.st_mode);
    if (name != kSocketFile) {
        const UniqueFd file(::openat(folder, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
        char text[kMostTokenBytes + 1] = {};
        const ssize_t bytes = file.is_open() ? ::read(file.get(), text, sizeof(text)) : -1;
        is_ours = S_ISREG(info.st_mode) && bytes >= 0 && bytes <= kMostTokenBytes &&
                  std::string_view(text, static_cast<std::size_t>(bytes))
                          .find_first_not_of("0123456789abcdef \n") == std::string_view::npos;
    }
    if (is_ours) return {};
    return refuse(
        path, fmt::format("holds '{}', which no session has written: choose another one", name));
}

// Written beside and renamed: a reader sees a whole one.
Status write_token(const std::string& path, int folder, const Token& token) {
    const std::string text =
        fmt::format("{:016x}{:016x} {}\n", token.words[0], token.words[1], ::getpid());
    ::unlinkat(folder, kFreshTokenFile, 0);
    const UniqueFd file(::openat(folder, kFreshTokenFile,
                                 O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, kFileMode));
    const bool written =
        file.is_open() &&
        ::write(file.get(), text.data(), text.size()) == static_cast<ssize_t>(text.size()) &&
        ::renameat(folder, kFreshTokenFile, folder, kTokenFile) == 0;
    return written ? Status() : refuse(path, "cannot be written: " + errno_text());
}

// A folder that this process has made, whatever its parent and the umask say about modes.
Status give_mode(const std::string& path) {
    const UniqueFd folder = open_any(path);
    if (folder.is_open() && ::fchmod(folder.get(), kFolderMode) == 0) return {};
    const std::string reason = errno_text();
    ::rmdir(path.c_str());
    return refuse(path, "cannot be made: " + reason);
}

// Of a folder that somebody has locked.
Status refuse_live(const std::string& path, int folder, double wait_s) {
    Token token;
    int pid = 0;
    read_token(folder, &token, &pid);
    return refuse(path, fmt::format("is in use by a live session, which has not ended within {:g} "
                                    "s: its rank 0 is process {}, this one is process {}",
                                    wait_s, pid, ::getpid()));
}

// Makes the folder if it is not there, and locks it when nobody else has.
Status lock_folder(const std::string& path, double wait_s, UniqueFd* out) {
    const Deadline deadline(wait_s);
    for (int num_tries = 0; num_tries < kMostTries;) {
        const bool is_new = ::mkdir(path.c_str(), kFolderMode) == 0;
        if (!is_new && errno != EEXIST) return refuse(path, "cannot be made: " + errno_text());
        if (is_new) GCMOE_RETURN_IF_ERROR(give_mode(path));
        UniqueFd folder;
        GCMOE_RETURN_IF_ERROR(open_folder(path, &folder));
        if (folder.is_open() && ::flock(folder.get(), LOCK_EX | LOCK_NB) != 0) {
            if (deadline.passed()) return refuse_live(path, folder.get(), wait_s);
            std::this_thread::sleep_for(kRetry);
            continue;
        }
        if (!folder.is_open() || is_gone(folder.get())) {  // its session has just ended
            ++num_tries;
            continue;
        }
        *out = std::move(folder);
        return {};
    }
    return refuse(path, "comes and goes: other sessions begin and end there");
}

}  // namespace

std::string folder_name(const std::string& path) {
    const std::size_t last = path.find_last_not_of('/');
    return last == std::string::npos ? path : path.substr(0, last + 1);
}

std::string socket_path(const std::string& folder) { return folder + "/" + kSocketFile; }

Status draw_random(void* out, std::size_t bytes) {
    if (::getrandom(out, bytes, 0) == static_cast<ssize_t>(bytes)) return {};
    return {Code::kUnsupported, "no random bits: " + errno_text()};
}

Status OwnedFolder::open(const std::string& path, bool keep_token, double wait_s,
                         OwnedFolder* out) {
    GCMOE_RETURN_IF_ERROR(check_path(path));
    OwnedFolder owned;
    GCMOE_RETURN_IF_ERROR(lock_folder(path, wait_s, &owned.lock_));
    const int folder = owned.lock_.get();
    int pid = 0;
    if (keep_token && !read_token(folder, &owned.token_, &pid)) {
        return refuse(path, "holds no session in which rank 0 could be replaced");
    }
    for (const char* name : {kSocketFile, kTokenFile, kFreshTokenFile}) {
        GCMOE_RETURN_IF_ERROR(check_name(path, folder, name));
    }
    owned.path_ = path;  // from here on the destructor clears it
    if (!keep_token) GCMOE_RETURN_IF_ERROR(draw_random(&owned.token_, sizeof(owned.token_)));
    GCMOE_RETURN_IF_ERROR(write_token(path, folder, owned.token_));
    ::unlinkat(folder, kSocketFile, 0);  // of a dead session
    GCMOE_RETURN_IF_ERROR(listen_at(socket_path(path), &owned.listener_));
    *out = std::move(owned);
    return {};
}

OwnedFolder& OwnedFolder::operator=(OwnedFolder&& other) noexcept {
    std::swap(path_, other.path_);
    std::swap(lock_, other.lock_);
    std::swap(listener_, other.listener_);
    std::swap(token_, other.token_);
    return *this;
}

OwnedFolder::~OwnedFolder() {
    if (!lock_.is_open() || path_.empty()) return;
    for (const char* name : {kSocketFile, kTokenFile, kFreshTokenFile}) {
        ::unlinkat(lock_.get(), name, 0);
    }
    ::rmdir(path_.c_str());  // stays if the user keeps files there
}

Status find_session(const std::string& path, const Deadline& deadline, Token* out) {
    GCMOE_RETURN_IF_ERROR(check_path(path));
    for (int num_refused = 0;;) {
        UniqueFd folder;
        // Rank 0 has perhaps made the folder, and not yet given it its mode.
        if (Status status = open_folder(path, &folder); !status.ok()) {
            if (++num_refused == kMostRefusals || deadline.passed()) return status;
        }
        int pid = 0;
        // Somebody listens: the token that stands there now is that session's, or a later one's.
        if (folder.is_open() && connect_to(socket_path(path)).is_open() &&
            read_token(folder.get(), out, &pid)) {
            return {};
        }
        if (deadline.passed()) return {Code::kStalled, ""};
        std::this_thread::sleep_for(kRetry);
    }
}

bool read_session(const std::string& path, Token* token, int* pid) {
    const UniqueFd folder = open_any(path);
    return folder.is_open() && read_token(folder.get(), token, pid);
}

}  // namespace gcmoe::group
