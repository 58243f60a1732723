// Stand-ins for src/cuda/measure and src/cuda/weights on the host: launches run on the CPU backend,
// and take the time that a test says.
#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <vector>

namespace gcmoe::test {

struct FakeDevice {
    // What the timer was asked for, in order.
    std::vector<std::string> calls;     // "once", "window 100", "back to back 3"
    std::vector<std::size_t> copies;    // bytes of every copy_only
    std::vector<std::size_t> reads;     // bytes of every read_device
    std::vector<std::string> closings;  // of every launch that is closed: "clears 5120", "meets" ..
    std::vector<int> loops;             // CTAs of every launch of a stand-alone loop
    int num_timed = 0;                  // works timed one by one or in windows
    // Microseconds of timed work number n.
    std::function<double(int)> us = [](int) { return 1.0; };
    // Flip a bit of this read's byte; -1 = of none.
    int damaged_read = -1;
    std::size_t damaged_byte = 0;
};

// The one that all stand-ins use.
FakeDevice& fake_device();

}  // namespace gcmoe::test
