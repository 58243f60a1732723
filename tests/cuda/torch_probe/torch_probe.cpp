#include "cuda/torch_probe/torch_probe.hpp"

#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <string>
#include <vector>

#include "cuda/gpu_layer.hpp"

namespace gcmoe {
namespace {

std::string last_error;

struct Probe {
    Shape shape;
    std::unique_ptr<test::GpuLayer> layer;
    std::vector<std::uint16_t> wanted;  // rows of all ranks behind each other
};

Shape probe_shape(int num_ranks) {
    Shape shape;
    shape.hidden = 512;
    shape.inter = 256;
    shape.num_experts = 16;
    shape.topk = 4;
    shape.num_ranks = num_ranks;
    shape.activation.clamp = 10.0F;
    return shape;
}

// Exceptions must not leave a C function.
template <class Result, class Call>
Result guarded(Result failed, const Call& call) {
    try {
        return call();
    } catch (const std::exception& error) {
        last_error = error.what();
        return failed;
    }
}

std::vector<std::uint16_t*> output_list(const Probe& probe, void* const* outputs) {
    std::vector<std::uint16_t*> list;
    for (int rank = 0; rank < probe.shape.num_ranks; ++rank) {
        list.push_back(static_cast<std::uint16_t*>(outputs[rank]));
    }
    return list;
}

}  // namespace
}  // namespace gcmoe

using gcmoe::Probe;

const char* gcmoe_probe_error() { return gcmoe::last_error.c_str(); }

void* gcmoe_probe_create(int num_ranks, int total_tokens) {
    return gcmoe::guarded<void*>(nullptr, [&]() -> void* {
        auto probe = std::make_unique<Probe>();
        probe->shape = gcmoe::probe_shape(num_ranks);
        probe->layer =
            std::make_unique<gcmoe::test::GpuLayer>(probe->shape, gcmoe::test::LayerOptions{});
        probe->wanted = probe->layer->run(total_tokens);
        return probe.release();
    });
}

void gcmoe_probe_destroy(void* probe) { delete static_cast<Probe*>(probe); }

int gcmoe_probe_hidden(const void* probe) { return static_cast<const Probe*>(probe)->shape.hidden; }

int gcmoe_probe_tokens(const void* probe, int rank) {
    return static_cast<const Probe*>(probe)->layer->tokens(rank);
}

int gcmoe_probe_enqueue(void* probe, void* stream, void* const* outputs) {
    return gcmoe::guarded(-1, [&] {
        auto& own = *static_cast<Probe*>(probe);
        own.layer->enqueue_into(stream, gcmoe::output_list(own, outputs));
        return 0;
    });
}

long long gcmoe_probe_differences(void* probe, void* const* outputs) {
    return gcmoe::guarded(-1LL, [&] {
        auto& own = *static_cast<Probe*>(probe);
        own.layer->synchronize();
        const auto seen = own.layer->rows_of(gcmoe::output_list(own, outputs));
        long long differences = seen.size() == own.wanted.size() ? 0 : 1;
        for (std::size_t i = 0; i < seen.size() && i < own.wanted.size(); ++i) {
            if (seen[i] != own.wanted[i]) ++differences;
        }
        return differences;
    });
}
