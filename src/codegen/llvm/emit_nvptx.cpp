// Loop nests for NVIDIA GPUs; see emit_nvptx.h.
#include "codegen/llvm/emit_nvptx.h"

#include <llvm/IR/Intrinsics.h>
#include <llvm/IR/IntrinsicsNVPTX.h>

#include <functional>

#include "codegen/llvm/emit_body.h"
#include "codegen/llvm/emit_reduce.h"
#include "ir/error.h"

namespace ingot::codegen {

namespace {

constexpr unsigned kThreads = 256;
constexpr unsigned kWarp = 32;
constexpr unsigned kShared = 3, kGlobal = 1;  // address spaces
constexpr std::int64_t kShortLoop = 64;       // below this a thread walks a phase's loops alone
constexpr std::int64_t kSharedBytes = 96 << 10;

Expr extent_of(const std::vector<Loop>& loops) {
    Expr n = 1;
    for (const Loop& l : loops) n = n * l.extent;
    return n;
}

bool wants_block(const Nest& nest) {
    for (const Phase& phase : nest.phases) {
        Expr n = extent_of(phase.loops);
        if (!n.is_constant() || n.constant() >= kShortLoop) return true;
    }
    return false;
}

class GpuNestEmitter {
  public:
    GpuNestEmitter(llvm::Module& module, const Kernel& kernel, const TargetInfo& target,
                   const Nest& nest, std::string symbol)
        : module_(module),
          kernel_(kernel),
          nest_(nest),
          b_(module.getContext()),
          context_{b_, target},
          index_(b_) {
        launch_.symbol = std::move(symbol);
        launch_.points = extent_of(nest.loops);
        launch_.block_per_point = wants_block(nest);
        launch_.threads = kThreads;
    }

    GpuLaunch run() {
        make_function();
        bind_arguments();
        place_scratch();
        IrValue thread = special(llvm::Intrinsic::nvvm_read_ptx_sreg_tid_x);
        IrValue block = special(llvm::Intrinsic::nvvm_read_ptx_sreg_ctaid_x);
        IrValue blocks = special(llvm::Intrinsic::nvvm_read_ptx_sreg_nctaid_x);
        thread_ = thread;
        IrValue points = index_.scalar(launch_.points);
        IrValue first = block, step = blocks;
        if (!launch_.block_per_point) {
            IrValue width = b_.getInt64(kThreads);
            first = b_.CreateAdd(b_.CreateMul(block, width), thread);
            step = b_.CreateMul(blocks, width);
        }
        stride_loop("point", first, points, step, [&](IrValue point) {
            index_.enter_scope();
            bind_flat(nest_.loops, point);
            results_.clear();
            for (const Phase& phase : nest_.phases) results_.push_back(emit_phase(phase));
            index_.leave_scope();
            // The next point overwrites what this one keeps in shared memory.
            if (launch_.block_per_point) barrier();
        });
        b_.CreateRetVoid();
        return launch_;
    }

  private:
    void make_function() {
        llvm::LLVMContext& c = module_.getContext();
        std::vector<llvm::Type*> types;
        for (const KernelBuffer& k : kernel_.buffers)
            if (k.scope == BufferScope::Argument)
                types.push_back(llvm::PointerType::get(c, kGlobal));
        types.insert(types.end(), kernel_.sizes.size(), b_.getInt64Ty());
        types.push_back(llvm::PointerType::get(c, kGlobal));
        auto* type = llvm::FunctionType::get(b_.getVoidTy(), types, false);
        function_ =
            llvm::Function::Create(type, llvm::Function::ExternalLinkage, launch_.symbol, module_);
        function_->setCallingConv(llvm::CallingConv::PTX_Kernel);
        // Tells ptxas how many registers a thread may take.
        llvm::Metadata* bound[] = {llvm::ValueAsMetadata::get(function_),
                                   llvm::MDString::get(c, "maxntidx"),
                                   llvm::ConstantAsMetadata::get(b_.getInt32(kThreads))};
        module_.getOrInsertNamedMetadata("nvvm.annotations")
            ->addOperand(llvm::MDNode::get(c, bound));
        b_.SetInsertPoint(llvm::BasicBlock::Create(c, "entry", function_));
    }

    IrValue generic(IrValue pointer) { return b_.CreateAddrSpaceCast(pointer, b_.getPtrTy()); }

    void bind_arguments() {
        buffers_.resize(kernel_.buffers.size());
        unsigned next = 0;
        for (std::size_t i = 0; i < kernel_.buffers.size(); ++i) {
            buffers_[i].dtype = kernel_.buffers[i].dtype;
            if (kernel_.buffers[i].scope == BufferScope::Argument)
                buffers_[i].pointer = generic(function_->getArg(next++));
        }
        for (const Expr& s : kernel_.sizes) index_.bind(s, function_->getArg(next++));
        context_.error = generic(function_->getArg(next));
    }

    void place_scratch() {
        Expr offset = 0;
        for (std::size_t i = 0; i < kernel_.buffers.size(); ++i) {
            const KernelBuffer& k = kernel_.buffers[i];
            if (k.scope != BufferScope::Scratch) continue;
            if (!launch_.block_per_point) {
                if (!k.elements.is_constant())
                    throw NotSupported("a scratch buffer of changing size on a GPU");
                llvm::Type* type = storage_type(b_.getContext(), k.dtype);
                std::int64_t count = k.elements.constant() * (is_complex(k.dtype) ? 2 : 1);
                buffers_[i].pointer =
                    b_.CreateAlloca(llvm::ArrayType::get(type, static_cast<std::uint64_t>(count)));
                continue;
            }
            IrValue at = b_.CreateGEP(b_.getInt8Ty(), dynamic_shared(), index_.scalar(offset));
            buffers_[i].pointer = generic(at);
            offset = offset + ceil_div(k.elements * Expr(bytes(k.dtype)), 16) * Expr(16);
        }
        if (offset.range().lo > kSharedBytes)
            throw NotSupported("rows too long for a GPU's shared memory");
        launch_.shared_bytes = offset;
    }

    IrValue dynamic_shared() {
        auto* type = llvm::ArrayType::get(b_.getInt8Ty(), 0);
        auto* g = module_.getGlobalVariable("ingot_shared");
        if (!g) {
            g = new llvm::GlobalVariable(module_, type, false, llvm::GlobalValue::ExternalLinkage,
                                         nullptr, "ingot_shared", nullptr,
                                         llvm::GlobalValue::NotThreadLocal, kShared);
            g->setAlignment(llvm::Align(16));
        }
        return g;
    }

    IrValue special(llvm::Intrinsic::ID id) {
        return b_.CreateZExt(b_.CreateIntrinsic(id, {}, {}), b_.getInt64Ty());
    }
    void barrier() { b_.CreateIntrinsic(llvm::Intrinsic::nvvm_barrier0, {}, {}); }

    // for (i = begin; i < end; i += step), with a step known at run time only.
    template <class Body>
    void stride_loop(const char* name, IrValue begin, IrValue end, IrValue step, const Body& body) {
        llvm::BasicBlock* before = b_.GetInsertBlock();
        auto* loop = llvm::BasicBlock::Create(b_.getContext(), name, function_);
        auto* after = llvm::BasicBlock::Create(b_.getContext(), "after", function_);
        b_.CreateCondBr(b_.CreateICmpSLT(begin, end), loop, after);
        b_.SetInsertPoint(loop);
        llvm::PHINode* i = b_.CreatePHI(b_.getInt64Ty(), 2, name);
        i->addIncoming(begin, before);
        body(static_cast<IrValue>(i));
        IrValue next = b_.CreateAdd(i, step, "", true, true);
        i->addIncoming(next, b_.GetInsertBlock());
        b_.CreateCondBr(b_.CreateICmpSLT(next, end), loop, after);
        b_.SetInsertPoint(after);
    }

    // Loop variables from a flat index; the last loop runs fastest.
    void bind_flat(const std::vector<Loop>& loops, IrValue flat) {
        for (std::size_t i = loops.size(); i-- > 0;) {
            if (i == 0) {
                index_.bind(loops[i].var, flat);
                break;
            }
            IrValue extent = index_.scalar(loops[i].extent);
            index_.bind(loops[i].var, b_.CreateURem(flat, extent));
            flat = b_.CreateUDiv(flat, extent);
        }
    }

    std::vector<Partial> emit_phase(const Phase& phase) {
        const bool shared_loop = launch_.block_per_point && !phase.loops.empty();
        Accumulators sums(context_, phase.reductions, 1, false);
        BodyEmitter body(context_, index_, buffers_, {nest_.round_intermediates});
        body.begin(phase.insts);
        body.reduced = [this](const Inst& inst) {
            const Partial& p = results_[static_cast<std::size_t>(inst.phase)]
                                       [static_cast<std::size_t>(inst.reduction)];
            return inst.component == 1 ? Lanes{p.index} : p.value;
        };
        auto at_point = [&] {
            body.emit_all();
            for (std::size_t r = 0; r < phase.reductions.size(); ++r) {
                Partial next{body.value(phase.reductions[r].value)};
                if (phase.reductions[r].index != kNone)
                    next.index = body.value(phase.reductions[r].index).re;
                sums.add(r, next, nullptr);
            }
            store(phase, body, shared_loop);
        };
        IrValue count = index_.scalar(extent_of(phase.loops));
        if (phase.loops.empty()) {
            at_point();
        } else {
            IrValue begin = shared_loop ? thread_ : b_.getInt64(0);
            IrValue step = b_.getInt64(shared_loop ? kThreads : 1);
            stride_loop("inner", begin, count, step, [&](IrValue flat) {
                index_.enter_scope();
                bind_flat(phase.loops, flat);
                at_point();
                index_.leave_scope();
            });
        }
        std::vector<Partial> results;
        for (std::size_t r = 0; r < phase.reductions.size(); ++r)
            results.push_back(shared_loop ? across_block(phase.reductions[r], sums.get(r))
                                          : sums.get(r));
        if (launch_.block_per_point) barrier();  // what this phase stored is there for the next
        return results;
    }

    // Without a loop of its own a phase runs alike in all threads of a block; one of them stores.
    void store(const Phase& phase, BodyEmitter& body, bool shared_loop) {
        if (phase.stores.empty()) return;
        auto all = [&] {
            for (const Store& s : phase.stores) body.store(s);
        };
        if (launch_.block_per_point && !shared_loop)
            emit_if(b_, b_.CreateICmpEQ(thread_, b_.getInt64(0)), all);
        else
            all();
    }

    // Every thread's partial result combined, known to every thread: a butterfly within each warp,
    // then the warps' results through shared memory.
    Partial across_block(const Reduction& r, Partial p) {
        for (unsigned distance = kWarp / 2; distance > 0; distance /= 2)
            p = combine(context_, r, p, map(p, [&](IrValue v) { return shuffle(v, distance); }));
        std::vector<IrValue> slots;
        std::vector<llvm::Type*> types;
        auto slot = [&](IrValue v) {
            llvm::Type* type = v->getType()->isIntegerTy(1) ? b_.getInt8Ty() : v->getType();
            auto* array = llvm::ArrayType::get(type, kThreads / kWarp);
            slots.push_back(
                new llvm::GlobalVariable(module_, array, false, llvm::GlobalValue::InternalLinkage,
                                         llvm::UndefValue::get(array), "partial", nullptr,
                                         llvm::GlobalValue::NotThreadLocal, kShared));
            types.push_back(type);
            return v;
        };
        map(p, slot);
        IrValue lane = b_.CreateURem(thread_, b_.getInt64(kWarp)),
                warp = b_.CreateUDiv(thread_, b_.getInt64(kWarp));
        barrier();
        emit_if(b_, b_.CreateICmpEQ(lane, b_.getInt64(0)), [&] {
            std::size_t k = 0;
            map(p, [&](IrValue v) {
                if (v->getType()->isIntegerTy(1)) v = b_.CreateZExt(v, b_.getInt8Ty());
                b_.CreateStore(v, b_.CreateGEP(types[k], slots[k], warp));
                ++k;
                return v;
            });
        });
        barrier();
        Partial total;
        for (unsigned w = 0; w < kThreads / kWarp; ++w) {
            std::size_t k = 0;
            Partial one = map(p, [&](IrValue v) -> IrValue {
                IrValue x = b_.CreateLoad(types[k], b_.CreateConstGEP1_64(types[k], slots[k], w));
                ++k;
                return v->getType()->isIntegerTy(1) ? b_.CreateICmpNE(x, b_.getInt8(0)) : x;
            });
            total = w == 0 ? one : combine(context_, r, total, one);
        }
        return total;
    }

    template <class F>
    static Partial map(const Partial& p, const F& f) {
        Partial out;
        out.value.re = f(p.value.re);
        if (p.value.im) out.value.im = f(p.value.im);
        if (p.index) out.index = f(p.index);
        return out;
    }

    IrValue shuffle(IrValue v, unsigned distance) {
        llvm::Type* type = v->getType();
        const unsigned bits = type->getScalarSizeInBits();
        IrValue raw = type->isIntegerTy() ? v : b_.CreateBitCast(v, b_.getIntNTy(bits));
        auto move = [&](IrValue word) -> IrValue {
            return b_.CreateIntrinsic(
                llvm::Intrinsic::nvvm_shfl_sync_bfly_i32, {},
                {b_.getInt32(0xffffffffu), word, b_.getInt32(distance), b_.getInt32(31)});
        };
        if (bits <= 32) {
            raw = b_.CreateTrunc(move(b_.CreateZExt(raw, b_.getInt32Ty())), b_.getIntNTy(bits));
        } else {
            IrValue low = move(b_.CreateTrunc(raw, b_.getInt32Ty()));
            IrValue high = move(b_.CreateTrunc(b_.CreateLShr(raw, 32), b_.getInt32Ty()));
            llvm::Type* wide = b_.getInt64Ty();
            raw =
                b_.CreateOr(b_.CreateZExt(low, wide), b_.CreateShl(b_.CreateZExt(high, wide), 32));
        }
        return type->isIntegerTy() ? raw : b_.CreateBitCast(raw, type);
    }

    llvm::Module& module_;
    const Kernel& kernel_;
    const Nest& nest_;
    llvm::IRBuilder<> b_;
    EmitContext context_;
    IndexEmitter index_;
    GpuLaunch launch_;
    llvm::Function* function_ = nullptr;
    std::vector<BufferRef> buffers_;
    std::vector<std::vector<Partial>> results_;  // by phase
    IrValue thread_ = nullptr;
};

}  // namespace

std::vector<GpuLaunch> emit_nvptx(llvm::Module& module, const Kernel& kernel,
                                  const TargetInfo& target, std::string_view prefix) {
    if (kernel.contraction) throw NotSupported("contractions have no generated form on a GPU");
    std::vector<GpuLaunch> launches;
    for (std::size_t i = 0; i < kernel.nests.size(); ++i) {
        std::string symbol = std::string(prefix) + "_" + std::to_string(i);
        launches.push_back(GpuNestEmitter(module, kernel, target, kernel.nests[i], symbol).run());
    }
    for (const llvm::Function& f : module)
        if (f.isDeclaration() && !f.isIntrinsic())
            throw NotSupported("'" + f.getName().str() + "' is a library function that GPUs lack");
    return launches;
}

}  // namespace ingot::codegen
