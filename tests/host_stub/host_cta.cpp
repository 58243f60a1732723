#include "host_stub/host_cta.hpp"

#include <utility>

namespace gcmoe::host_stub {
namespace {

constexpr std::size_t kSharedAlignment = 1024;

Thread* current = nullptr;

Thread& thread_alone() {
    static Cta cta;
    static Thread thread;
    if (thread.cta == nullptr) {
        cta.warps.resize(1);
        thread.cta = &cta;
    }
    return thread;
}

}  // namespace

Thread& here() { return current != nullptr ? *current : thread_alone(); }

void yield() { cpu::Fiber::suspend(); }

void meet(Meeting* meeting, std::uint32_t members) {
    if (++meeting->arrived == members) {
        meeting->arrived = 0;
        ++meeting->lap;
        return;
    }
    Thread& me = here();
    me.waits_for = meeting;
    me.lap = meeting->lap;
    yield();
    me.waits_for = nullptr;
}

const std::array<Offer, 32>& exchange(const Offer& offer) {
    Thread& me = here();
    Warp& warp = me.cta->warps[me.idx / 32];
    auto& offers = warp.offers[warp.meeting.lap % 2];
    offers[me.idx % 32] = offer;
    meet(&warp.meeting, me.cta->num_threads < 32 ? me.cta->num_threads : 32);
    return offers;
}

void Machine::add_cta(std::uint32_t idx, std::uint32_t num_ctas, std::uint32_t num_threads,
                      std::size_t shared_bytes, std::function<void(std::uint8_t*)> body) {
    auto cta = std::make_unique<Cta>();
    cta->idx = idx;
    cta->num_ctas = num_ctas;
    cta->num_threads = num_threads;
    cta->warps.resize((num_threads + 31) / 32);
    // Poison: shared memory starts with what the CTA before left.
    cta->shared_storage.assign(shared_bytes + kSharedAlignment, 0xA5);
    void* place = cta->shared_storage.data();
    std::size_t room = cta->shared_storage.size();
    cta->shared =
        static_cast<std::uint8_t*>(std::align(kSharedAlignment, shared_bytes, place, room));
    for (std::uint32_t i = 0; i < num_threads; ++i) {
        auto unit = std::make_unique<Unit>();
        unit->thread.cta = cta.get();
        unit->thread.idx = i;
        unit->fiber = std::make_unique<cpu::Fiber>([body, shared = cta->shared] { body(shared); });
        units_.push_back(std::move(unit));
    }
    ctas_.push_back(std::move(cta));
}

void Machine::run() {
    for (bool left = true; left;) {
        left = false;
        for (const auto& unit : units_) {
            if (unit->fiber->finished()) continue;
            left = true;
            const Thread& thread = unit->thread;
            if (thread.waits_for != nullptr && thread.waits_for->lap == thread.lap) continue;
            current = &unit->thread;
            unit->fiber->resume();
            current = nullptr;
        }
    }
    units_.clear();
    ctas_.clear();
}

}  // namespace gcmoe::host_stub
