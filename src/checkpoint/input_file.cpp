#include "checkpoint/input_file.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "base/check.hpp"
#include "checkpoint/message.hpp"

namespace gcmoe::checkpoint {
namespace {

// Linux moves at most 2^31 - 4096 bytes per call.
constexpr std::uint64_t kMaxReadBytes = std::uint64_t{1} << 30;

Status fail(const std::string& path, const std::string& reason) {
    return {Code::kBadCheckpoint, fmt::format("file {}: {}", quote(path), reason)};
}

}  // namespace

InputFile::InputFile(std::string path, int fd, std::uint64_t num_bytes)
    : path_(std::move(path)), fd_(fd), num_bytes_(num_bytes) {}

InputFile::~InputFile() { ::close(fd_); }

Status InputFile::open(const std::string& path, std::shared_ptr<const InputFile>* out) {
    // O_NONBLOCK: opening a named pipe must not wait for a writer; regular files ignore it.
    const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0) return fail(path, "cannot be opened: " + errno_text(errno));
    std::shared_ptr<InputFile> file(new InputFile(path, fd, 0));
    struct stat info {};
    if (::fstat(fd, &info) != 0) return fail(path, "has no size: " + errno_text(errno));
    if (!S_ISREG(info.st_mode)) return fail(path, "is not a regular file");
    file->num_bytes_ = static_cast<std::uint64_t>(info.st_size);
    *out = std::move(file);
    return {};
}

Status InputFile::shrunk(std::uint64_t end) const {
    struct stat info {};
    if (::fstat(fd_, &info) != 0) return fail(path_, "has no size: " + errno_text(errno));
    return fail(path_, fmt::format("had {} bytes when it was opened and has {} now, byte {} is "
                                   "needed: it was cut off while it was read",
                                   num_bytes_, info.st_size, end));
}

Status InputFile::read(std::uint64_t begin, std::uint64_t num_bytes, void* out) const {
    GCMOE_CHECK(begin <= num_bytes_ && num_bytes <= num_bytes_ - begin, begin, num_bytes,
                num_bytes_);
    auto* next = static_cast<std::uint8_t*>(out);
    const std::uint64_t end = begin + num_bytes;
    while (begin < end) {
        const ::ssize_t num_read =
            ::pread(fd_, next, std::min(end - begin, kMaxReadBytes), static_cast<::off_t>(begin));
        if (num_read < 0 && errno == EINTR) continue;
        if (num_read < 0) {
            return fail(path_, fmt::format("{} bytes at {} cannot be read: {}", end - begin, begin,
                                           errno_text(errno)));
        }
        if (num_read == 0) return shrunk(end);
        next += num_read;
        begin += static_cast<std::uint64_t>(num_read);
    }
    return {};
}

}  // namespace gcmoe::checkpoint
