// Work that was recorded from a stream: what a library's call handed to the GPU, operation by
// operation, and which of the numbers in it are the addresses of the call's arguments.
//
// A call that was recorded twice, its arguments at different addresses, differs in exactly the
// words that follow its arguments. Knowing these, a program hands the same kernels over itself, for
// arguments anywhere: a microsecond or two each, where the library's own way through dispatch,
// descriptors and heuristics takes ten times that. What differs in any other way is not understood
// and is left to the library.
//
// Reads the driver's graphs (stream capture makes them), though no graph is ever launched here.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "runtime/cuda/driver_api.h"

namespace ingot::runtime::cuda {

/// A kernel or a fill, as it was handed over.
struct RecordedOperation {
    enum class Kind : std::uint8_t { Kernel, Fill, Other };
    struct Attribute {
        int id;
        std::array<unsigned, 3> value;
        friend bool operator==(const Attribute&, const Attribute&) = default;
    };
    Kind kind = Kind::Other;
    Handle function = nullptr;
    std::array<unsigned, 3> grid{}, block{};
    unsigned shared = 0;
    std::vector<Attribute> attributes;
    bool overlaps = false;                  // it was launched to start while the one before ends
    std::vector<std::uint32_t> parameters;  // where each begins in `bytes`
    std::vector<std::byte> bytes;           // of all parameters; of a fill, the driver's structure
};

/// How many operations the stream has recorded so far. Throws Error when nothing is being recorded,
/// or when what was done meanwhile cannot be.
std::size_t recorded_operations(const Gpu& gpu, Handle stream);
/// Whether what is handed to the stream is recorded (also: unknown, as while another thread records
/// in a mode that forbids to ask).
bool is_recording(const Gpu& gpu, Handle stream);
/// Whether the driver tells what a graph consists of.
bool reads_recorded_work(const Gpu& gpu);

/// The operations of a graph (CUgraph) in order. Nothing if they do not follow each other one by
/// one. What is neither a kernel nor a plain fill is there as Other.
std::optional<std::vector<RecordedOperation>> read_recorded(const Gpu& gpu, Handle graph);

/// Memory of an argument while a call was recorded.
struct ArgumentPlace {
    std::uint64_t address = 0;
    std::uint64_t bytes = 0;
    bool alone = false;  // nothing but the argument lies within gigabytes of it
};
/// A word of an operation that holds the address of an argument and an offset.
struct AddressWord {
    std::uint32_t operation, at, argument;
    std::int64_t offset;
    friend bool operator==(const AddressWord&, const AddressWord&) = default;
};
/// Where the arguments' addresses are in a call that was recorded twice: every argument must lie
/// elsewhere in the second recording, and each have moved by another distance, save parts of one
/// block of memory. Nothing if the recordings differ in anything else.
std::optional<std::vector<AddressWord>> find_addresses(
    std::span<const RecordedOperation> first, std::span<const RecordedOperation> second,
    std::span<const ArgumentPlace> first_places, std::span<const ArgumentPlace> second_places);

/// A recorded call that can be carried out. Immutable; `Launches` is what one caller at a time
/// writes the addresses into.
class DirectCall {
  public:
    /// `places`: as they were recorded; of each, the arguments' alignment is kept.
    DirectCall(std::vector<RecordedOperation> operations, std::vector<AddressWord> words,
               std::span<const ArgumentPlace> places);

    class Launches {
      public:
        explicit Launches(const DirectCall& call);
        Launches(Launches&&) = default;
        Launches& operator=(Launches&&) = default;

      private:
        friend class DirectCall;
        std::vector<std::vector<std::byte>> bytes_;  // by operation
        std::vector<std::vector<void*>> parameters_;
        std::vector<void*> arguments_;  // that are in bytes_
    };

    /// Whether arguments may lie there: libraries choose kernels by alignment.
    bool serves(std::span<void* const> arguments) const;
    /// Hands the operations to the stream.
    void run(const Gpu& gpu, Launches& launches, std::span<void* const> arguments,
             Handle stream) const;

  private:
    std::vector<RecordedOperation> operations_;
    std::vector<AddressWord> words_;
    std::vector<std::uint64_t> low_bits_;  // by argument
};

}  // namespace ingot::runtime::cuda
