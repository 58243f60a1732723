#include "checkpoint/file_mapping.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

#include "checkpoint/message.hpp"

namespace gcmoe::checkpoint {
namespace {

// Closes its descriptor when it leaves the scope; a mapping stays valid without it.
struct Descriptor {
    int fd;
    ~Descriptor() {
        if (fd >= 0) ::close(fd);
    }
};

Status fail(const std::string& path, const std::string& reason) {
    return {Code::kBadCheckpoint, fmt::format("file {}: {}", quote(path), reason)};
}

}  // namespace

Status FileMapping::open(const std::string& path, std::shared_ptr<const FileMapping>* out) {
    // O_NONBLOCK: opening a named pipe must not wait for a writer; regular files ignore it.
    const Descriptor file{::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)};
    if (file.fd < 0) return fail(path, "cannot be opened: " + errno_text(errno));
    struct stat info {};
    if (::fstat(file.fd, &info) != 0) return fail(path, "has no size: " + errno_text(errno));
    if (!S_ISREG(info.st_mode)) return fail(path, "is not a regular file");
    const auto num_bytes = static_cast<std::uint64_t>(info.st_size);
    const std::uint8_t* bytes = nullptr;
    if (num_bytes > 0) {
        void* base = ::mmap(nullptr, num_bytes, PROT_READ, MAP_PRIVATE, file.fd, 0);
        if (base == MAP_FAILED) {
            return fail(path,
                        fmt::format("{} bytes cannot be mapped: {}", num_bytes, errno_text(errno)));
        }
        bytes = static_cast<const std::uint8_t*>(base);
    }
    out->reset(new FileMapping(bytes, num_bytes));
    return {};
}

FileMapping::~FileMapping() {
    if (bytes_ != nullptr) ::munmap(const_cast<std::uint8_t*>(bytes_), num_bytes_);
}

}  // namespace gcmoe::checkpoint
