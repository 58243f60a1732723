#include "op/host_peers.hpp"

#include <fmt/format.h>

#include <utility>

#include "group/group_state.hpp"
#include "op/inspect.hpp"

namespace gcmoe::op {
namespace {

// Gathers the peers' addresses as their handles arrive.
class PeerMapper {
  public:
    explicit PeerMapper(OperatorState* state) : state_(state) {
        peers_.base = reinterpret_cast<std::uint64_t>(state->backend->heap_base());
        peers_.rank = static_cast<std::uint32_t>(state->rank);
        peers_.num_ranks = static_cast<std::uint32_t>(state->shape.num_ranks);
    }
    void take(int rank, const SharedHandle& handle) {
        std::uint8_t* heap = nullptr;
        if (Status status = state_->backend->map_peer(rank, handle, &heap); !status.ok()) {
            note({status.code(), fmt::format("heap of rank {}: {}", rank, status.message())});
            return;
        }
        peers_.offset[rank] =
            static_cast<std::int64_t>(reinterpret_cast<std::uint64_t>(heap) - peers_.base);
        ++num_mapped_;
    }
    // Ok if every peer has been mapped.
    Status finish() {
        const int wanted = state_->shape.num_ranks - 1;
        if (num_mapped_ != wanted) {
            note({Code::kStalled,
                  fmt::format("got the heaps of {} of {} peers", num_mapped_, wanted)});
        }
        return first_;
    }
    [[nodiscard]] const layout::PeerTable& peers() const { return peers_; }

  private:
    void note(Status status) {
        if (first_.ok()) first_ = std::move(status);
    }

    OperatorState* state_;
    layout::PeerTable peers_;
    int num_mapped_ = 0;
    Status first_;
};

std::string subject_of(const OperatorState& state) {
    return fmt::format("workspace '{}'", state.options.workspace);
}

Status meet(OperatorState* state, group::Offer offer) {
    GroupState& group = state->group->state();
    offer.subject = subject_of(*state);
    offer.configuration = group::configuration_of(&group, state->options.workspace, state->rank);
    if (offer.failure.ok()) offer.failure = state->backend->share_heap(&offer.handle);
    PeerMapper mapper(state);
    const auto take = [&mapper](int rank, const SharedHandle& handle) {
        mapper.take(rank, handle);
    };
    // All kernels of all ranks have ended: nobody stores into the own heap until all start.
    const auto prepare = [&](const group::Agreement& agreement) {
        if (agreement.is_restart) {
            state->options.start = StartState{agreement.generation, agreement.session, 0, 0, 0};
            state->backend->init_signals({agreement.generation, agreement.session, 0, 0, 0});
        }
        state->backend->connect(mapper.peers());
        return mapper.finish();
    };
    GCMOE_RETURN_IF_ERROR(group.host->meet(std::move(offer), take, prepare));
    state->connected = true;
    return {};
}

}  // namespace

Status meet_new_peers(OperatorState* state) {
    group::Offer offer;
    offer.generation = state->options.start.generation;
    offer.session = state->options.start.session;
    return meet(state, std::move(offer));
}

Status decline_meeting(const OperatorState& state, const Status& why) {
    group::HostSession* host = state.group->state().host.get();
    if (host == nullptr) return why;
    group::Offer offer;
    offer.subject = subject_of(state);
    offer.failure = why;
    const Status told = host->meet(
        std::move(offer), [](int, const SharedHandle&) {},
        [&why](const group::Agreement&) { return why; });
    return told.ok() ? why : told;
}

Status restart_with_peers(OperatorState* state, bool move) {
    state->backend->synchronize();
    const layout::StateWords words = read_state(*state);
    state->connected = false;
    state->stalled = true;
    group::Offer offer;
    if (move) offer.failure = state->backend->move_heap();
    offer.is_reset = true;
    offer.move = move;
    offer.generation = words.generation;
    offer.session = words.session;
    GCMOE_RETURN_IF_ERROR(meet(state, std::move(offer)));
    state->stalled = false;
    return {};
}

}  // namespace gcmoe::op
