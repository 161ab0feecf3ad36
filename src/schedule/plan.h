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
    Input,     // `index`: which graph input
    Output,    // `index`: which graph output (freshly allocated at each call)
    Arena,     // `offset` bytes into the call's arena
    Frozen,    // allocated once, kept between calls, filled by frozen_steps
    Constant,  // `data`
    Extern,    // allocated by the extern call that makes it; dies after its last use
};

struct Buffer {
    Type type;
    Sizes strides;  // in elements, of the logical dims
    BufferPlace place = BufferPlace::Arena;
    std::int32_t index = -1;
    Expr offset;  // Arena: in bytes, a multiple of 64
    Expr bytes;
    std::shared_ptr<const std::vector<std::uint8_t>> data;
};

struct KernelStep {
    std::int32_t kernel;                // into Plan::kernels
    std::vector<std::int32_t> buffers;  // the kernel's Argument buffers in order
    std::vector<Expr> sizes;            // the values of Kernel::sizes
};

/// A call the host program carries out (an ATen operator without a lowering, or the vendor's
/// contraction).
struct ExternStep {
    std::string callee;       // an ATen operator's name with overload, or "recorded" with `index`
    std::int64_t index = -1;  // into the host's table of recorded calls
    Prim prim = Prim::ExternCall;  // vendor form of this prim when callee is empty
    Attrs attrs;
    std::vector<std::int32_t> inputs;
    std::vector<std::int32_t> outputs;
};

/// Graph output `output` is input `input` itself, or the same buffer as an earlier output.
using Step = std::variant<KernelStep, ExternStep>;

struct Plan {
    std::shared_ptr<ExprPool> pool;
    std::vector<Buffer> buffers;
    std::vector<Kernel> kernels;  // deduplicated by text
    std::vector<Step> frozen_steps;
    std::vector<Step> steps;
    std::vector<std::int32_t> input_buffers;   // by graph input
    std::vector<std::int32_t> output_buffers;  // by graph output
    std::vector<bool> frozen_inputs;
    std::vector<SizeGuard> guards;
    Expr arena_bytes;
};

}  // namespace ingot
