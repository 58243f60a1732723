#include "cuda/measure/launch_timer.hpp"

#include <cuda_runtime_api.h>

#include <chrono>

#include "cuda/device/device_buffer.hpp"

namespace gcmoe::cuda::measure {
namespace {

using device::cuda_status;

// Works between two looks at the clock, back to back: enough that the stream never runs dry.
constexpr int kBatch = 64;

class Event {
  public:
    Event() = default;
    Event(const Event&) = delete;
    Event& operator=(const Event&) = delete;
    ~Event() {
        if (event_ != nullptr) cudaEventDestroy(event_);
    }
    Status create() { return cuda_status(cudaEventCreate(&event_), "making an event"); }
    Status record(cudaStream_t stream) {
        return cuda_status(cudaEventRecord(event_, stream), "recording an event");
    }
    [[nodiscard]] Status wait() const {
        return cuda_status(cudaEventSynchronize(event_), "waiting for timed work");
    }
    Status us_until(const Event& end, double* us) const {
        float ms = 0;
        GCMOE_RETURN_IF_ERROR(
            cuda_status(cudaEventElapsedTime(&ms, event_, end.event_), "reading a time"));
        *us = static_cast<double>(ms) * 1e3;
        return {};
    }

  private:
    cudaEvent_t event_ = nullptr;
};

// The marks around one piece of work.
struct Marks {
    Event begin;
    Event end;
};

class StreamTimer final : public LaunchTimer {
  public:
    ~StreamTimer() override {
        if (stream_ != nullptr) cudaStreamDestroy(stream_);
    }

    Status make(std::size_t flush_bytes) {
        GCMOE_RETURN_IF_ERROR(flush_.allocate(flush_bytes, "what is written between launches"));
        return cuda_status(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking),
                           "making a stream");
    }

    [[nodiscard]] void* stream() const override { return stream_; }

    Status time_once(const Work& work, double* us) override {
        std::vector<double> times;
        GCMOE_RETURN_IF_ERROR(time_window(work, 1, &times));
        *us = times.front();
        return {};
    }

    Status time_window(const Work& work, int count, std::vector<double>* us) override {
        us->clear();
        GCMOE_RETURN_IF_ERROR(keep_marks(count));
        for (int i = 0; i < count; ++i) GCMOE_RETURN_IF_ERROR(enqueue(work, marks(i)));
        GCMOE_RETURN_IF_ERROR(
            cuda_status(cudaStreamSynchronize(stream_), "waiting for timed work"));
        for (int i = 0; i < count; ++i) {
            us->push_back(0);
            GCMOE_RETURN_IF_ERROR(marks(i)->begin.us_until(marks(i)->end, &us->back()));
        }
        return {};
    }

    Status time_back_to_back(const std::vector<Work>& works, double seconds, double* us) override {
        using Clock = std::chrono::steady_clock;
        Event half;
        Event end;
        GCMOE_RETURN_IF_ERROR(half.create());
        GCMOE_RETURN_IF_ERROR(end.create());
        std::size_t next = 0;
        const Clock::time_point begin = Clock::now();
        const auto run_until = [&](double share, int* num_works) -> Status {
            *num_works = 0;
            do {
                for (int i = 0; i < kBatch; ++i, ++next, ++*num_works) {
                    GCMOE_RETURN_IF_ERROR(works[next % works.size()]());
                }
                GCMOE_RETURN_IF_ERROR(follow_batch());
            } while (std::chrono::duration<double>(Clock::now() - begin).count() < share * seconds);
            return {};
        };
        int num_works = 0;
        GCMOE_RETURN_IF_ERROR(run_until(0.5, &num_works));
        GCMOE_RETURN_IF_ERROR(half.record(stream_));
        GCMOE_RETURN_IF_ERROR(run_until(1.0, &num_works));
        GCMOE_RETURN_IF_ERROR(end.record(stream_));
        GCMOE_RETURN_IF_ERROR(end.wait());
        GCMOE_RETURN_IF_ERROR(half.us_until(end, us));
        *us /= num_works;
        return {};
    }

  private:
    [[nodiscard]] Marks* marks(int idx) { return marks_[static_cast<std::size_t>(idx)].get(); }

    Status keep_marks(int count) {
        while (marks_.size() < static_cast<std::size_t>(count)) {
            auto marks = std::make_unique<Marks>();
            GCMOE_RETURN_IF_ERROR(marks->begin.create());
            GCMOE_RETURN_IF_ERROR(marks->end.create());
            marks_.push_back(std::move(marks));
        }
        return {};
    }

    Status enqueue(const Work& work, Marks* marks) {
        if (flush_.bytes() != 0) {
            // Another value each time: nothing could tell the write from one that changes nothing.
            flush_value_ = (flush_value_ + 1) % 256;
            GCMOE_RETURN_IF_ERROR(cuda_status(
                cudaMemsetAsync(flush_.as<void>(), flush_value_, flush_.bytes(), stream_),
                "writing between launches"));
        }
        GCMOE_RETURN_IF_ERROR(marks->begin.record(stream_));
        GCMOE_RETURN_IF_ERROR(work());
        return marks->end.record(stream_);
    }

    // Waits for the batch before the one that was just queued.
    Status follow_batch() {
        GCMOE_RETURN_IF_ERROR(keep_marks(1));
        Event& queued = batch_is_odd_ ? marks(0)->end : marks(0)->begin;
        const Event& earlier = batch_is_odd_ ? marks(0)->begin : marks(0)->end;
        batch_is_odd_ = !batch_is_odd_;
        GCMOE_RETURN_IF_ERROR(queued.record(stream_));
        return earlier.wait();
    }

    cudaStream_t stream_ = nullptr;
    device::DeviceBuffer flush_;
    int flush_value_ = 0;
    std::vector<std::unique_ptr<Marks>> marks_;
    bool batch_is_odd_ = false;
};

}  // namespace

Status LaunchTimer::create(std::size_t flush_bytes, std::unique_ptr<LaunchTimer>* out) {
    auto timer = std::make_unique<StreamTimer>();
    GCMOE_RETURN_IF_ERROR(timer->make(flush_bytes));
    *out = std::move(timer);
    return {};
}

}  // namespace gcmoe::cuda::measure
