// One loop nest as one function; see emit.h.
#include "codegen/llvm/emit_nest.h"

#include <llvm/IR/Constants.h>
#include <llvm/IR/IRBuilder.h>
#include <llvm/IR/IntrinsicsX86.h>

#include <algorithm>
#include <bit>

#include "codegen/llvm/emit_body.h"
#include "codegen/llvm/emit_reduce.h"
#include "codegen/llvm/emit_shape.h"
#include "ir/error.h"

namespace ingot::codegen {

namespace {

constexpr std::int64_t kLongSum = 16;  // additions to one accumulator that need no second level
constexpr std::int64_t kLeastBlock = 16, kUsualBlock = 64;  // additions before one is flushed
constexpr std::int64_t kUnrollLimit = 64;

class NestEmitter {
  public:
    NestEmitter(llvm::Function& function, const Kernel& kernel, const Nest& nest,
                const NestShape& shape, const TargetInfo& target)
        : function_(function),
          kernel_(kernel),
          nest_(nest),
          shape_(shape),
          builder_(llvm::BasicBlock::Create(function.getContext(), "entry", &function)),
          b(builder_),
          context_{b, target, function.getArg(5)},
          index_(b),
          body_(context_, index_, buffers_, {nest.round_intermediates}) {
        body_.reduced = [this](const Inst& inst) { return reduced_value(inst); };
        body_.accumulator = [](const Inst&) -> Lanes {
            throw InternalError("a loop nest has no accumulator");
        };
    }

    void run() {
        bind_arguments();
        // Allocas go to the entry block's start, everything else behind it.
        auto* start = llvm::BasicBlock::Create(b.getContext(), "start", &function_);
        b.CreateBr(start);
        b.SetInsertPoint(start);
        for_items([this](IrValue chunk) {
            if (shape_.outer_vector)
                points(chunk);
            else
                phases();
        });
        // Streaming stores are ordered before whatever tells others that the work is done.
        if (std::any_of(buffers_.begin(), buffers_.end(),
                        [](const BufferRef& r) { return r.streamable != nullptr; }))
            b.CreateIntrinsic(llvm::Intrinsic::x86_sse_sfence, {}, {});
        b.CreateRetVoid();
    }

  private:
    IrValue num(std::int64_t v) { return b.getInt64(static_cast<std::uint64_t>(v)); }

    void bind_arguments() {
        for (std::size_t i = 0; i < kernel_.sizes.size(); ++i)
            index_.bind(kernel_.sizes[i],
                        b.CreateLoad(b.getInt64Ty(), b.CreateConstInBoundsGEP1_64(
                                                         b.getInt64Ty(), function_.getArg(1), i)));
        std::uint64_t argument = 0;
        IrValue scratch = function_.getArg(4);
        for (const KernelBuffer& buffer : kernel_.buffers) {
            if (buffer.scope == BufferScope::Argument) {
                IrValue slot =
                    b.CreateConstInBoundsGEP1_64(b.getPtrTy(), function_.getArg(0), argument++);
                BufferRef ref{b.CreateLoad(b.getPtrTy(), slot), buffer.dtype};
                if (shape_.streamed[buffers_.size()]) make_streamable(b, ref);
                buffers_.push_back(ref);
                continue;
            }
            buffers_.push_back({scratch, buffer.dtype, shape_.outer_vector});
            scratch =
                b.CreateGEP(b.getInt8Ty(), scratch, index_.scalar(scratch_bytes(buffer, shape_)));
        }
        body_.set_buffers(buffers_);
    }

    // ---- work items -----------------------------------------------------------------------------

    /// Calls body(chunk) for every item of [begin, end), with the outer loops' variables bound. The
    /// indices are decoded from `begin` and then counted on like an odometer.
    template <typename Body>
    void for_items(Body&& body) {
        std::vector<Expr> extents;
        for (const Loop& l : shape_.item_loops) extents.push_back(l.extent);
        if (shape_.outer_vector) extents.push_back(shape_.chunks);
        std::vector<IrValue> counters(extents.size()), limits(extents.size());
        IrValue rest = function_.getArg(2), end = function_.getArg(3);
        for (std::size_t i = extents.size(); i-- > 0;) {
            counters[i] = entry_alloca(b, b.getInt64Ty(), "counter");
            limits[i] = index_.scalar(extents[i]);
            IrValue limit = limits[i];
            if (!extents[i].is_constant())
                limit = b.CreateBinaryIntrinsic(llvm::Intrinsic::smax, limit, num(1));
            const bool whole = i == 0;
            b.CreateStore(whole ? rest : b.CreateURem(rest, limit), counters[i]);
            if (!whole) rest = b.CreateUDiv(rest, limit);
        }
        emit_for(b, "item", function_.getArg(2), end, 1, [&](IrValue) {
            index_.enter_scope();
            IrValue chunk = nullptr;
            for (std::size_t i = 0; i < extents.size(); ++i) {
                IrValue v = b.CreateLoad(b.getInt64Ty(), counters[i]);
                if (i < shape_.item_loops.size())
                    index_.bind(shape_.item_loops[i].var, v);
                else
                    chunk = v;
            }
            body(chunk);
            index_.leave_scope();
            count_on(counters, limits);
        });
    }

    void count_on(const std::vector<IrValue>& counters, const std::vector<IrValue>& limits) {
        IrValue carry = num(1);
        for (std::size_t i = counters.size(); i-- > 0;) {
            IrValue next = b.CreateAdd(b.CreateLoad(b.getInt64Ty(), counters[i]), carry);
            if (i > 0) {
                IrValue wrap = b.CreateICmpEQ(next, limits[i]);
                next = b.CreateSelect(wrap, num(0), next);
                carry = b.CreateZExt(wrap, b.getInt64Ty());
            }
            b.CreateStore(next, counters[i]);
        }
    }

    // ---- vectors of outer points ----------------------------------------------------------------

    void points(IrValue chunk) {
        const Loop& loop = nest_.loops.back();
        if (!shape_.tile.loads.empty()) return tiles(chunk);
        IrValue first = b.CreateMul(chunk, num(shape_.chunk), "", true, true);
        IrValue extent = index_.scalar(loop.extent);
        IrValue last = b.CreateBinaryIntrinsic(llvm::Intrinsic::smin, extent,
                                               b.CreateAdd(first, num(shape_.chunk)));
        vector_loop_over(loop, first, last, shape_.lanes, shape_.rest_lanes, [&] { phases(); });
    }

    // ---- tiles ----------------------------------------------------------------------------------

    /// A block of rows of the tile's loop: whole squares through registers, the rest row by row.
    void tiles(IrValue chunk) {
        const Loop& loop = nest_.loops.back();
        const Loop& rows = nest_.loops[shape_.tile.loop];
        const std::int64_t n = shape_.lanes;
        IrValue top = b.CreateMul(index_.scalar(rows.var), num(n));  // bound to the block's number
        IrValue bottom = b.CreateBinaryIntrinsic(llvm::Intrinsic::smin, index_.scalar(rows.extent),
                                                 b.CreateAdd(top, num(n)));
        IrValue first = b.CreateMul(chunk, num(shape_.chunk), "", true, true);
        IrValue last = b.CreateBinaryIntrinsic(llvm::Intrinsic::smin, index_.scalar(loop.extent),
                                               b.CreateAdd(first, num(shape_.chunk)));
        IrValue squares = b.CreateAnd(b.CreateSub(last, first), num(-n));
        IrValue whole = b.CreateICmpEQ(b.CreateSub(bottom, top), num(n));
        IrValue middle = b.CreateAdd(first, b.CreateSelect(whole, squares, num(0)));
        emit_for(b, "tile", first, middle, n, [&](IrValue i) { one_tile(top, i); });
        const bool fits = rows.extent.is_constant() && loop.extent.is_constant() &&
                          rows.extent.constant() % n == 0 && loop.extent.constant() % n == 0;
        if (fits) return;
        emit_for(b, "row", top, bottom, 1, [&](IrValue row) {
            index_.enter_scope();
            index_.bind(rows.var, row);
            run_vectors(loop, middle, last, shape_.rest_lanes,
                        shape_.rest_lanes > 1 ? last : nullptr, [&] { phases(); });
            index_.leave_scope();
        });
    }

    void one_tile(IrValue top, IrValue left) {
        const Loop& loop = nest_.loops.back();
        const Loop& rows = nest_.loops[shape_.tile.loop];
        const Phase& phase = nest_.phases[0];
        const unsigned n = shape_.lanes;
        std::vector<Spill> spills;
        body_.begin(phase.insts);
        for (InstId id : shape_.tile.loads) {
            std::vector<IrValue> re, im;
            for (unsigned j = 0; j < n; ++j) {
                index_.enter_scope();
                index_.bind(loop.var, b.CreateAdd(left, num(j)));
                index_.bind(rows.var, top);
                index_.set_vector(rows.var, n);
                const Lanes v = body_.load(phase.insts[id]);
                re.push_back(v.re);
                if (v.im) im.push_back(v.im);
                index_.clear_vector();
                index_.leave_scope();
            }
            spills.push_back({id, spill(emit_transpose(b, re)),
                              im.empty() ? nullptr : spill(emit_transpose(b, im)),
                              re[0]->getType()});
        }
        emit_for(b, "row", num(0), num(n), 1, [&](IrValue row) {
            index_.enter_scope();
            index_.bind(rows.var, b.CreateAdd(top, row));
            index_.bind(loop.var, left);
            index_.set_vector(loop.var, n);
            body_.begin(phase.insts);
            for (const Spill& s : spills) {
                auto reload = [&](IrValue from) -> IrValue {
                    return from ? b.CreateLoad(s.type, b.CreateGEP(s.type, from, row)) : nullptr;
                };
                body_.preset(s.id, {reload(s.re), reload(s.im)});
            }
            body_.emit_all();
            for (const Store& store : phase.stores) body_.store(store);
            index_.clear_vector();
            index_.leave_scope();
        });
    }

    /// The columns of a tile on the stack: the body reads one a row.
    struct Spill {
        InstId id = 0;
        IrValue re = nullptr, im = nullptr;
        llvm::Type* type = nullptr;
    };
    IrValue spill(const std::vector<IrValue>& vectors) {
        llvm::Type* type = vectors[0]->getType();
        IrValue slot = entry_alloca(b, llvm::ArrayType::get(type, vectors.size()), "tile");
        for (std::size_t i = 0; i < vectors.size(); ++i)
            b.CreateStore(vectors[i], b.CreateConstGEP1_64(type, slot, i));
        return slot;
    }

    /// for var in [first, last): body() on vectors, then on masked (or scalar) rests. `first` is a
    /// multiple of `lanes`.
    template <typename Body>
    void vector_loop_over(const Loop& loop, IrValue first, IrValue last, unsigned lanes,
                          unsigned rest_lanes, Body&& body) {
        const Expr extent = loop.extent;
        IrValue middle = first;
        if (!extent.is_constant() || extent.constant() >= lanes) {
            middle = b.CreateAdd(first, b.CreateAnd(b.CreateSub(last, first),
                                                    num(-static_cast<std::int64_t>(lanes))));
            run_vectors(loop, first, middle, lanes, nullptr, body);
        }
        if (lanes == 1 || (extent.is_constant() && extent.constant() % lanes == 0)) return;
        run_vectors(loop, middle, last, rest_lanes, rest_lanes > 1 ? last : nullptr, body);
    }

    /// One loop in steps of `lanes`; `masked_end` set: lanes at or behind it are not active.
    template <typename Body>
    void run_vectors(const Loop& loop, IrValue first, IrValue last, unsigned lanes,
                     IrValue masked_end, Body&& body) {
        emit_for(b, masked_end ? "rest" : "vector", first, last, lanes, [&](IrValue i) {
            index_.enter_scope();
            index_.bind(loop.var, i);
            index_.set_vector(loop.var, lanes);
            active_ = nullptr;
            if (masked_end) {
                IrValue left = b.CreateBinaryIntrinsic(llvm::Intrinsic::smin,
                                                       b.CreateSub(masked_end, i), num(lanes));
                left = splat(b, b.CreateTrunc(left, b.getInt32Ty()), lanes);
                active_ = b.CreateICmpULT(IndexEmitter::iota(b.getInt32Ty(), lanes), left);
            }
            body_.set_active(active_);
            body();
            active_ = nullptr;
            body_.set_active(nullptr);
            index_.clear_vector();
            index_.leave_scope();
        });
    }

    // ---- phases ---------------------------------------------------------------------------------

    void phases() {
        results_.clear();
        for (const Phase& phase : nest_.phases) {
            index_.enter_scope();
            one_phase(phase);
            index_.leave_scope();
        }
    }

    struct PhaseState {
        const Phase* phase = nullptr;
        std::vector<std::size_t> levels;
        LoopLanes lanes;                    // of that loop
        std::optional<std::size_t> vector;  // the loop that runs on vectors, if any
        std::int64_t block = 0;             // long sums: flush after so many additions
        Accumulators* sums = nullptr;       // of the loop being emitted
    };

    void one_phase(const Phase& phase) {
        PhaseState s;
        s.phase = &phase;
        s.levels = inst_levels(phase);
        if (!shape_.outer_vector) s.vector = vector_loop(phase);
        body_.begin(phase.insts);
        if (s.vector)
            s.lanes = fit_lanes(phase.loops[*s.vector].extent, shape_.phase_lanes[results_.size()]);
        const unsigned lanes = s.vector ? s.lanes.main : index_.lanes();
        s.block = sum_block(phase, s.vector ? lanes : 1);
        Accumulators sums(context_, phase, lanes, s.block > 0);
        s.sums = &sums;
        std::optional<Accumulators> rest;
        if (s.vector && !phase.reductions.empty() && s.lanes.rest != lanes) {
            rest.emplace(context_, phase, s.lanes.rest, s.block > 0);
            rest_sums_ = &*rest;
        } else {
            rest_sums_ = &sums;
        }
        level(s, 0);
        std::vector<Partial> results;
        for (std::size_t r = 0; r < phase.reductions.size(); ++r) {
            const Reduction& reduction = phase.reductions[r];
            Partial p = sums.get(r);
            if (s.vector) {
                p = across_lanes(context_, reduction, p);
                if (rest)
                    p = combine(context_, reduction, p,
                                across_lanes(context_, reduction, rest->get(r)));
            }
            results.push_back(p);
        }
        results_.push_back(std::move(results));
    }

    /// After how many additions an accumulator is flushed; 0 where it takes few. Sums of f32 are
    /// flushed into f64, which makes the errors those of a block. Otherwise they grow with the
    /// additions at both levels, so that both have about the root of them all.
    static std::int64_t sum_block(const Phase& phase, unsigned lanes) {
        if (std::ranges::none_of(phase.reductions, is_rounded_sum)) return 0;
        Expr count(1);
        for (const Loop& l : phase.loops) count *= l.extent;
        if (!count.is_constant()) return kUsualBlock;
        const std::int64_t additions = count.constant() / static_cast<std::int64_t>(lanes);
        if (additions <= kLongSum) return 0;
        const bool widens = std::ranges::none_of(phase.reductions, [](const Reduction& r) {
            return is_rounded_sum(r) && second_level(r).dtype == r.dtype;
        });
        std::int64_t block = kLeastBlock;
        while (!widens && block * block < additions) block *= 2;
        return block;
    }

    /// Emits the instructions that have all they need after `depth` loops, then the next loop.
    void level(PhaseState& s, std::size_t depth) {
        const Phase& phase = *s.phase;
        for (InstId i = 0; i < phase.insts.size(); ++i)
            if (s.levels[i] == depth) body_.emit(i);
        if (depth == phase.loops.size()) {
            innermost(s);
            return;
        }
        const Loop& loop = phase.loops[depth];
        if (s.vector == depth)
            vector_level(s, depth);
        else if (is_unrolled(loop))
            unrolled_level(s, depth);
        else
            serial_level(s, depth);
    }

    void innermost(PhaseState& s) {
        const Phase& phase = *s.phase;
        for (std::size_t r = 0; r < phase.reductions.size(); ++r) {
            const Reduction& reduction = phase.reductions[r];
            Partial p{body_.value(reduction.value)};
            if (reduction.index != kNone)
                p.index = convert(context_, phase.insts[reduction.index].dtype, DType::I64,
                                  body_.value(reduction.index))
                              .re;
            // Where the lanes are outer points, inactive ones gather numbers nobody uses.
            s.sums->add(r, p, shape_.outer_vector ? nullptr : active_);
        }
        for (const Store& store : phase.stores) body_.store(store);
    }

    void unrolled_level(PhaseState& s, std::size_t depth) {
        const Loop& loop = s.phase->loops[depth];
        for (std::int64_t i = 0; i < loop.extent.constant(); ++i) {
            index_.enter_scope();
            index_.bind(loop.var, num(i));
            level(s, depth + 1);
            index_.leave_scope();
        }
    }

    void serial_level(PhaseState& s, std::size_t depth) {
        const Loop& loop = s.phase->loops[depth];
        IrValue extent = index_.scalar(loop.extent);
        auto run = [&](IrValue first, IrValue last) {
            emit_for(b, "serial", first, last, 1, [&](IrValue i) {
                index_.enter_scope();
                index_.bind(loop.var, i);
                level(s, depth + 1);
                index_.leave_scope();
            });
        };
        if (s.block > 0 && !s.vector && is_last_serial(s, depth))
            in_blocks(s, num(0), extent, block_around(s, depth), run);
        else
            run(num(0), extent);
    }

    void vector_level(PhaseState& s, std::size_t depth) {
        const Loop& loop = s.phase->loops[depth];
        IrValue extent = index_.scalar(loop.extent);
        const auto [lanes, rest] = s.lanes;
        auto inner = [&] { level(s, depth + 1); };
        IrValue middle = b.CreateAnd(extent, num(-static_cast<std::int64_t>(lanes)));
        auto run = [&](IrValue first, IrValue last) {
            run_vectors(loop, first, last, lanes, nullptr, inner);
        };
        const bool none = loop.extent.is_constant() && loop.extent.constant() < lanes;
        if (s.block > 0 && !none)
            in_blocks(s, num(0), middle, block_around(s, depth) * lanes, run);
        else if (!none)
            run(num(0), middle);
        if (lanes == 1 || (loop.extent.is_constant() && loop.extent.constant() % lanes == 0))
            return;
        Accumulators* const main = s.sums;
        s.sums = rest_sums_;
        run_vectors(loop, middle, extent, rest, rest > 1 ? extent : nullptr, inner);
        if (s.block > 0) s.sums->flush();
        s.sums = main;
    }

    static bool is_unrolled(const Loop& loop) {
        return loop.kind == LoopKind::Unroll && loop.extent.is_constant() &&
               loop.extent.constant() <= kUnrollLimit;
    }
    static bool is_last_serial(const PhaseState& s, std::size_t depth) {
        return std::all_of(s.phase->loops.begin() + static_cast<std::ptrdiff_t>(depth) + 1,
                           s.phase->loops.end(), is_unrolled);
    }
    /// How often the loop at `depth` goes round between two flushes: each time its inner loops add.
    static std::int64_t block_around(const PhaseState& s, std::size_t depth) {
        std::int64_t inside = 1;
        for (std::size_t d = depth + 1; d < s.phase->loops.size(); ++d) {
            const Expr extent = s.phase->loops[d].extent;
            if (extent.is_constant()) inside = std::min(inside * extent.constant(), s.block);
        }
        return std::max<std::int64_t>(s.block / std::max<std::int64_t>(inside, 1), 1);
    }

    /// run(first, last) on pieces of at most `block`, the sums flushed after each.
    template <typename Run>
    void in_blocks(PhaseState& s, IrValue first, IrValue last, std::int64_t block, Run&& run) {
        emit_for(b, "block", first, last, block, [&](IrValue i) {
            IrValue end =
                b.CreateBinaryIntrinsic(llvm::Intrinsic::smin, last, b.CreateAdd(i, num(block)));
            run(i, end);
            s.sums->flush();
        });
    }

    Lanes reduced_value(const Inst& inst) {
        const auto phase = static_cast<std::size_t>(inst.phase);
        check(phase < results_.size(), "a reduction is read before its phase");
        const Partial& p = results_[phase][static_cast<std::size_t>(inst.reduction)];
        return inst.component == 1 ? Lanes{p.index} : p.value;
    }

    llvm::Function& function_;
    const Kernel& kernel_;
    const Nest& nest_;
    const NestShape& shape_;
    llvm::IRBuilder<> builder_;
    llvm::IRBuilder<>& b;
    EmitContext context_;
    IndexEmitter index_;
    std::vector<BufferRef> buffers_;
    BodyEmitter body_;
    IrValue active_ = nullptr;
    Accumulators* rest_sums_ = nullptr;
    std::vector<std::vector<Partial>> results_;
};

}  // namespace

Expr scratch_bytes(const KernelBuffer& buffer, const NestShape& shape) {
    const std::int64_t copies = shape.outer_vector ? shape.lanes : 1;
    return ceil_div(buffer.elements * Expr(bytes(buffer.dtype) * copies), Expr(64)) * Expr(64);
}

llvm::Function* make_kernel_function(llvm::Module& module, std::string_view symbol,
                                     const TargetInfo& target) {
    llvm::LLVMContext& context = module.getContext();
    llvm::Type* ptr = llvm::PointerType::getUnqual(context);
    llvm::Type* i64 = llvm::Type::getInt64Ty(context);
    auto* type = llvm::FunctionType::get(llvm::Type::getVoidTy(context),
                                         {ptr, ptr, i64, i64, ptr, ptr}, false);
    auto* f = llvm::Function::Create(type, llvm::Function::ExternalLinkage,
                                     llvm::StringRef(symbol.data(), symbol.size()), module);
    f->addFnAttr(llvm::Attribute::NoUnwind);
    const std::string width = std::to_string(target.vector_bits);
    f->addFnAttr("prefer-vector-width", width);
    f->addFnAttr("min-legal-vector-width", width);
    return f;
}

void emit_nest(llvm::Function& function, const Kernel& kernel, const Nest& nest,
               const NestShape& shape, const TargetInfo& target) {
    NestEmitter(function, kernel, nest, shape, target).run();
}

KernelCode emit_kernel(llvm::Module& module, const Kernel& kernel, const TargetInfo& target,
                       std::string_view symbol_prefix, const EmitOptions& options) {
    check(!kernel.contraction, "emit_kernel: contractions are emitted by emit_contraction");
    KernelCode code;
    for (const Nest& nest : kernel.nests) {
        const NestShape shape = shape_of(kernel, nest, target, options);
        Expr scratch(0);
        for (const KernelBuffer& buffer : kernel.buffers)
            if (buffer.scope == BufferScope::Scratch) scratch += scratch_bytes(buffer, shape);
        const std::string symbol =
            std::string(symbol_prefix) + "_" + std::to_string(code.launches.size());
        emit_nest(*make_kernel_function(module, symbol, target), kernel, nest, shape, target);
        code.launches.push_back({symbol, shape.work, shape.grain, scratch});
    }
    return code;
}

}  // namespace ingot::codegen
