#include "group/meeting_packets.hpp"

#include <cstring>

#include "base/byte_stream.hpp"
#include "protocol/words.hpp"

namespace gcmoe::group {
namespace {

// A packet that begins with its header.
ByteWriter begin_packet(const Identity& from, PacketKind kind) {
    PacketHeader header;
    header.magic = kWireMagic;
    header.version = kWireVersion;
    header.kind = static_cast<std::uint32_t>(kind);
    header.rank = from.rank;
    header.num_ranks = from.num_ranks;
    header.token = from.token;
    ByteWriter writer;
    writer.put(header);
    return writer;
}

// A reader behind a header of this kind.
bool open_packet(ByteReader* reader, PacketKind kind) {
    PacketHeader header;
    reader->get(&header);
    // A verdict is what other versions understand, too.
    return header.magic == kWireMagic && header.kind == static_cast<std::uint32_t>(kind) &&
           (header.version == kWireVersion || kind == PacketKind::kVerdict);
}

// The last thing in a packet.
bool get_status(ByteReader* reader, Status* out) {
    std::uint32_t code = 0;
    std::string text;
    reader->get(&code);
    reader->get(&text);
    if (!reader->is_whole() || code > static_cast<std::uint32_t>(Code::kInternal)) return false;
    *out = Status(static_cast<Code>(code), text);
    return true;
}

}  // namespace

Bytes encode(const Identity& from, const Hello& hello) {
    ByteWriter writer = begin_packet(from, PacketKind::kHello);
    writer.put(hello.pid);
    writer.put(hello.incarnation);
    writer.put(hello.is_reset);
    writer.put(hello.move);
    writer.put(hello.generation);
    writer.put(hello.session);
    writer.put(hello.members);
    writer.put(hello.subject);
    writer.put(static_cast<std::uint32_t>(hello.configuration.size()));
    for (const auto& [field, value] : hello.configuration) {
        writer.put(field);
        writer.put(value);
    }
    writer.put(hello.handle_kind);
    writer.put(hello.handle_bytes);
    writer.put(static_cast<std::uint32_t>(hello.failure.code()));
    writer.put(hello.failure.message());
    return writer.take();
}

bool decode(const Bytes& bytes, Hello* out) {
    ByteReader reader(bytes.data(), bytes.size());
    if (!open_packet(&reader, PacketKind::kHello)) return false;
    reader.get(&out->pid);
    reader.get(&out->incarnation);
    reader.get(&out->is_reset);
    reader.get(&out->move);
    reader.get(&out->generation);
    reader.get(&out->session);
    reader.get(&out->members);
    reader.get(&out->subject);
    out->configuration.clear();
    const std::size_t num_fields = reader.count<std::uint32_t>(2 * sizeof(std::uint32_t));
    for (std::size_t i = 0; i < num_fields; ++i) {
        auto& [field, value] = out->configuration.emplace_back();
        reader.get(&field);
        reader.get(&value);
    }
    reader.get(&out->handle_kind);
    reader.get(&out->handle_bytes);
    return get_status(&reader, &out->failure);
}

Bytes encode(const Identity& from, const Agreed& agreed) {
    ByteWriter writer = begin_packet(from, PacketKind::kAgreed);
    writer.put(agreed.is_restart);
    writer.put(agreed.generation);
    writer.put(agreed.session);
    writer.put(agreed.members);
    return writer.take();
}

bool decode(const Bytes& bytes, Agreed* out) {
    ByteReader reader(bytes.data(), bytes.size());
    if (!open_packet(&reader, PacketKind::kAgreed)) return false;
    reader.get(&out->is_restart);
    reader.get(&out->generation);
    reader.get(&out->session);
    reader.get(&out->members);
    return reader.is_whole();
}

Bytes encode(const Identity& from, const PeerHandle& peer) {
    ByteWriter writer = begin_packet(from, PacketKind::kPeer);
    writer.put(peer.rank);
    writer.put(peer.kind);
    writer.put(peer.bytes);
    return writer.take();
}

bool decode(const Bytes& bytes, PeerHandle* out) {
    ByteReader reader(bytes.data(), bytes.size());
    if (!open_packet(&reader, PacketKind::kPeer)) return false;
    reader.get(&out->rank);
    reader.get(&out->kind);
    reader.get(&out->bytes);
    return reader.is_whole();
}

Bytes encode_welcome(const Identity& from, double left_s) {
    ByteWriter writer = begin_packet(from, PacketKind::kWelcome);
    writer.put(left_s);
    return writer.take();
}

bool decode_welcome(const Bytes& bytes, double* left_s) {
    ByteReader reader(bytes.data(), bytes.size());
    if (!open_packet(&reader, PacketKind::kWelcome)) return false;
    reader.get(left_s);
    return reader.is_whole() && *left_s >= 0;  // not NaN
}

Bytes encode_status(const Identity& from, PacketKind kind, const Status& status) {
    ByteWriter writer = begin_packet(from, kind);
    writer.put(static_cast<std::uint32_t>(status.code()));
    writer.put(status.message());
    return writer.take();
}

bool decode_status(const Bytes& bytes, PacketKind kind, Status* out) {
    ByteReader reader(bytes.data(), bytes.size());
    if (!open_packet(&reader, kind)) return false;
    return get_status(&reader, out);
}

bool decode_header(const Bytes& bytes, PacketHeader* out) {
    if (bytes.size() < sizeof(*out)) return false;
    std::memcpy(out, bytes.data(), sizeof(*out));
    return out->magic == kWireMagic;
}

bool is_from(const Bytes& bytes, const Identity& sender) {
    PacketHeader header;
    return decode_header(bytes, &header) && header.version == kWireVersion &&
           header.rank == sender.rank && header.num_ranks == sender.num_ranks &&
           header.token == sender.token;
}

bool takes_place_of(const Hello& comer, const Hello& seated) {
    return comer.is_reset && seated.is_reset &&
           protocol::generation_distance(comer.session, seated.session) > 0;
}

}  // namespace gcmoe::group
