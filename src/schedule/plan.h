// The plan: what the scheduler makes of a graph. Buffers, kernels, and the steps in order; memory
// is assigned.
//
// A plan has two parts over the same buffers: `frozen_steps` compute what depends on frozen inputs
// alone (folded, packed weights), and run again only when such an input's storage or version has
// changed; `steps` run at every call.
#pragma once
#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "schedule/nest.h"

namespace ingot {

enum class BufferPlace : std::uint8_t {
    Input,     // `index`: which graph input; written when an output writes that input
    Output,    // `index`: which graph output (freshly allocated at each call, with `strides`)
    Arena,     // `offset` bytes into the call's arena
    Frozen,    // allocated once, kept between calls, filled by frozen_steps
    Constant,  // `data`
    Extern,    // allocated by the extern call that makes it (made to have `strides` if the call
               // gave others); dies after its last use unless it is in output_buffers
};

struct Buffer {
    Type type;
    Sizes strides;  // in elements, of the logical dims
    BufferPlace place = BufferPlace::Arena;
    std::int32_t index = -1;
    /// >= 0: a view into the memory of that buffer (which is no view itself), with this type and
    /// these strides; `place` is that buffer's.
    std::int32_t base = -1;
    Expr offset;  // in bytes; Arena: a multiple of 64; a view: from the base's first element
    Expr bytes;   // extent of the memory, from the first to the last element; 0 when empty
    std::shared_ptr<const std::vector<std::uint8_t>> data;
};

struct KernelStep {
    std::int32_t kernel;                // into Plan::kernels
    std::vector<std::int32_t> buffers;  // the kernel's Argument buffers in order, by instance
    std::vector<Expr> sizes;            // the values of Kernel::sizes
};

/// A call the host program carries out (an ATen operator without a lowering, or the vendor's
/// contraction). Outputs are written into their buffers; those placed Extern are bound to what the
/// call returns instead. Inputs may be views with any strides, 0 included.
struct ExternStep {
    std::string callee;       // an ATen operator's name with overload, or "recorded" with `index`
    std::int64_t index = -1;  // into the host's table of recorded calls
    Prim prim = Prim::ExternCall;  // vendor form of this prim when callee is empty
    Attrs attrs;
    std::vector<std::int32_t> inputs;
    std::vector<std::int32_t> outputs;
    /// Writes results where it is told, graph outputs too; else they may as well be the call's own.
    bool fills = false;
};

using Step = std::variant<KernelStep, ExternStep>;

/// use(what the kernel says of the buffer, which buffer of the plan) for each of the step's.
template <class Use>
void for_each_argument(const Kernel& kernel, const KernelStep& step, const Use& use) {
    std::size_t argument = 0;
    while (argument < step.buffers.size())
        for (const KernelBuffer& b : kernel.buffers)
            if (b.scope == BufferScope::Argument) use(b, step.buffers[argument++]);
}

struct Plan {
    std::shared_ptr<ExprPool> pool;
    std::vector<Buffer> buffers;
    std::vector<Kernel> kernels;  // deduplicated by text
    std::vector<Step> frozen_steps;
    std::vector<Step> steps;
    std::vector<std::int32_t> input_buffers;  // by graph input
    /// By graph output. No two outputs share memory and none is an input's, except an output that
    /// writes an input: that is the input's buffer. (Outputs that eager would alias are the
    /// caller's affair: it builds them as views of one output.)
    std::vector<std::int32_t> output_buffers;
    std::vector<bool> frozen_inputs;
    std::vector<SizeGuard> guards;
    Expr arena_bytes;
};

}  // namespace ingot
