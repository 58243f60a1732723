#include "cpu/shared_memory.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <fstream>
#include <string>
#include <system_error>
#include <utility>

namespace gcmoe::cpu {
namespace {

constexpr int kSizeSeals = F_SEAL_SHRINK | F_SEAL_GROW;

Status fail(std::uint64_t bytes, const char* what, int error) {
    return {Code::kUnsupported, fmt::format("{} bytes of shared memory: {}: {}", bytes, what,
                                            std::generic_category().message(error))};
}

Status refuse(const std::string& what) {
    return {Code::kBadConfig, "shared memory of a peer: " + what};
}

constexpr std::uint64_t kNoLimit = ~std::uint64_t{0};

// Bytes that the machine can give without pushing out anything.
std::uint64_t machine_bytes() {
    std::ifstream file("/proc/meminfo");
    for (std::string word; file >> word;) {
        std::uint64_t kib = 0;
        if (word == "MemAvailable:" && file >> kib) return kib * 1024;
    }
    return kNoLimit;
}

// Bytes that the control group (a container's limit) leaves; "max" and no group: no limit.
std::uint64_t group_bytes() {
    std::uint64_t limit = 0;
    std::uint64_t used = 0;
    if (!(std::ifstream("/sys/fs/cgroup/memory.max") >> limit)) return kNoLimit;
    if (!(std::ifstream("/sys/fs/cgroup/memory.current") >> used)) return kNoLimit;
    return limit > used ? limit - used : 0;
}

// A file of memory without a limit of its own would be filled until the kernel ends processes.
Status check_available(std::uint64_t bytes) {
    const std::uint64_t available = std::min(machine_bytes(), group_bytes());
    if (bytes <= available) return {};
    return {
        Code::kUnsupported,
        fmt::format("{} bytes of shared memory: the machine has {} available", bytes, available)};
}

// In slices, and before each one a look at what is left: ranks that start together take from the
// same memory.
Status allocate(int fd, std::uint64_t bytes) {
    constexpr std::uint64_t kSlice = 256ULL << 20;
    for (std::uint64_t at = 0; at < bytes; at += kSlice) {
        GCMOE_RETURN_IF_ERROR(check_available(bytes - at));
        const std::uint64_t slice = std::min(kSlice, bytes - at);
        int error = EINTR;
        while (error == EINTR) {
            error = ::posix_fallocate(fd, static_cast<off_t>(at), static_cast<off_t>(slice));
        }
        if (error != 0) return fail(bytes, "cannot be had", error);
    }
    return {};
}

Status map_bytes(int fd, std::uint64_t bytes, std::uint8_t** out) {
    void* base = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (base == MAP_FAILED) return fail(bytes, "cannot be mapped", errno);
    *out = static_cast<std::uint8_t*>(base);
    return {};
}

}  // namespace

Status SharedMemory::create(std::uint64_t bytes, SharedMemory* out) {
    SharedMemory made;
    made.fd_ = UniqueFd(::memfd_create("gcmoe-heap", MFD_CLOEXEC | MFD_ALLOW_SEALING));
    if (!made.fd_.is_open()) return fail(bytes, "cannot be made", errno);
    const int fd = made.fd_.get();
    GCMOE_RETURN_IF_ERROR(allocate(fd, bytes));
    if (::fcntl(fd, F_ADD_SEALS, kSizeSeals | F_SEAL_SEAL) != 0) {
        return fail(bytes, "cannot be sealed", errno);
    }
    GCMOE_RETURN_IF_ERROR(map_bytes(fd, bytes, &made.data_));
    made.bytes_ = bytes;
    *out = std::move(made);
    return {};
}

Status SharedMemory::map(const SharedHandle& handle, std::uint64_t bytes, SharedMemory* out) {
    if (handle.kind != kKind || !handle.fd.is_open()) {
        return refuse(fmt::format("its kind is '{}', not '{}'", handle.kind, kKind));
    }
    const int fd = handle.fd.get();
    const int seals = ::fcntl(fd, F_GET_SEALS);
    if (seals < 0 || (seals & kSizeSeals) != kSizeSeals) {
        return refuse("its size is not sealed");
    }
    struct stat info {};
    if (::fstat(fd, &info) != 0) return fail(bytes, "has no size", errno);
    const auto found = static_cast<std::uint64_t>(info.st_size);
    if (handle.bytes != bytes || found != bytes) {
        return refuse(
            fmt::format("{} bytes announced, {} found, {} expected", handle.bytes, found, bytes));
    }
    SharedMemory mapped;
    GCMOE_RETURN_IF_ERROR(map_bytes(fd, bytes, &mapped.data_));
    mapped.bytes_ = bytes;
    *out = std::move(mapped);
    return {};
}

SharedMemory::SharedMemory(SharedMemory&& other) noexcept { *this = std::move(other); }

SharedMemory& SharedMemory::operator=(SharedMemory&& other) noexcept {
    std::swap(fd_, other.fd_);
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    return *this;
}

SharedMemory::~SharedMemory() {
    if (data_ != nullptr) ::munmap(data_, bytes_);
}

Status SharedMemory::share(SharedHandle* out) const {
    UniqueFd copy(::fcntl(fd_.get(), F_DUPFD_CLOEXEC, 0));
    if (!copy.is_open()) return fail(bytes_, "cannot be handed over", errno);
    *out = SharedHandle{kKind, bytes_, std::move(copy)};
    return {};
}

}  // namespace gcmoe::cpu
