// What the ranks of a session say to each other when they meet, as bytes.
//
// Every packet begins with the same header: magic, version of the wire form, kind, session token,
// rank, number of ranks. A packet carries at most one descriptor, beside its bytes.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "gcmoe/status.hpp"
#include "group/configuration.hpp"
#include "group/session_folder.hpp"
#include "group/unix_socket.hpp"

namespace gcmoe::group {

enum class PacketKind : std::uint32_t {
    kHello = 1,  // rank -> chair: who it is and what it brings; with its handle
    kWelcome,    // chair -> rank: seated, and how long the others are waited for (Deadline::left_s)
    kPeer,       // chair -> rank: another rank's handle
    kAgreed,     // chair -> rank: what all start from
    kReady,      // rank -> chair: signals are set, peers are mapped; or why not
    kVerdict,    // chair -> rank: go, or why not
};

struct PacketHeader {
    std::uint32_t magic = 0;
    std::uint32_t version = 0;
    std::uint32_t kind = 0;
    std::int32_t rank = -1;  // of the sender
    std::int32_t num_ranks = 0;
    std::uint32_t padding = 0;
    Token token;
};
static_assert(sizeof(PacketHeader) == 40);

// Ranks of different wire versions understand the header and kVerdict, no more.
inline constexpr std::uint32_t kWireMagic = 0x454F4D47;  // "GMOE"
inline constexpr std::uint32_t kWireVersion = 2;

// Who a rank is, in every packet.
struct Identity {
    int rank = 0;
    int num_ranks = 1;
    Token token;
};

struct Hello {
    std::int32_t pid = 0;
    std::uint64_t incarnation = 0;  // random: tells this process from one it has replaced
    bool is_reset = false;          // the rank has been in an earlier session of this workspace
    bool move = false;
    std::uint32_t generation = 0;  // last finished
    std::uint32_t session = 0;
    std::vector<std::uint64_t> members;  // incarnations of that session, by rank
    std::string subject;
    Configuration configuration;
    std::string handle_kind;  // empty: brings nothing
    std::uint64_t handle_bytes = 0;
    Status failure;  // why the rank cannot take part: it comes to tell the others
};

// Two processes come as the same rank: `comer` takes the place of `seated` only if it is ahead in
// the workspace's sessions. Then `seated` was replaced once and has woken up. A process that is new
// to the workspace has no session yet: nobody takes its place, and it takes nobody's.
[[nodiscard]] bool takes_place_of(const Hello& comer, const Hello& seated);

struct Agreed {
    bool is_restart = false;  // of a workspace that some rank knows already
    std::uint32_t generation = 0;
    std::uint32_t session = 0;
    std::vector<std::uint64_t> members;
};

struct PeerHandle {
    std::int32_t rank = 0;
    std::string kind;
    std::uint64_t bytes = 0;
};

Bytes encode(const Identity& from, const Hello& hello);
Bytes encode(const Identity& from, const Agreed& agreed);
Bytes encode(const Identity& from, const PeerHandle& peer);
Bytes encode_welcome(const Identity& from, double left_s);
Bytes encode_status(const Identity& from, PacketKind kind, const Status& status);

// False: not a packet of ours, or cut short.
bool decode_header(const Bytes& bytes, PacketHeader* out);
// True if the header is that of `sender`, of this wire version.
bool is_from(const Bytes& bytes, const Identity& sender);
// Also false: of another kind or wire version, or with a value that no sender has.
bool decode(const Bytes& bytes, Hello* out);
bool decode(const Bytes& bytes, Agreed* out);
bool decode(const Bytes& bytes, PeerHandle* out);
bool decode_welcome(const Bytes& bytes, double* left_s);
bool decode_status(const Bytes& bytes, PacketKind kind, Status* out);

}  // namespace gcmoe::group
