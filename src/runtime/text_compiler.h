// A compiler of kernels' text outside of this process's own code generator: codegen=triton. The
// core prints the text and launches what comes back; who compiles it is the caller's business
// (the Python package hands Triton in). Compilations get one through CompileOptions.
#pragma once
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "ir/error.h"

namespace ingot::runtime {

/// A function of a module of text, with the types of its arguments and its constants.
struct TextKernel {
    std::string source, function;
    std::vector<std::string> arguments;
    std::int64_t x_block = 1, r_block = 1;
    int warps = 4;
};

/// What became of it.
struct TextCode {
    std::vector<std::uint8_t> image;  // a cubin; empty: refused
    std::string entry;                // the kernel's name in the image
    unsigned threads = 0;             // of a block
    std::int64_t shared_bytes = 0;    // of a block
    std::string refusal;              // one line
};

/// The compiler that the user has asked for is not there.
class MissingCompiler : public UserError {
    using UserError::UserError;
};

/// Safe from many threads.
class TextCompiler {
  public:
    virtual ~TextCompiler() = default;
    /// What decides its code, for the keys of caches. Throws MissingCompiler where there is
    /// none.
    virtual std::string version() const = 0;
    /// The code of each, in order, for a GPU of this capability (90 for 9.0), with up to `threads`
    /// at once. Throws MissingCompiler, and Interrupted where a signal ended it.
    virtual std::vector<TextCode> compile(std::span<const TextKernel> kernels, int capability,
                                          int threads) const = 0;
    /// Told of each plan: how many of its kernels have this compiler's code, and by reason how many
    /// have not.
    virtual void count(int made, const std::map<std::string, int>& refused) const = 0;
};

}  // namespace ingot::runtime
