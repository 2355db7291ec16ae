// Dropout as a pure function of a sequence's key: models/dropout.py computes the same, and says why.
#pragma once
#include "vectors.h"

namespace ISA {

INLINE uint32_t mix(uint32_t word) {
    word = (word ^ (word >> 16)) * 0x85ebca6bu;
    word = (word ^ (word >> 13)) * 0xc2b2ae35u;
    return word ^ (word >> 16);
}

struct Dropout {
    static constexpr uint32_t GOLDEN = 0x9e3779b9u;
    const uint32_t threshold;
    const float factor;  // of what stays

    explicit Dropout(double rate) : threshold(uint32_t(rate * 4294967296.0)), factor(float(1 / (1 - rate))) {}

    // Leaves numbers of a row out; `position` is the row's in its sequence.
    template <class T> void apply(uint32_t sequence_key, long position, uint32_t site, T* numbers, long count) const {
        const uint32_t key = mix(mix(sequence_key + uint32_t(position + 1) * GOLDEN) + site);
#pragma GCC ivdep
        for (long j = 0; j < count; j++) {
            const bool stays = mix(key + uint32_t(j) * GOLDEN) >= threshold;
            store(numbers[j], stays ? load(numbers[j]) * factor : 0.0f);
        }
    }
};

}  // namespace ISA
