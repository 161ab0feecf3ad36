// Loop nests: what the scheduler hands to code generation. Everything is a scalar computation at a
// point of an iteration space, with explicit offsets into flat buffers; no tensor is left. The same
// nests become x86, PTX, C++ and Triton text.
//
// A Kernel has flat buffers and either a list of Nests (run one after another by the same caller)
// or one Contraction.
//
// A Nest is outer loops, all of whose iterations are independent (they run in parallel, in any
// order), around Phases that run one after another for each outer point:
//
//     for outer loops:                 // parallel
//         phase 0: for its loops: insts; reductions accumulate; stores
//         phase 1: for its loops: insts, which may read phase 0's reductions; ...
//
// A softmax over rows is outer [row] and three phases over columns (max; sum of exp; division and
// store). A pointwise kernel is outer loops with one phase without loops. A phase's insts are SSA
// over that phase; a value leaves a phase only as a reduction's result or through a buffer (a
// Scratch buffer, private to the thread, for values needed again per point). Insts that depend on
// no loop of the phase are invariant; code generation hoists them.
//
// Types. An inst's dtype is its result's, and operands have the types the prim asks for: every
// change of type is an explicit Convert. Arithmetic on reduced floats (f8, f16, bf16) is carried
// out in f32. With `round_intermediates` the result of every Prim inst of a reduced type is rounded
// to that type at once; without, it stays f32 and only stores (and Bitcast) round. A Load has its
// buffer's dtype, a stored value too. A reduction's `value` has the accumulator's dtype (a Convert
// to f32 stands before the sum of a bf16 tensor), so has the Reduced inst (component 1 of an arg
// reduction: i64). An Accumulator has the contraction's accumulate dtype. A bool is a byte 0 or 1.
//
// Memory. A phase may load what an earlier phase of the same outer point has stored, and a kernel's
// later nest what an earlier nest has stored; never otherwise. An Argument buffer that is both read
// and written is read at an element only before (or by the point that) writes it.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "ir/dtype.h"
#include "ir/expr.h"
#include "ir/graph.h"
#include "ir/prim.h"

namespace ingot {

using InstId = std::uint32_t;

enum class InstKind : std::uint8_t {
    Prim,   // a pointwise prim of operands; `imm` for prims with an int attribute (decimals, order,
            // layout)
    Load,   // buffer[offset]; where `mask` (an earlier bool inst) fails, `constant` and no access
    Index,  // the integer expression `offset` as a number of `dtype` (i64 or i32)
    Constant,     // `constant` as a number of `dtype`
    Reduced,      // result `reduction` of phase `phase` (an earlier one); component 1 of an arg
                  // reduction is its index
    Accumulator,  // epilogue of a contraction: the finished dot product at (batch, m, n)
    Bind,  // binds `offset` (a symbol) to operand 0 (an integer): later offsets may contain the
           // symbol. `imm` is a BindCheck; what it refuses sets the kernel's error flag and reads
           // as 0. `extent` holds the expression.
};

/// Which indices a Bind takes.
enum BindCheck : std::int64_t {
    kBindAny = 0,        // every one: it cannot be out of range
    kBindFromEnds = 1,   // [-extent, extent): negative ones have extent added
    kBindFromStart = 2,  // [0, extent)
};

struct Inst {
    InstKind kind = InstKind::Prim;
    Prim prim = Prim::Add;
    DType dtype = DType::F32;  // of the result
    std::vector<InstId> operands;
    std::int32_t buffer = -1;     // Load
    Expr offset;                  // Load, Index, Bind: in elements of the buffer
    Expr extent;                  // Bind
    InstId mask = kNone;          // Load
    Scalar constant;              // Constant; Load: the value where the mask fails
    std::int32_t phase = -1;      // Reduced
    std::int32_t reduction = -1;  // Reduced
    std::int32_t component = 0;   // Reduced
    std::int64_t imm = 0;
};

enum class LoopKind : std::uint8_t {
    Serial,
    Vector,  // code generation covers it with vectors of its own width and a masked or scalar rest
    Unroll,  // constant extent, unrolled entirely
    Run,  // on GPUs, the last outer loop: its points follow one another, in the same threads, and
          // stores of the mode Sum add up over them
};

struct Loop {
    Expr var;  // a symbol made by ExprPool::index
    Expr extent;
    LoopKind kind = LoopKind::Serial;
};

enum class ReduceOp : std::uint8_t { Sum, Prod, Max, Min, And, Or, Xor, ArgMax, ArgMin };

struct Reduction {
    ReduceOp op = ReduceOp::Sum;
    DType dtype = DType::F32;  // of the accumulator (f32 for reduced floats)
    InstId value = kNone;
    InstId index =
        kNone;  // ArgMax, ArgMin: the index reported with `value`; ties keep the smaller index
};

enum class StoreMode : std::uint8_t { Write, AtomicAdd, Sum };

struct Store {
    std::int32_t buffer = -1;
    Expr offset;
    InstId value = kNone;  // of the buffer's dtype
    InstId mask = kNone;   // nothing is written where it fails
    StoreMode mode = StoreMode::Write;
};

struct Phase {
    std::vector<Loop> loops;
    std::vector<Inst> insts;
    std::vector<Reduction> reductions;
    std::vector<Store> stores;  // in order, after the insts
};

struct Nest {
    std::vector<Loop> loops;  // outer, parallel; the last may be Vector (then every phase runs on
                              // vectors of points)
    std::vector<Phase> phases;
    bool round_intermediates = true;
};

/// The outer loops whose points may be taken in any order: all but a run.
inline std::vector<Loop> parallel_loops(const Nest& nest) {
    std::vector<Loop> loops = nest.loops;
    if (!loops.empty() && loops.back().kind == LoopKind::Run) loops.pop_back();
    return loops;
}

enum class BufferScope : std::uint8_t { Argument, Scratch };

struct KernelBuffer {
    DType dtype = DType::F32;
    Expr elements;  // how many the kernel may touch (Argument: for checks; Scratch: to allocate)
    BufferScope scope = BufferScope::Argument;
    bool read = false;
    bool written = false;
};

/// acc[b, m, n] = sum over k of a * b, then the epilogue at each (batch, m, n).
/// The operands are affine loads whose offsets are expressions of the loops (with `mask` insts for
/// padding), so matmul, linear and convolution are one form: a convolution has m = (image, oh, ow),
/// k = (kh, kw, c), n = output channel.
struct Contraction {
    std::vector<Loop> batch, m, n, k;
    std::vector<Inst> a_insts;  // the last one is the value of A at (batch, m, k)
    std::vector<Inst> b_insts;  // the last one is the value of B at (batch, k, n)
    /// B's buffer holds panels: [batch..][n / panel][k][panel] with n padded by zeros; 0: not
    /// packed, follow b_insts.
    std::int32_t b_panel = 0;
    DType accumulate = DType::F32;
    Phase epilogue;  // no loops; insts may use Accumulator and the batch, m, n variables
    bool round_intermediates = true;
};

struct Kernel {
    std::string name;  // readable: what was fused, such as "softmax_mul"
    std::vector<KernelBuffer> buffers;
    std::vector<Expr> sizes;  // symbols passed at run time, in this order
    std::vector<Nest> nests;
    std::shared_ptr<const Contraction> contraction;  // instead of nests
    /// On a GPU one launch may do the same with several sets of buffers, each as `buffers` says;
    /// they follow one another among the arguments.
    int instances = 1;
};

/// The kernel as text: complete and deterministic (names of symbols are canonical), the key of
/// deduplication and of the disk cache. `parse_kernel` reads it back.
std::string to_string(const Kernel& kernel);
Kernel parse_kernel(std::string_view text, ExprPool& pool);

}  // namespace ingot
