#include "bench_device/fake_device.hpp"

#include <cstring>
#include <utility>

#include "checkpoint/generated_layer.hpp"
#include "checkpoint/padded_source.hpp"
#include "cuda/measure/closed_launch.hpp"
#include "cuda/measure/copy_only.hpp"
#include "cuda/measure/device_bytes.hpp"
#include "cuda/measure/launch_timer.hpp"
#include "cuda/weights/generate_layer.hpp"
#include "cuda/weights/pack_on_device.hpp"

namespace gcmoe {
namespace test {

FakeDevice& fake_device() {
    static FakeDevice device;
    return device;
}

}  // namespace test

namespace cuda::measure {
namespace {

class FakeTimer final : public LaunchTimer {
  public:
    [[nodiscard]] void* stream() const override { return nullptr; }
    Status time_once(const Work& work, double* us) override {
        test::fake_device().calls.emplace_back("once");
        return time(work, us);
    }
    Status time_window(const Work& work, int count, std::vector<double>* us) override {
        test::fake_device().calls.push_back("window " + std::to_string(count));
        us->assign(static_cast<std::size_t>(count), 0);
        for (double& one : *us) GCMOE_RETURN_IF_ERROR(time(work, &one));
        return {};
    }
    Status time_back_to_back(const std::vector<Work>& works, double seconds, double* us) override {
        test::fake_device().calls.push_back("back to back " + std::to_string(works.size()));
        for (const Work& work : works) GCMOE_RETURN_IF_ERROR(work());
        *us = seconds;
        return {};
    }

  private:
    static Status time(const Work& work, double* us) {
        GCMOE_RETURN_IF_ERROR(work());
        *us = test::fake_device().us(test::fake_device().num_timed++);
        return {};
    }
};

}  // namespace

Status LaunchTimer::create(std::size_t, std::unique_ptr<LaunchTimer>* out) {
    *out = std::make_unique<FakeTimer>();
    return {};
}

namespace {

// The roles anew at every launch, and a note of what would follow them.
class FakeClosed final : public ClosedLaunch {
  public:
    FakeClosed(Work roles, std::string closing)
        : roles_(std::move(roles)), closing_(std::move(closing)) {}
    Status launch() override {
        test::fake_device().closings.push_back(closing_);
        return roles_();
    }
    Status synchronize() override { return {}; }
    Status read(std::vector<unsigned char>*, std::size_t*) override {
        return {Code::kInternal, "nothing was cleared"};
    }

  private:
    Work roles_;
    std::string closing_;
};

}  // namespace

Status ClosedLaunch::create(const Work& roles, const std::optional<ClosingWork>& closing,
                            const layout::RegionList& cleared, void*,
                            std::unique_ptr<ClosedLaunch>* out) {
    std::string words = closing ? "node" : "graph";
    if (closing && closing->clears) words += ", clears " + std::to_string(cleared.bytes());
    if (closing && closing->meets) words += ", meets";
    *out = std::make_unique<FakeClosed>(roles, words);
    return {};
}

Status copy_only(const void* from, std::size_t bytes, int, void*) {
    if (from == nullptr) return {Code::kInternal, "nothing to copy from"};
    test::fake_device().copies.push_back(bytes);
    return {};
}

Status device_bytes(std::size_t bytes, int fill, const std::string&, std::shared_ptr<void>* out) {
    auto memory =
        std::make_shared<std::vector<unsigned char>>(bytes, static_cast<unsigned char>(fill));
    *out = std::shared_ptr<void>(memory, memory->data());
    return {};
}

Status read_device(const void* from, std::size_t bytes, void* to) {
    test::FakeDevice& device = test::fake_device();
    std::memcpy(to, from, bytes);
    if (static_cast<int>(device.reads.size()) == device.damaged_read) {
        static_cast<unsigned char*>(to)[device.damaged_byte] ^= 1;
    }
    device.reads.push_back(bytes);
    return {};
}

}  // namespace cuda::measure

namespace cuda::weights {

Status use_device(int) { return {}; }

Status generate_layer(const checkpoint::GeneratedLayer& layer, const checkpoint::PaddedSizes& sizes,
                      const ExpertRange&, std::shared_ptr<WeightSource>* out) {
    std::unique_ptr<WeightSource> generated;
    std::unique_ptr<WeightSource> padded;
    GCMOE_RETURN_IF_ERROR(checkpoint::open_generated_layer(layer, &generated));
    GCMOE_RETURN_IF_ERROR(checkpoint::pad_source(std::move(generated), sizes, &padded));
    *out = std::move(padded);
    return {};
}

Status pack_on_device(WeightSource& source, const Shape& shape, int rank,
                      const PackOptions& options, std::shared_ptr<const PackedWeights>* out,
                      PackReport* report) {
    return PackedWeights::pack(source, shape, rank, options, out, report);
}

}  // namespace cuda::weights
}  // namespace gcmoe
