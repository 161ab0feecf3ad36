// Pages that come back in blocks of other sizes.
#include "runtime/page_heap.h"

#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <vector>

namespace ingot::runtime {
namespace {

constexpr std::size_t kMega = std::size_t{1} << 20;

TEST(PageHeap, GivesNeighboursOutAsOneBlock) {
    PageHeap heap;
    std::size_t fresh = 0;
    void* first = heap.take(3 * kMega, fresh);
    EXPECT_EQ(fresh, 3 * kMega);
    void* second = heap.take(2 * kMega, fresh);
    EXPECT_EQ(fresh, 2 * kMega);
    heap.give_back(first, 3 * kMega);
    heap.give_back(second, 2 * kMega);
    EXPECT_EQ(heap.unused_bytes(), 5 * kMega);
    void* both = heap.take(5 * kMega, fresh);
    EXPECT_EQ(fresh, 0u);
    EXPECT_EQ(heap.unused_bytes(), 0u);
    heap.give_back(both, 5 * kMega);
    // Where most of it is there already.
    void* more = heap.take(6 * kMega, fresh);
    EXPECT_EQ(fresh, kMega);
    heap.give_back(more, 6 * kMega);
    // One of just the size before one that would be cut.
    void* whole = heap.take(6 * kMega, fresh);
    void* small = heap.take(kMega, fresh);
    heap.give_back(whole, 6 * kMega);
    void* gap = heap.take(4 * kMega, fresh);
    EXPECT_EQ(fresh, 0u);
    heap.give_back(small, kMega);
    heap.give_back(gap, 4 * kMega);
}

TEST(PageHeap, TrimsTheLongestUnusedAndKeepsTheRest) {
    PageHeap heap;
    std::size_t fresh = 0;
    void* old = heap.take(2 * kMega, fresh);
    void* between = heap.take(kMega, fresh);
    void* young = heap.take(2 * kMega, fresh);
    std::memset(young, 7, 2 * kMega);
    heap.give_back(old, 2 * kMega);
    heap.give_back(young, 2 * kMega);
    heap.trim(2 * kMega);
    EXPECT_EQ(heap.unused_bytes(), 2 * kMega);
    void* again = heap.take(2 * kMega, fresh);
    EXPECT_EQ(fresh, 0u);
    EXPECT_EQ(again, young);
    EXPECT_EQ(static_cast<unsigned char*>(again)[kMega], 7);
    heap.trim(0);
    EXPECT_EQ(static_cast<unsigned char*>(again)[kMega], 7);
    heap.give_back(between, kMega);
    heap.give_back(again, 2 * kMega);
    heap.trim(0);
    EXPECT_EQ(heap.unused_bytes(), 0u);
}

TEST(PageHeap, TrimsInTheOrderOfAgeWhateverThePlaces) {
    PageHeap heap;
    std::size_t fresh = 0;
    std::vector<void*> blocks, between;
    for (int i = 0; i < 5; ++i) {
        blocks.push_back(heap.take(2 * kMega, fresh));
        between.push_back(heap.take(kMega, fresh));
        std::memset(blocks.back(), 7, 2 * kMega);
    }
    for (const int i : {3, 0, 4, 1, 2}) heap.give_back(blocks[i], 2 * kMega);
    heap.trim(5 * kMega);  // all of 3 and 0, half of 4
    EXPECT_EQ(heap.unused_bytes(), 5 * kMega);
    for (int i = 0; i < 2; ++i) {
        (void)heap.take(2 * kMega, fresh);
        EXPECT_EQ(fresh, 0u);
    }
    EXPECT_EQ(heap.unused_bytes(), kMega);
    EXPECT_EQ(static_cast<unsigned char*>(blocks[1])[0], 7);
    EXPECT_EQ(static_cast<unsigned char*>(blocks[2])[0], 7);
    EXPECT_EQ(static_cast<unsigned char*>(blocks[4])[0], 7);
    EXPECT_EQ(static_cast<unsigned char*>(blocks[4])[2 * kMega - 1], 0);
}

// Blocks of many sizes, in any order: none is given out twice, and the count of what is unused is
// that of what was given back and not taken again.
TEST(PageHeap, BlocksNeverOverlap) {
    std::mt19937 random(3);
    PageHeap heap;
    struct Block {
        unsigned char* data;
        std::size_t bytes;
        unsigned char mark;
    };
    std::vector<Block> blocks;
    std::size_t given_back = 0, reused = 0, ever_reused = 0;
    const auto drop = [&](std::size_t i) {
        const Block b = blocks[i];
        for (std::size_t at = 0; at < b.bytes; at += 4096) ASSERT_EQ(b.data[at], b.mark);
        ASSERT_EQ(b.data[b.bytes - 1], b.mark);
        heap.give_back(b.data, b.bytes);
        given_back += whole_pages(b.bytes);
        blocks.erase(blocks.begin() + static_cast<std::ptrdiff_t>(i));
    };
    for (int round = 0; round < 3000; ++round) {
        if (blocks.size() > 40 || (!blocks.empty() && random() % 2 == 0)) {
            drop(random() % blocks.size());
        } else {
            const std::size_t bytes = 1 + random() % (random() % 4 == 0 ? kMega : 64 << 10);
            std::size_t fresh = 0;
            auto* data = static_cast<unsigned char*>(heap.take(bytes, fresh));
            reused += whole_pages(bytes) - fresh;
            ever_reused += whole_pages(bytes) - fresh;
            const auto mark = static_cast<unsigned char>(round);
            for (std::size_t at = 0; at < bytes; at += 4096) data[at] = mark;
            data[bytes - 1] = mark;
            blocks.push_back({data, bytes, mark});
        }
        ASSERT_EQ(heap.unused_bytes(), given_back - reused);
        if (round % 500 == 499) {
            heap.trim(kMega);
            EXPECT_LE(heap.unused_bytes(), kMega);
            given_back = heap.unused_bytes();
            reused = 0;
        }
    }
    EXPECT_GT(ever_reused, 0u);
    while (!blocks.empty()) drop(0);
    heap.trim(0);
    EXPECT_EQ(heap.unused_bytes(), 0u);
}

}  // namespace
}  // namespace ingot::runtime
