#include "cuda/gpu_layer.hpp"

#include <cuda_runtime.h>

#include <chrono>
#include <stdexcept>
#include <thread>

#include "cuda/weights/generate_layer.hpp"
#include "cuda/weights/pack_on_device.hpp"
#include "op/readback.hpp"
#include "support/virtual_layer.hpp"

namespace gcmoe::test {
namespace {

constexpr std::uint64_t kSeed = 29;

void must(const Status& status) {
    if (!status.ok()) throw std::runtime_error(status.message());
}

void must(cudaError_t error) {
    if (error != cudaSuccess) throw std::runtime_error(cudaGetErrorString(error));
}

// Small layers as the host packs them; large ones are made on the device (weights_test.cu compares
// the two).
std::vector<std::shared_ptr<const PackedWeights>> weights_of(const Shape& shape) {
    constexpr int kMostHiddenOnHost = 1024;
    if (shape.hidden <= kMostHiddenOnHost) return packed_layer(shape);
    checkpoint::GeneratedLayer layer;
    layer.shape = shape;
    std::shared_ptr<WeightSource> source;
    must(cuda::weights::generate_layer(layer, cuda::weights::sizes_of(shape),
                                       {0, shape.num_experts}, &source));
    std::vector<std::shared_ptr<const PackedWeights>> weights;
    for (int rank = 0; rank < shape.num_ranks; ++rank) {
        weights.emplace_back();
        must(cuda::weights::pack_on_device(*source, shape, rank, {}, &weights.back(), nullptr));
    }
    return weights;
}

}  // namespace

GpuLayer::GpuLayer(const Shape& shape, const LayerOptions& options)
    : shape_(shape), options_(options) {
    OperatorOptions op_options;
    op_options.backend = "cuda";
    op_options.launch_mode = options.launch_mode;
    op_options.max_tokens = options.capacity;
    op_options.poison = options.poison;
    op_options.trace_events = options.trace_events;
    op_options.wait_limits = {options.deadline_s, options.deadline_s};
    op_options.plans.resize(1);
    op_options.plans[0].row_block = options.row_block;
    op_options.plans[0].ring_blocks = options.ring_blocks;
    op_options.plans[0].overlap = options.overlap;
    op_options.plans[0].shared_experts = options.shared_experts;
    op_options.plans[0].combine = options.combine;
    op_options.plans[0].placement = options.placement;
    op_options.plans[0].partition.dispatch_units = options.dispatch_units;
    must(Group::in_process(shape.num_ranks, {}, &group_));
    const auto weights = weights_of(shape);
    for (int rank = 0; rank < shape.num_ranks; ++rank) {
        std::unique_ptr<Operator> op;
        must(Operator::create(shape, weights[static_cast<std::size_t>(rank)], group_, rank,
                              op_options, &op));
        ops_.push_back(std::move(op));
        void* output = nullptr;
        must(cudaMalloc(&output, static_cast<std::size_t>(options.capacity) *
                                     static_cast<std::size_t>(shape.hidden) * 2));
        outputs_.push_back(static_cast<std::uint16_t*>(output));
    }
}

GpuLayer::~GpuLayer() {
    ops_.clear();
    for (std::uint16_t* output : outputs_) cudaFree(output);
}

void GpuLayer::stage(const std::vector<reference::RankInputs>& inputs) {
    tokens_.clear();
    for (std::size_t rank = 0; rank < ops_.size(); ++rank) {
        const reference::RankInputs& from = inputs[rank];
        must(ops_[rank]->write_inputs({from.capacity, from.x.data(), from.x_scale.data(),
                                       from.topk_idx.data(), from.topk_weight.data()}));
        tokens_.push_back(from.num_tokens);
    }
}

std::vector<std::uint16_t> GpuLayer::launch_all() {
    std::vector<std::vector<std::uint16_t>> y(ops_.size());
    for (std::size_t rank = 0; rank < ops_.size(); ++rank) {
        y[rank].resize(static_cast<std::size_t>(tokens_[rank]) *
                       static_cast<std::size_t>(shape_.hidden));
        LaunchArgs args;
        args.num_tokens = tokens_[rank];
        args.y = y[rank].data();
        must(ops_[rank]->launch(args));
    }
    synchronize();
    return join_rows(y);
}

std::vector<std::uint16_t> GpuLayer::run(int total_tokens) {
    stage(spread_inputs(shape_, kSeed, total_tokens, options_.capacity, 0.1));
    return launch_all();
}

std::vector<std::uint16_t> GpuLayer::run_tokens(int first, int n) {
    std::vector<reference::RankInputs> inputs;
    for (int rank = 0; rank < shape_.num_ranks; ++rank) {
        inputs.push_back(
            stream_inputs(shape_, kSeed, first, rank == 0 ? n : 0, options_.capacity, 0.1));
    }
    stage(inputs);
    return launch_all();
}

std::vector<std::uint16_t> GpuLayer::run_rows(int total_tokens) {
    stage(spread_inputs(shape_, kSeed, total_tokens, total_tokens, 0.1));
    return launch_all();
}

std::vector<std::uint16_t> GpuLayer::run_counts(const std::vector<int>& counts, int seed) {
    std::vector<reference::RankInputs> inputs;
    int first = 0;
    for (const int count : counts) {
        inputs.push_back(stream_inputs(shape_, static_cast<std::uint64_t>(seed), first, count,
                                       options_.capacity, 0.1));
        first += count;
    }
    stage(inputs);
    return launch_all();
}

void GpuLayer::poison() {
    using backend::Room;
    for (auto& op : ops_) {
        const OperatorState& state = op->state();
        const layout::PlanMemory& plan = state.plans.front().memory;
        const std::uint64_t rows = std::uint64_t{plan.ring_blocks} * plan.row_block;
        const auto hidden = static_cast<std::uint64_t>(shape_.hidden);
        const auto inter = static_cast<std::uint64_t>(shape_.inter);
        fill_room(*op, Room::kHeap, state.heap.combine, 0xFF,
                  state.heap.max_slots() * state.heap.combine_stride);
        fill_room(*op, Room::kLocal, state.local.ring_x, 0xFF, rows * hidden);
        fill_room(*op, Room::kLocal, state.local.ring_x_scale, 0xFF, rows * hidden / 32);
        fill_room(*op, Room::kLocal, state.local.ring_origin, 0xFF, rows * sizeof(layout::Origin));
        fill_room(*op, Room::kLocal, state.local.ring_act, 0xFF, rows * inter);
        fill_room(*op, Room::kLocal, state.local.ring_act_scale, 0xFF, rows * inter / 32);
        fill_room(*op, Room::kLocal, state.local.act_origin, 0xFF, rows * sizeof(layout::Origin));
    }
}

std::vector<std::uint16_t> GpuLayer::run_from_threads(int total_tokens) {
    stage(spread_inputs(shape_, kSeed, total_tokens, options_.capacity, 0.1));
    std::vector<std::vector<std::uint16_t>> y(ops_.size());
    std::vector<std::string> failures(ops_.size());
    std::vector<std::thread> threads;
    for (std::size_t rank = 0; rank < ops_.size(); ++rank) {
        threads.emplace_back([&, rank] {
            y[rank].resize(static_cast<std::size_t>(tokens_[rank]) *
                           static_cast<std::size_t>(shape_.hidden));
            LaunchArgs args;
            args.num_tokens = tokens_[rank];
            args.y = y[rank].data();
            std::this_thread::sleep_for(std::chrono::milliseconds(50 * rank));
            Status status = ops_[rank]->launch(args);
            if (status.ok()) status = ops_[rank]->synchronize();
            if (!status.ok()) failures[rank] = status.message();
        });
    }
    for (std::thread& thread : threads) thread.join();
    for (const std::string& failure : failures) {
        if (!failure.empty()) throw std::runtime_error(failure);
    }
    return join_rows(y);
}

void GpuLayer::enqueue(void* stream) { enqueue_into(stream, outputs_); }

void GpuLayer::enqueue_into(void* stream, const std::vector<std::uint16_t*>& outputs) {
    for (std::size_t rank = 0; rank < ops_.size(); ++rank) {
        LaunchArgs args;
        args.num_tokens = tokens_[rank];
        args.y = outputs[rank];
        args.stream = stream;
        must(ops_[rank]->launch(args));
    }
}

void GpuLayer::synchronize() {
    for (auto& op : ops_) must(op->synchronize());
}

void GpuLayer::clear_outputs() {
    for (std::uint16_t* output : outputs_) {
        must(cudaMemset(output, 0xFF,
                        static_cast<std::size_t>(options_.capacity) *
                            static_cast<std::size_t>(shape_.hidden) * 2));
    }
    must(cudaDeviceSynchronize());
}

std::vector<std::uint16_t> GpuLayer::device_rows() { return rows_of(outputs_); }

std::vector<std::uint16_t> GpuLayer::rows_of(const std::vector<std::uint16_t*>& outputs) {
    std::vector<std::vector<std::uint16_t>> y(ops_.size());
    for (std::size_t rank = 0; rank < ops_.size(); ++rank) {
        y[rank].resize(static_cast<std::size_t>(tokens_[rank]) *
                       static_cast<std::size_t>(shape_.hidden));
        must(cudaMemcpy(y[rank].data(), outputs[rank], y[rank].size() * 2, cudaMemcpyDeviceToHost));
    }
    return join_rows(y);
}

Status GpuLayer::launch_one(int rank, int tokens) {
    stage(spread_inputs(shape_, kSeed, tokens, options_.capacity, 0.1));
    LaunchArgs args;
    args.num_tokens = tokens_[static_cast<std::size_t>(rank)];
    args.y = outputs_[static_cast<std::size_t>(rank)];
    must(op(rank).launch(args));
    return op(rank).synchronize();
}

Status GpuLayer::reset(bool move) {
    std::vector<Operator*> all;
    for (auto& op : ops_) all.push_back(op.get());
    return Operator::reset(all, move);
}

bool GpuLayer::placements_hold() {
    for (auto& op : ops_) {
        if (!op->statistics().placement.holds()) return false;
    }
    return true;
}

std::string GpuLayer::placement_text() {
    std::string text;
    for (std::size_t rank = 0; rank < ops_.size(); ++rank) {
        const Placement placement = ops_[rank]->statistics().placement;
        text += "rank " + std::to_string(rank);
        for (const auto* list :
             {&placement.dispatch_map, &placement.dispatch_ran, &placement.compute_map,
              &placement.compute_ran, &placement.shared_ran, &placement.combine_ran}) {
            text += " [";
            for (const int sm : *list) text += std::to_string(sm) + " ";
            text += "]";
        }
        text += "\n";
    }
    return text;
}

}  // namespace gcmoe::test
