// What of an arena is lent together: see runtime/arena_pieces.h.
#include "runtime/arena_pieces.h"

#include <gtest/gtest.h>

#include <random>

namespace ingot::runtime {
namespace {

TEST(ArenaPieces, ValuesThatMeetNowhereAreApart) {
    const auto pieces = arena_pieces({{7, 0, 64, 3, 5}, {8, 64, 128, 0, 4}, {9, 0, 256, 6, 6}});
    ASSERT_EQ(pieces.size(), 3U);
    EXPECT_EQ(pieces[0].buffers, (std::vector<std::pair<std::int32_t, std::int64_t>>{{8, 0}}));
    EXPECT_EQ(pieces[0].bytes, 128);
    EXPECT_EQ(pieces[1].buffers.front().first, 7);
    EXPECT_EQ(pieces[1].first, 3U);
    EXPECT_EQ(pieces[2].bytes, 256);
}

TEST(ArenaPieces, AResultInItsOperandsPlaceIsOnePieceWithIt) {
    // 2 takes over 1 in step 4, 3 takes over 2 in step 6; 4 has the place of 1 afterwards.
    const auto pieces = arena_pieces(
        {{1, 128, 512, 1, 4}, {2, 128, 512, 4, 6}, {3, 128, 256, 6, 9}, {4, 128, 64, 10, 11}});
    ASSERT_EQ(pieces.size(), 2U);
    EXPECT_EQ(pieces[0].bytes, 512);
    EXPECT_EQ(pieces[0].first, 1U);
    EXPECT_EQ(pieces[0].last, 9U);
    EXPECT_EQ(pieces[0].buffers.size(), 3U);
    EXPECT_EQ(pieces[1].buffers.front(), (std::pair<std::int32_t, std::int64_t>{4, 0}));
}

TEST(ArenaPieces, PiecesNeverSeparateWhatOverlapsAndKeepItsOrder) {
    std::mt19937 random(1);
    const auto below = [&](int n) { return static_cast<std::int64_t>(random() % n); };
    for (int turn = 0; turn < 200; ++turn) {
        std::vector<ArenaUse> uses;
        for (std::int32_t b = 0; b < 24; ++b) {
            const auto first = static_cast<std::size_t>(below(20));
            uses.push_back({b, below(16) * 64, (1 + below(6)) * 64, first,
                            first + static_cast<std::size_t>(below(5))});
        }
        std::vector<std::size_t> piece(uses.size());
        std::vector<std::int64_t> at(uses.size());
        const auto pieces = arena_pieces(uses);
        std::size_t all = 0;
        for (std::size_t p = 0; p < pieces.size(); ++p) {
            EXPECT_LE(pieces[p == 0 ? p : p - 1].first, pieces[p].first);
            for (const auto& [buffer, offset] : pieces[p].buffers) {
                const ArenaUse& use = uses[static_cast<std::size_t>(buffer)];
                piece[static_cast<std::size_t>(buffer)] = p;
                at[static_cast<std::size_t>(buffer)] = offset;
                EXPECT_GE(offset, 0);
                EXPECT_LE(offset + use.bytes, pieces[p].bytes);
                EXPECT_LE(pieces[p].first, use.first);
                EXPECT_GE(pieces[p].last, use.last);
                ++all;
            }
        }
        EXPECT_EQ(all, uses.size());
        for (std::size_t a = 0; a < uses.size(); ++a)
            for (std::size_t b = 0; b < a; ++b) {
                const bool meet = uses[a].first <= uses[b].last && uses[b].first <= uses[a].last;
                const bool overlap = uses[a].offset < uses[b].offset + uses[b].bytes &&
                                     uses[b].offset < uses[a].offset + uses[a].bytes;
                if (!meet || !overlap) continue;
                EXPECT_EQ(piece[a], piece[b]);
                EXPECT_EQ(at[a] - at[b], uses[a].offset - uses[b].offset);
            }
    }
}

}  // namespace
}  // namespace ingot::runtime
