#include "checkpoint/atomic_file.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <utility>

#include "checkpoint/message.hpp"

namespace gcmoe::checkpoint {
namespace {

// Linux moves at most 2^31 - 4096 bytes per call.
constexpr std::uint64_t kMaxWriteBytes = std::uint64_t{1} << 30;

std::atomic<std::uint64_t> num_created{0};

}  // namespace

Status AtomicFile::create(const std::string& path, std::unique_ptr<AtomicFile>* out) {
    struct stat existing {};
    if (::lstat(path.c_str(), &existing) == 0 && !S_ISREG(existing.st_mode)) {
        return {Code::kBadInput,
                fmt::format("file {} cannot be created: something that is no regular file has this "
                            "name (a device, a link, a folder), and would be replaced",
                            quote(path))};
    }
    const std::string partial =
        fmt::format("{}.partial-{}-{}", path, ::getpid(), num_created.fetch_add(1));
    const int fd = ::open(partial.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (fd < 0) {
        return {Code::kBadInput,
                fmt::format("file {} cannot be created: {}", quote(path), errno_text(errno))};
    }
    out->reset(new AtomicFile(path, partial, fd));
    return {};
}

AtomicFile::AtomicFile(std::string path, std::string partial_path, int fd)
    : path_(std::move(path)), partial_path_(std::move(partial_path)), fd_(fd) {}

AtomicFile::~AtomicFile() { discard(); }

void AtomicFile::discard() {
    if (fd_ >= 0) ::close(fd_);
    fd_ = -1;
    if (!partial_path_.empty()) ::unlink(partial_path_.c_str());
    partial_path_.clear();
}

Status AtomicFile::fail(const char* action, int error) {
    fault_ = Status(Code::kBadInput, fmt::format("file {} cannot be {}: {}", quote(path_), action,
                                                 errno_text(error)));
    discard();
    return fault_;
}

Status AtomicFile::write(const void* bytes, std::uint64_t num_bytes) {
    GCMOE_RETURN_IF_ERROR(fault_);
    const auto* next = static_cast<const char*>(bytes);
    while (num_bytes > 0) {
        const ::ssize_t written = ::write(fd_, next, std::min(num_bytes, kMaxWriteBytes));
        if (written < 0) {
            if (errno == EINTR) continue;
            return fail("written", errno);
        }
        next += written;
        num_bytes -= static_cast<std::uint64_t>(written);
    }
    return {};
}

Status AtomicFile::commit() {
    GCMOE_RETURN_IF_ERROR(fault_);
    if (::fsync(fd_) != 0) return fail("flushed", errno);
    const int fd = std::exchange(fd_, -1);
    if (::close(fd) != 0) return fail("closed", errno);
    if (std::rename(partial_path_.c_str(), path_.c_str()) != 0) return fail("named", errno);
    partial_path_.clear();
    return {};
}

Status write_text_file(const std::string& path, const std::string& text) {
    std::unique_ptr<AtomicFile> file;
    GCMOE_RETURN_IF_ERROR(AtomicFile::create(path, &file));
    GCMOE_RETURN_IF_ERROR(file->write(text.data(), text.size()));
    return file->commit();
}

}  // namespace gcmoe::checkpoint
