#include "group/meeting_packets.hpp"

#include <cstring>
#include <type_traits>

#include "protocol/words.hpp"

namespace gcmoe::group {
namespace {

class Writer {
  public:
    Writer(const Identity& from, PacketKind kind) {
        PacketHeader header;
        header.magic = kWireMagic;
        header.version = kWireVersion;
        header.kind = static_cast<std::uint32_t>(kind);
        header.rank = from.rank;
        header.num_ranks = from.num_ranks;
        header.token = from.token;
        put(header);
    }
    template <class T>
    void put(const T& value) {
        static_assert(std::is_trivially_copyable_v<T>);
        append(&value, sizeof(value));
    }
    void put(const std::string& text) {
        put(static_cast<std::uint32_t>(text.size()));
        append(text.data(), text.size());
    }
    void put(const std::vector<std::uint64_t>& words) {
        put(static_cast<std::uint32_t>(words.size()));
        for (const std::uint64_t word : words) put(word);
    }
    Bytes take() { return std::move(bytes_); }

  private:
    void append(const void* from, std::size_t size) {
        const std::size_t at = bytes_.size();
        bytes_.resize(at + size);
        if (size > 0) std::memcpy(bytes_.data() + at, from, size);
    }

    Bytes bytes_;
};

// Reads in the order of writing; after the first missing byte everything is zero and ok() false.
class Reader {
  public:
    explicit Reader(const Bytes& bytes) : bytes_(bytes) {}
    template <class T>
    void get(T* value) {
        static_assert(std::is_trivially_copyable_v<T>);
        *value = T{};
        if (take(sizeof(T))) std::memcpy(value, bytes_.data() + at_ - sizeof(T), sizeof(T));
    }
    void get(bool* value) {
        std::uint8_t byte = 0;
        get(&byte);
        *value = byte != 0;
    }
    void get(std::string* text) {
        const std::uint32_t size = count();
        text->clear();
        if (take(size))
            text->assign(bytes_.begin() + static_cast<std::ptrdiff_t>(at_ - size),
                         bytes_.begin() + static_cast<std::ptrdiff_t>(at_));
    }
    void get(std::vector<std::uint64_t>* words) {
        const std::uint32_t size = count();
        words->clear();
        for (std::uint32_t i = 0; i < size && ok_; ++i) get(&words->emplace_back());
    }
    // How many things follow, each of at least a byte.
    std::uint32_t count() {
        std::uint32_t value = 0;
        get(&value);
        if (value > bytes_.size() - at_) ok_ = false;
        return ok_ ? value : 0;
    }
    // Everything was there, and nothing is left.
    [[nodiscard]] bool is_whole() const { return ok_ && at_ == bytes_.size(); }

  private:
    bool take(std::size_t size) {
        ok_ = ok_ && size <= bytes_.size() - at_;
        if (ok_) at_ += size;
        return ok_;
    }

    const Bytes& bytes_;
    std::size_t at_ = 0;
    bool ok_ = true;
};

// A reader behind a header of this kind.
bool open_packet(Reader* reader, PacketKind kind) {
    PacketHeader header;
    reader->get(&header);
    // A verdict is what other versions understand, too.
    return header.magic == kWireMagic && header.kind == static_cast<std::uint32_t>(kind) &&
           (header.version == kWireVersion || kind == PacketKind::kVerdict);
}

// The last thing in a packet.
bool get_status(Reader* reader, Status* out) {
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
    Writer writer(from, PacketKind::kHello);
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
    Reader reader(bytes);
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
    const std::uint32_t num_fields = reader.count();
    for (std::uint32_t i = 0; i < num_fields; ++i) {
        auto& [field, value] = out->configuration.emplace_back();
        reader.get(&field);
        reader.get(&value);
    }
    reader.get(&out->handle_kind);
    reader.get(&out->handle_bytes);
    return get_status(&reader, &out->failure);
}

Bytes encode(const Identity& from, const Agreed& agreed) {
    Writer writer(from, PacketKind::kAgreed);
    writer.put(agreed.is_restart);
    writer.put(agreed.generation);
    writer.put(agreed.session);
    writer.put(agreed.members);
    return writer.take();
}

bool decode(const Bytes& bytes, Agreed* out) {
    Reader reader(bytes);
    if (!open_packet(&reader, PacketKind::kAgreed)) return false;
    reader.get(&out->is_restart);
    reader.get(&out->generation);
    reader.get(&out->session);
    reader.get(&out->members);
    return reader.is_whole();
}

Bytes encode(const Identity& from, const PeerHandle& peer) {
    Writer writer(from, PacketKind::kPeer);
    writer.put(peer.rank);
    writer.put(peer.kind);
    writer.put(peer.bytes);
    return writer.take();
}

bool decode(const Bytes& bytes, PeerHandle* out) {
    Reader reader(bytes);
    if (!open_packet(&reader, PacketKind::kPeer)) return false;
    reader.get(&out->rank);
    reader.get(&out->kind);
    reader.get(&out->bytes);
    return reader.is_whole();
}

Bytes encode_welcome(const Identity& from, double left_s) {
    Writer writer(from, PacketKind::kWelcome);
    writer.put(left_s);
    return writer.take();
}

bool decode_welcome(const Bytes& bytes, double* left_s) {
    Reader reader(bytes);
    if (!open_packet(&reader, PacketKind::kWelcome)) return false;
    reader.get(left_s);
    return reader.is_whole() && *left_s >= 0;  // not NaN
}

Bytes encode_status(const Identity& from, PacketKind kind, const Status& status) {
    Writer writer(from, kind);
    writer.put(static_cast<std::uint32_t>(status.code()));
    writer.put(status.message());
    return writer.take();
}

bool decode_status(const Bytes& bytes, PacketKind kind, Status* out) {
    Reader reader(bytes);
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
