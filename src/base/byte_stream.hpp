// Values as bytes for another process of this machine, and back. The reader believes nothing: what
// is missing reads as empty, and is_whole() says so in the end.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace gcmoe {

class ByteWriter {
  public:
    template <class T>
    void put(const T& value) {
        static_assert(std::is_trivially_copyable_v<T>);
        append(&value, sizeof(value));
    }
    void put(const std::string& text) {
        put(static_cast<std::uint32_t>(text.size()));
        append(text.data(), text.size());
    }
    template <class T>
    void put(const std::vector<T>& values) {
        static_assert(std::is_trivially_copyable_v<T>);
        put(static_cast<std::uint64_t>(values.size()));
        append(values.data(), values.size() * sizeof(T));
    }
    std::vector<std::uint8_t> take() { return std::move(bytes_); }

  private:
    void append(const void* from, std::size_t size) {
        const std::size_t at = bytes_.size();
        bytes_.resize(at + size);
        if (size > 0) std::memcpy(bytes_.data() + at, from, size);
    }

    std::vector<std::uint8_t> bytes_;
};

// Reads in the order of writing. Callers: the bytes outlive it.
class ByteReader {
  public:
    ByteReader(const std::uint8_t* bytes, std::size_t size) : bytes_(bytes), left_(size) {}

    template <class T>
    void get(T* value) {
        static_assert(std::is_trivially_copyable_v<T>);
        *value = T{};
        take(value, sizeof(T));
    }
    void get(bool* value) {
        std::uint8_t byte = 0;
        get(&byte);
        *value = byte != 0;
    }
    void get(std::string* text) {
        text->resize(count<std::uint32_t>(1));
        take(text->data(), text->size());
    }
    template <class T>
    void get(std::vector<T>* values) {
        static_assert(std::is_trivially_copyable_v<T>);
        values->resize(count<std::uint64_t>(sizeof(T)));
        take(values->data(), values->size() * sizeof(T));
    }
    // How many things follow, each of at least so many bytes; 0 if there cannot be so many.
    template <class Count>
    std::size_t count(std::size_t bytes_of_each) {
        Count value = 0;
        get(&value);
        ok_ = ok_ && value <= left_ / bytes_of_each;
        return ok_ ? static_cast<std::size_t>(value) : 0;
    }
    // Everything was there, and nothing is left.
    [[nodiscard]] bool is_whole() const { return ok_ && left_ == 0; }

  private:
    void take(void* to, std::size_t size) {
        ok_ = ok_ && size <= left_;
        if (!ok_ || size == 0) return;
        std::memcpy(to, bytes_, size);
        bytes_ += size;
        left_ -= size;
    }

    const std::uint8_t* bytes_;
    std::size_t left_;
    bool ok_ = true;
};

}  // namespace gcmoe
