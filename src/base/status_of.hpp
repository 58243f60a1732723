// Exceptions at the border to code that returns a Status.
#pragma once

#include <exception>
#include <new>
#include <system_error>

#include "gcmoe/status.hpp"

namespace gcmoe {

// What a call returns, or what it throws in words: want of memory or of the system's means is
// kUnsupported, anything else kInternal.
template <class Call>
Status status_of(const Call& call) {
    try {
        return call();
    } catch (const std::bad_alloc&) {
        return {Code::kUnsupported, "no memory"};
    } catch (const std::system_error& error) {
        return {Code::kUnsupported, error.what()};
    } catch (const std::exception& error) {
        return {Code::kInternal, error.what()};
    } catch (...) {
        return {Code::kInternal, "an exception of unknown type"};
    }
}

}  // namespace gcmoe
