#include "trace/chrome_json.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <set>

namespace gcmoe::trace {
namespace {

std::string quoted(const std::string& text) {
    std::string out = "\"";
    for (const char c : text) {
        if (c == '"' || c == '\\') {
            out += '\\';
            out += c;
        } else if (static_cast<unsigned char>(c) < 0x20) {
            out += fmt::format("\\u{:04x}", static_cast<unsigned>(c));
        } else {
            out += c;
        }
    }
    return out + "\"";
}

// Units of role 1 first, then the other roles'; a unit's warps stand together.
int thread_of(const Track& track) {
    constexpr int kMostUnits = 1000;
    constexpr int kMostWarps = 33;  // and the whole unit
    const int unit = static_cast<int>(track.roles) * kMostUnits + track.unit;
    return unit * kMostWarps + track.warp + 1;
}

std::string name_of(const Track& track) {
    std::string name = fmt::format("{} unit {}", unit_roles_name(track.roles), track.unit);
    if (track.warp >= 0) name += fmt::format(" warp {}", track.warp);
    return name;
}

void append_names(const Trace& trace, std::string* out) {
    const auto name = [out](const char* what, int rank, int thread, const std::string& text) {
        fmt::format_to(std::back_inserter(*out),
                       R"({{"name":"{}","ph":"M","pid":{},"tid":{},"args":{{"name":{}}}}},)"
                       "\n",
                       what, rank, thread, quoted(text));
    };
    std::set<int> ranks;
    for (const Track& track : trace.tracks) {
        if (ranks.insert(track.rank).second) {
            name("process_name", track.rank, 0, fmt::format("rank {}", track.rank));
        }
        name("thread_name", track.rank, thread_of(track), name_of(track));
    }
}

std::string name_of(const Event& event) {
    if (event.kind != Kind::kWait) return kind_name(event.kind);
    return fmt::format("wait {}", signal_name(static_cast<Signal>(event.signal)));
}

// Whole nanoseconds as microseconds.
std::string us(std::uint64_t ns) { return fmt::format("{}.{:03}", ns / 1000, ns % 1000); }

void append_event(const Track& track, const Event& event, std::uint64_t origin_ns,
                  std::string* out) {
    auto to = std::back_inserter(*out);
    fmt::format_to(to,
                   R"({{"name":"{}","cat":"{}","ph":"X","pid":{},"tid":{},"ts":{},"dur":{},)"
                   R"("args":{{"kind":"{}","generation":{})",
                   name_of(event), role_name(static_cast<Role>(event.role)), track.rank,
                   thread_of(track), us(event.begin_ns - origin_ns),
                   us(event.end_ns - event.begin_ns), kind_name(event.kind), event.generation);
    if (event.block != kNoBlock) fmt::format_to(to, R"(,"block":{})", event.block);
    if (event.expert != kNoIndex) fmt::format_to(to, R"(,"expert":{})", event.expert);
    if (event.task != kNoIndex) fmt::format_to(to, R"(,"task":{})", event.task);
    if (event.peer != kNoPeer) fmt::format_to(to, R"(,"peer":{})", event.peer);
    out->append("}},\n");
}

}  // namespace

std::string chrome_json(const Trace& trace, const std::string& title) {
    std::uint64_t origin_ns = ~std::uint64_t{0};
    for (const Track& track : trace.tracks) {
        for (const Event& event : track.events) origin_ns = std::min(origin_ns, event.begin_ns);
    }
    std::string out = "{\"traceEvents\":[\n";
    append_names(trace, &out);
    for (const Track& track : trace.tracks) {
        for (const Event& event : track.events) append_event(track, event, origin_ns, &out);
    }
    if (!trace.tracks.empty()) out.erase(out.size() - 2, 1);  // the last comma
    out += fmt::format(
        "],\"displayTimeUnit\":\"ns\",\n\"otherData\":{{\"title\":{},\"events\":{},"
        "\"dropped_events\":{}}}}}\n",
        quoted(title), trace.num_events(), trace.num_dropped());
    return out;
}

}  // namespace gcmoe::trace
