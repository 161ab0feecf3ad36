// Which words of recorded work are addresses of arguments, and when that is not known.
#include "runtime/cuda/recorded_work.h"

#include <gtest/gtest.h>

#include <cstring>

namespace ingot::runtime::cuda {
namespace {

using Words = std::vector<std::uint64_t>;

RecordedOperation kernel(const Words& words) {
    RecordedOperation o;
    o.kind = RecordedOperation::Kind::Kernel;
    o.grid = o.block = {4, 1, 1};
    o.parameters = {0};
    o.bytes.resize(words.size() * sizeof words[0]);
    std::memcpy(o.bytes.data(), words.data(), o.bytes.size());
    return o;
}

constexpr std::uint64_t kA = 0x100000000000, kB = 0x200000000000, kMoved = 0x40000000;
// Two made-up arguments, and a result that the library has allocated.
const ArgumentPlace kFirst[] = {{kA, 4096, true}, {kB, 64, true}, {0x7000, 512, false}};
const ArgumentPlace kSecond[] = {
    {kA + kMoved, 4096, true}, {kB + 2 * kMoved, 64, true}, {0x9000, 512, false}};

std::optional<std::vector<AddressWord>> find(const Words& first, const Words& second) {
    const RecordedOperation a[] = {kernel(first)}, b[] = {kernel(second)};
    return find_addresses(a, b, kFirst, kSecond);
}

TEST(RecordedWork, FindsAddressesByHowFarTheyMove) {
    const auto words =
        find({7, kA + 16, kB, 0x7080}, {7, kA + kMoved + 16, kB + 2 * kMoved, 0x9080});
    ASSERT_TRUE(words);
    const std::vector<AddressWord> expected = {{0, 8, 0, 16}, {0, 16, 1, 0}, {0, 24, 2, 0x80}};
    EXPECT_EQ(*words, expected);
}

TEST(RecordedWork, TakesAddressesBesideAnArgumentWhereNothingElseLies) {
    // A convolution's padding makes it begin before its image.
    const auto words = find({kA - 4096}, {kA + kMoved - 4096});
    ASSERT_TRUE(words);
    EXPECT_EQ((*words)[0].offset, -4096);
    // Beside a result, other memory lies.
    EXPECT_FALSE(find({0x7000 + 512}, {0x9000 + 512}));
}

TEST(RecordedWork, RefusesWhatItDoesNotUnderstand) {
    EXPECT_FALSE(find({1}, {2}));                           // a number that changes
    EXPECT_FALSE(find({kA}, {kA + 2 * kMoved}));            // moves as another argument
    EXPECT_FALSE(find({kA + 8}, {kA + 8}));                 // an address of another call
    EXPECT_FALSE(find({kA >> 12}, {(kA + kMoved) >> 12}));  // made of an address
    EXPECT_FALSE(find({1, 2}, {1}));
    const RecordedOperation one[] = {kernel({1})}, two[] = {kernel({1}), kernel({1})};
    EXPECT_FALSE(find_addresses(one, two, kFirst, kSecond));
    RecordedOperation wider = kernel({1});
    wider.grid[0] = 5;
    EXPECT_FALSE(find_addresses(one, std::span(&wider, 1), kFirst, kSecond));
    RecordedOperation copy = kernel({1});
    copy.kind = RecordedOperation::Kind::Other;
    EXPECT_FALSE(find_addresses(std::span(&copy, 1), std::span(&copy, 1), kFirst, kSecond));
}

TEST(RecordedWork, TakesAnEarlierArgumentForPartsOfOneBlock) {
    const ArgumentPlace first[] = {{kA, 256, true}, {kA + 256, 256, true}};
    const ArgumentPlace second[] = {{kA + kMoved, 256, true}, {kA + kMoved + 256, 256, true}};
    const RecordedOperation a[] = {kernel({kA + 256})}, b[] = {kernel({kA + kMoved + 256})};
    const auto words = find_addresses(a, b, first, second);
    ASSERT_TRUE(words);
    EXPECT_EQ((*words)[0], (AddressWord{0, 0, 1, 0}));
}

TEST(RecordedWork, ServesArgumentsThatAreAlignedAlike) {
    const DirectCall call({kernel({kA, kB, 0x7000})}, {{0, 0, 0, 0}, {0, 8, 1, 0}, {0, 16, 2, 0}},
                          kFirst);
    const auto at = [](std::uint64_t address) { return reinterpret_cast<void*>(address); };
    EXPECT_TRUE(call.serves(std::vector{at(0x40000), at(0x80000), at(0x1200)}));
    EXPECT_FALSE(call.serves(std::vector{at(0x40010), at(0x80000), at(0x1200)}));
}

}  // namespace
}  // namespace ingot::runtime::cuda
