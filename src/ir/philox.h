// Philox4x32-10, a random number that is a function of its place: what PyTorch draws on CUDA.
//
// Eager's kernels give element `place` of a result a number of thread `unit % threads` of theirs,
// where `width` neighbours are one unit of work; each number of a thread is one of the four of a
// block of its sequence. So the prim `philox` needs the element's place and the generator's seed
// and offset, and may be computed wherever and as often as is convenient. The reference evaluator
// and the tests use this form; code generation has its own (codegen/llvm/emit_philox.h).
#pragma once
#include <algorithm>
#include <array>
#include <cstdint>

namespace ingot {

/// How eager lays results over threads: the attribute `layout` of the prim.
struct PhiloxLayout {
    std::int64_t threads = 1;  // of the launch, all blocks together
    std::int64_t width = 1;  // 1: a thread's elements lie `threads` apart; else neighbours: 2, 4, 8
    bool small = false;      // every place is below 2^31

    std::int64_t packed() const { return threads * 32 + (small ? 16 : 0) + width; }
    static PhiloxLayout unpacked(std::int64_t packed) {
        return {std::max<std::int64_t>(packed >> 5, 1), std::max<std::int64_t>(packed & 15, 1),
                (packed & 16) != 0};
    }
};

inline constexpr std::uint32_t kPhiloxMultipliers[] = {0xD2511F53u, 0xCD9E8D57u};
inline constexpr std::uint32_t kPhiloxKeySteps[] = {0x9E3779B9u, 0xBB67AE85u};
inline constexpr int kPhiloxRounds = 10;

/// The four numbers of one block.
constexpr std::array<std::uint32_t, 4> philox_block(std::array<std::uint32_t, 4> c,
                                                    std::array<std::uint32_t, 2> key) {
    for (int round = 0; round < kPhiloxRounds; ++round) {
        const std::uint64_t a = std::uint64_t{kPhiloxMultipliers[0]} * c[0];
        const std::uint64_t b = std::uint64_t{kPhiloxMultipliers[1]} * c[2];
        c = {static_cast<std::uint32_t>(b >> 32) ^ c[1] ^ key[0], static_cast<std::uint32_t>(b),
             static_cast<std::uint32_t>(a >> 32) ^ c[3] ^ key[1], static_cast<std::uint32_t>(a)};
        key[0] += kPhiloxKeySteps[0];
        key[1] += kPhiloxKeySteps[1];
    }
    return c;
}

/// The 32 random bits of the element at `place`. `offset` is a multiple of 4, as generators keep
/// it.
constexpr std::uint32_t philox_bits(std::uint64_t place, std::uint64_t seed, std::uint64_t offset,
                                    PhiloxLayout layout) {
    const auto threads = static_cast<std::uint64_t>(layout.threads),
               width = static_cast<std::uint64_t>(layout.width);
    const std::uint64_t unit = place / width, thread = unit % threads, turn = unit / threads;
    // Numbers that the thread has drawn before; of a pair the other two are thrown away.
    const std::uint64_t drawn = width == 1   ? turn
                                : width == 2 ? turn * 4 + place % 2
                                             : turn * width + place % width;
    const std::uint64_t block = (offset >> 2) + (drawn >> 2);
    const auto low = [](std::uint64_t v) { return static_cast<std::uint32_t>(v); };
    return philox_block({low(block), low(block >> 32), low(thread), low(thread >> 32)},
                        {low(seed), low(seed >> 32)})[drawn & 3];
}

/// Below which number of 2^32 random bits lie whose uniform number (in (0, 1], as CUDA's libraries
/// make it of them) is below `p`.
constexpr std::int64_t philox_threshold(double p) {
    std::int64_t low = 0, high = std::int64_t{1} << 32;
    while (low < high) {  // the uniform number grows with the bits
        const std::int64_t middle = (low + high) / 2;
        const float u =
            static_cast<float>(static_cast<std::uint32_t>(middle)) * 0x1p-32f + 0x1p-33f;
        if (static_cast<double>(u) < p)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

}  // namespace ingot
