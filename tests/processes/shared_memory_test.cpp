// Memory that is handed over: what it is is checked before it is mapped.
#include "cpu/shared_memory.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cstring>
#include <utility>

#include "op/refusal.hpp"
#include "rank_process.hpp"

namespace gcmoe {
namespace {

using cpu::SharedMemory;
using test::expect_refused;

constexpr std::uint64_t kBytes = 10000;  // no multiple of a page

SharedHandle file_of(std::uint64_t bytes, int seals) {
    SharedHandle handle{SharedMemory::kKind, bytes,
                        UniqueFd(::memfd_create("gcmoe-test", MFD_CLOEXEC | MFD_ALLOW_SEALING))};
    EXPECT_EQ(::ftruncate(handle.fd.get(), static_cast<off_t>(bytes)), 0);
    EXPECT_EQ(::fcntl(handle.fd.get(), F_ADD_SEALS, seals), 0);
    return handle;
}

TEST(SharedMemoryTest, BothSidesSeeTheSameBytes) {
    const test::Holdings before = test::Holdings::now();
    {
        SharedMemory own;
        ASSERT_TRUE(SharedMemory::create(kBytes, &own).ok());
        ASSERT_EQ(own.size(), kBytes);
        for (std::uint64_t i = 0; i < kBytes; ++i) ASSERT_EQ(own.data()[i], 0) << i;
        SharedHandle handle;
        ASSERT_TRUE(own.share(&handle).ok());
        EXPECT_EQ(::fcntl(handle.fd.get(), F_GETFD), FD_CLOEXEC);
        SharedMemory peer;
        ASSERT_TRUE(SharedMemory::map(handle, kBytes, &peer).ok());
        own.data()[kBytes - 1] = 7;
        EXPECT_EQ(peer.data()[kBytes - 1], 7);
        own = SharedMemory();
        EXPECT_EQ(peer.data()[kBytes - 1], 7) << "it lives as long as one of its users";
    }
    EXPECT_EQ(test::Holdings::now().beyond(before), "");
}

TEST(SharedMemoryTest, SizeCannotBeChangedByItsOwner) {
    SharedMemory own;
    ASSERT_TRUE(SharedMemory::create(kBytes, &own).ok());
    SharedHandle handle;
    ASSERT_TRUE(own.share(&handle).ok());
    EXPECT_NE(::ftruncate(handle.fd.get(), 1), 0);
    EXPECT_NE(::ftruncate(handle.fd.get(), 1 << 20), 0);
}

TEST(SharedMemoryTest, WhatIsNotAHeapIsRefused) {
    SharedMemory out;
    const int sealed = F_SEAL_SHRINK | F_SEAL_GROW;
    const auto refused = [&](const SharedHandle& handle, const std::vector<std::string>& words) {
        expect_refused(SharedMemory::map(handle, kBytes, &out), Code::kBadConfig, words);
        EXPECT_EQ(out.data(), nullptr);
    };
    refused(file_of(kBytes, 0), {"size is not sealed"});
    refused(file_of(kBytes, F_SEAL_GROW), {"size is not sealed"});
    refused(file_of(kBytes - 1, sealed), {"9999 bytes announced, 9999 found, 10000 expected"});
    SharedHandle liar = file_of(100, sealed);
    liar.bytes = kBytes;
    refused(liar, {"10000 bytes announced, 100 found, 10000 expected"});
    SharedHandle other = file_of(kBytes, sealed);
    other.kind = "cuda";
    refused(other, {"kind is 'cuda', not 'memfd'"});
    refused(SharedHandle{SharedMemory::kKind, kBytes, {}}, {"kind"});
    SharedHandle plain{SharedMemory::kKind, kBytes, UniqueFd(::open("/dev/zero", O_RDWR))};
    refused(plain, {"size is not sealed"});
}

// In a child that may not make large files: should the refusal be missing, no memory is taken.
TEST(SharedMemoryTest, MoreThanTheMachineHasIsRefused) {
    test::RankProcess child([](test::Outcome* out) {
        const rlimit small{1 << 20, 1 << 20};
        ::signal(SIGXFSZ, SIG_IGN);
        if (::setrlimit(RLIMIT_FSIZE, &small) != 0) return;
        SharedMemory memory;
        out->set(SharedMemory::create(std::uint64_t{1} << 50, &memory));
    });
    const test::Outcome outcome = child.wait();
    EXPECT_EQ(outcome.code, Code::kUnsupported);
    EXPECT_NE(outcome.message.find("1125899906842624 bytes of shared memory: the machine has "),
              std::string::npos)
        << outcome.message;
}

}  // namespace
}  // namespace gcmoe
