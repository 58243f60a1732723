#include "trace/trace.hpp"

namespace gcmoe::trace {

const char* kind_name(Kind kind) {
    switch (kind) {
        case Kind::kWait:
            return "wait";
        case Kind::kRoute:
            return "route";
        case Kind::kFill:
            return "fill";
        case Kind::kFirstGemm:
            return "first GEMM";
        case Kind::kRequantise:
            return "requantise";
        case Kind::kSecondGemm:
            return "second GEMM";
        case Kind::kSharedFirst:
            return "shared first GEMM";
        case Kind::kSharedSecond:
            return "shared second GEMM";
        case Kind::kCombine:
            return "combine";
    }
    return "unknown kind";
}

std::uint64_t Trace::num_events() const {
    std::uint64_t sum = 0;
    for (const Track& track : tracks) sum += track.events.size();
    return sum;
}

std::uint64_t Trace::num_dropped() const {
    std::uint64_t sum = 0;
    for (const Track& track : tracks) sum += track.num_dropped;
    return sum;
}

}  // namespace gcmoe::trace
