// Fingerprints of the inputs that frozen values are made from: a second line of defence where
// nobody has said that an input was written.
//
// Each input is divided into chunks, a chunk has a hash of 64 bits. A call compares a few chunks, a
// next call the next ones; whoever has reason to compares all of them at once. How many calls it
// takes is fixed and not a matter of clocks: `kCallsOnOneThread` times as many as threads run. A
// call reads its frozen values, which are about as big as the inputs, at least once, with all
// threads, and one thread compares 1 / (kCallsOnOneThread * threads) of the inputs: 0.2 % of a call
// that does nothing else but read, at the same speed. Beside the inputs, hashes take 0.2 % of their
// memory at most. Inputs in the memory of a GPU have none.
#pragma once
#include <atomic>
#include <cstdint>
#include <span>
#include <vector>

#include "runtime/host.h"

namespace ingot::runtime {

class Fingerprint {
  public:
    static constexpr std::int64_t kCallsOnOneThread = 512;

    /// How much is compared.
    enum class Extent : std::uint8_t { Part, All };

    /// Takes the fingerprint of the inputs as they are: `data[i]` is where those of `layouts[i]`
    /// begin.
    Fingerprint(std::span<const Layout> layouts, std::span<const void* const> data,
                const Threads& threads);
    /// Counts a call; whether it should compare a part. A few nanoseconds.
    bool is_due(const Threads& threads) const;
    /// The inputs, in order, of which something compared is not what it was. Safe from many
    /// threads, which share the work.
    std::vector<std::size_t> changed(std::span<const void* const> data, Extent extent,
                                     const Threads& threads) const;

  private:
    /// An input as rows of bytes that lie one behind the other, and how the rows lie.
    struct Rows {
        std::int64_t bytes = 0, count = 1;         // of a row; of rows
        std::vector<std::int64_t> sizes, strides;  // of rows, in bytes; the last varies fastest
    };
    struct Chunk {
        std::uint32_t input;
        std::int64_t begin, end;  // bytes where there is one row, else rows
    };
    static Rows rows_of(const Layout& layout);
    std::uint64_t hash(const Chunk& chunk, const void* data) const;
    std::int64_t bytes(const Chunk& chunk) const;
    template <class Visit>
    void visit_all(const Threads& threads, const Visit& visit) const;
    std::vector<std::size_t> changed_part(std::span<const void* const> data) const;

    std::vector<Rows> inputs_;
    std::vector<Chunk> chunks_;
    std::vector<std::uint64_t> hashes_;          // by chunk
    std::int64_t total_ = 0;                     // bytes
    std::int64_t longest_ = 0;                   // of the chunks, in bytes
    mutable std::atomic<std::int64_t> owed_{0};  // bytes that calls so far should have compared
    mutable std::atomic<std::uint64_t> position_{0};  // chunks compared, in turns
};

}  // namespace ingot::runtime
