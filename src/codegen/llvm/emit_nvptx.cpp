// Loop nests for NVIDIA GPUs; see emit_nvptx.h.
#include "codegen/llvm/emit_nvptx.h"

#include <llvm/IR/Intrinsics.h>
#include <llvm/IR/IntrinsicsNVPTX.h>
#include <llvm/IR/Verifier.h>

#include <map>
#include <optional>

#include "codegen/llvm/emit_body.h"
#include "codegen/llvm/emit_reduce.h"
#include "codegen/llvm/gpu_mapping.h"
#include "ir/error.h"

namespace ingot::codegen {

namespace {

constexpr unsigned kShared = 3, kGlobal = 1;  // address spaces
constexpr std::int64_t kSharedBytes = 96 << 10;
constexpr unsigned kFewWarps = 4;               // whose results every thread combines by itself
constexpr std::uint64_t kBufferAlignment = 16;  // of every buffer: programs see to it

class GpuNestEmitter {
  public:
    GpuNestEmitter(llvm::Module& module, const Kernel& kernel, const TargetInfo& target,
                   const Nest& nest, std::string symbol)
        : module_(module),
          kernel_(kernel),
          nest_(nest),
          b_(module.getContext()),
          context_{b_, target},
          index_(b_),
          map_(map_to_gpu(kernel, nest, index_)) {
        context_.quick_math = writes_narrow();
        launch_.symbol = std::move(symbol);
        launch_.points = extent_of(nest.loops);
        launch_.threads = map_.threads;
        launch_.points_per_block = map_.groups() * (map_.rows ? 1 : map_.lanes) * map_.copies;
    }

    GpuLaunch run() {
        make_function();
        bind_arguments();
        find_kept();
        place_scratch();
        thread_ = special(llvm::Intrinsic::nvvm_read_ptx_sreg_tid_x);
        IrValue block = special(llvm::Intrinsic::nvvm_read_ptx_sreg_ctaid_x);
        IrValue blocks = special(llvm::Intrinsic::nvvm_read_ptx_sreg_nctaid_x);
        IrValue points = index_.scalar(launch_.points);
        IrValue first = block, step = blocks;
        lane_ = thread_;
        if (map_.groups() > 1) {
            IrValue groups = b_.getInt64(map_.groups());
            IrValue own = map_.group == 1 ? thread_ : b_.CreateUDiv(thread_, number(map_.group));
            lane_ = map_.group == 1 ? b_.getInt64(0) : b_.CreateURem(thread_, number(map_.group));
            first = b_.CreateAdd(b_.CreateMul(block, groups), own);
            step = b_.CreateMul(blocks, groups);
        }
        const unsigned at_once = map_.rows ? 1 : map_.lanes;
        if (map_.copies > 1) {
            first = b_.CreateAdd(b_.CreateMul(block, number(map_.threads * map_.copies)), thread_);
            step = b_.CreateMul(blocks, number(map_.threads * map_.copies));
        }
        if (at_once > 1) {
            first = b_.CreateMul(first, number(at_once));
            step = b_.CreateMul(step, number(at_once));
        }
        stride_loop("point", first, points, step, [&](IrValue point) {
            if (map_.copies > 1) return emit_copies(point);
            index_.enter_scope();
            if (at_once > 1) index_.set_vector(nest_.loops.back().var, at_once, at_once);
            bind_flat(nest_.loops, point);
            results_.clear();
            kept_.clear();
            for (std::size_t p = 0; p < nest_.phases.size(); ++p) results_.push_back(emit_phase(p));
            if (at_once > 1) index_.clear_vector();
            index_.leave_scope();
            // The next point overwrites what this one keeps in shared memory.
            if (map_.rows) barrier();
        });
        b_.CreateRetVoid();
        return launch_;
    }

  private:
    llvm::ConstantInt* number(std::uint64_t n) { return b_.getInt64(n); }

    // Whether all that the nest writes are numbers with fewer bits than fp32, which hide the errors
    // of quick instructions.
    bool writes_narrow() const {
        for (const Phase& p : nest_.phases)
            for (const Store& s : p.stores) {
                const KernelBuffer& to = kernel_.buffers[static_cast<std::size_t>(s.buffer)];
                if (to.scope != BufferScope::Argument) continue;
                if (!is_float(to.dtype) || bytes(to.dtype) > 2) return false;
            }
        return true;
    }

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
                                   llvm::ConstantAsMetadata::get(b_.getInt32(map_.threads))};
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
            buffers_[i].alignment = kBufferAlignment;
            if (kernel_.buffers[i].scope == BufferScope::Argument)
                buffers_[i].pointer = generic(function_->getArg(next++));
        }
        for (const Expr& s : kernel_.sizes) index_.bind(s, function_->getArg(next++));
        context_.error = generic(function_->getArg(next));
    }

    // --- what stays in registers ---

    // An offset with the phase's loop variable named alike in all phases.
    Expr common(const Phase& phase, Expr offset) const {
        if (phase.loops.size() != 1 || !nest_variable_) return offset;
        const Expr var = phase.loops[0].var;
        if (var == *nest_variable_ || offset.is_constant()) return offset;
        return substitute(offset, [&](Expr s) -> std::optional<Expr> {
            if (s == var) return *nest_variable_;
            return std::nullopt;
        });
    }

    // Scratch rows whose every load asks for the element that the same thread has stored need no
    // memory at all; what the kernel only reads is loaded once for all phases.
    void find_kept() {
        in_registers_.assign(kernel_.buffers.size(), false);
        if (!map_.single) return;
        for (const Phase& p : nest_.phases)
            if (p.loops.size() == 1 && !nest_variable_) nest_variable_ = p.loops[0].var;
        std::vector<std::optional<Expr>> stored(kernel_.buffers.size());
        std::vector<bool> fits(kernel_.buffers.size(), true);
        const auto see = [&](const Phase& p, std::int32_t buffer, Expr offset) {
            const auto i = static_cast<std::size_t>(buffer);
            const Expr e = common(p, offset);
            if (p.loops.size() != 1 || (stored[i] && !(*stored[i] == e))) fits[i] = false;
            stored[i] = e;
        };
        for (const Phase& p : nest_.phases) {
            for (const Inst& i : p.insts)
                if (i.kind == InstKind::Load) {
                    see(p, i.buffer, i.offset);
                    if (i.mask != kNone) fits[static_cast<std::size_t>(i.buffer)] = false;
                }
            for (const Store& s : p.stores) {
                see(p, s.buffer, s.offset);
                if (s.mask != kNone) fits[static_cast<std::size_t>(s.buffer)] = false;
            }
        }
        for (std::size_t i = 0; i < kernel_.buffers.size(); ++i)
            in_registers_[i] = fits[i] && kernel_.buffers[i].scope == BufferScope::Scratch;
    }

    // The value that a load of an earlier phase, or a store to a row in registers, has left.
    const Lanes* kept(const Phase& phase, const Inst& load) const {
        const auto& buffer = kernel_.buffers[static_cast<std::size_t>(load.buffer)];
        const bool constant = !buffer.written && load.mask == kNone;
        if (!map_.single || phase.loops.size() != 1) return nullptr;
        if (!constant && !in_registers_[static_cast<std::size_t>(load.buffer)]) return nullptr;
        const auto found = kept_.find({load.buffer, common(phase, load.offset).node()});
        return found == kept_.end() ? nullptr : &found->second;
    }
    void keep(const Phase& phase, std::int32_t buffer, Expr offset, Lanes value) {
        if (!map_.single || phase.loops.size() != 1 || offset.is_constant()) return;
        // A bound symbol may stand for another value in another phase.
        for (const Inst& i : phase.insts)
            if (i.kind == InstKind::Bind && contains(offset, i.offset)) return;
        kept_[{buffer, common(phase, offset).node()}] = value;
    }

    // --- shared memory ---

    void place_scratch() {
        Expr offset = 0;
        for (std::size_t i = 0; i < kernel_.buffers.size(); ++i) {
            const KernelBuffer& k = kernel_.buffers[i];
            if (k.scope != BufferScope::Scratch || in_registers_[i]) continue;
            if (!map_.rows) {
                if (!k.elements.is_constant())
                    throw NotSupported("a scratch buffer of changing size on a GPU");
                llvm::Type* type = storage_type(b_.getContext(), k.dtype);
                std::int64_t count = k.elements.constant() * (is_complex(k.dtype) ? 2 : 1);
                buffers_[i].pointer =
                    b_.CreateAlloca(llvm::ArrayType::get(type, static_cast<std::uint64_t>(count)));
                buffers_[i].alignment = 0;
                continue;
            }
            const Expr bytes_of_row = ceil_div(k.elements * Expr(bytes(k.dtype)), 16) * Expr(16);
            IrValue at = index_.scalar(offset);
            if (map_.groups() > 1) {
                IrValue thread = special(llvm::Intrinsic::nvvm_read_ptx_sreg_tid_x);
                IrValue group = b_.CreateUDiv(thread, number(map_.group));
                at = b_.CreateAdd(at, b_.CreateMul(group, index_.scalar(bytes_of_row)));
            }
            buffers_[i].pointer = generic(b_.CreateGEP(b_.getInt8Ty(), dynamic_shared(), at));
            offset = offset + bytes_of_row * Expr(static_cast<int>(map_.groups()));
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
    // All threads of a point have come here, and see what the others have stored.
    void barrier() {
        if (map_.group == map_.threads)
            b_.CreateIntrinsic(llvm::Intrinsic::nvvm_barrier0, {}, {});
        else
            b_.CreateIntrinsic(llvm::Intrinsic::nvvm_bar_warp_sync, {}, {b_.getInt32(0xffffffffu)});
    }

    // --- loops ---

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

    // Loop variables from a flat index; the last loop runs fastest. Small numbers are divided as
    // such: a GPU has no division of 64 bits.
    void bind_flat(const std::vector<Loop>& loops, IrValue flat) {
        const Expr all = extent_of(loops);
        const bool small = all.range().hi < (std::int64_t{1} << 31);
        llvm::Type* type = small ? b_.getInt32Ty() : b_.getInt64Ty();
        if (small && loops.size() > 1) flat = b_.CreateTrunc(flat, type);
        const auto bind = [&](const Loop& l, IrValue v) {
            index_.bind(l.var, b_.CreateZExt(v, b_.getInt64Ty()));
        };
        for (std::size_t i = loops.size(); i-- > 0;) {
            if (i == 0) {
                bind(loops[i], flat);
                break;
            }
            IrValue extent = b_.CreateZExtOrTrunc(index_.scalar(loops[i].extent), type);
            bind(loops[i], b_.CreateURem(flat, extent));
            flat = b_.CreateUDiv(flat, extent);
        }
    }

    // --- phases ---

    std::vector<Partial> emit_phase(std::size_t number_of_phase) {
        const Phase& phase = nest_.phases[number_of_phase];
        const bool together = map_.rows && !phase.loops.empty();
        const unsigned lanes = together ? map_.lanes : 1;
        std::vector<Partial> results =
            together && map_.single ? emit_piece(phase) : emit_loop(phase, together, lanes);
        if (together) across_group(phase, results);
        if (map_.rows && read_later(number_of_phase)) barrier();
        return results;
    }

    BodyEmitter body_of(const Phase& phase) {
        BodyEmitter body(context_, index_, buffers_, {nest_.round_intermediates});
        body.begin(phase.insts);
        body.reduced = [this](const Inst& inst) {
            const Partial& p = results_[static_cast<std::size_t>(inst.phase)]
                                       [static_cast<std::size_t>(inst.reduction)];
            return inst.component == 1 ? Lanes{p.index} : p.value;
        };
        return body;
    }
    static Partial value_of(const Reduction& r, const BodyEmitter& body) {
        Partial next{body.value(r.value)};
        if (r.index != kNone) next.index = body.value(r.index).re;
        return next;
    }

    // Several points of one phase without a loop: everything is computed, then stored.
    void emit_copies(IrValue point) {
        const Phase& phase = nest_.phases[0];
        std::vector<BodyEmitter> bodies;
        for (const bool storing : {false, true})
            for (unsigned k = 0; k < map_.copies; ++k) {
                index_.enter_scope();
                bind_flat(nest_.loops, b_.CreateAdd(point, number(k * map_.threads)));
                if (storing)
                    store(phase, bodies[k], false);
                else
                    bodies.emplace_back(body_of(phase)).emit_all();
                index_.leave_scope();
            }
    }

    // Each thread has one piece of the row, or none: then it works on the last one along with that
    // one's owner, and what it finds does not count.
    std::vector<Partial> emit_piece(const Phase& phase) {
        const bool idle = map_.pieces % map_.group != 0;
        IrValue active = nullptr, piece = lane_;
        if (idle) {
            IrValue last = number(static_cast<std::uint64_t>(map_.pieces - 1));
            active = b_.CreateICmpULE(lane_, last);
            piece = b_.CreateSelect(active, lane_, last);
        }
        index_.enter_scope();
        const Expr var = phase.loops[0].var;
        if (map_.lanes > 1) index_.set_vector(var, map_.lanes, map_.lanes);
        index_.bind(var, map_.lanes > 1 ? b_.CreateMul(piece, number(map_.lanes)) : piece);
        BodyEmitter body = body_of(phase);
        for (InstId i = 0; i < phase.insts.size(); ++i) {
            const Inst& inst = phase.insts[i];
            if (inst.kind != InstKind::Load) {
                body.emit(i);
                continue;
            }
            if (const Lanes* before = kept(phase, inst))
                body.preset(i, *before);
            else
                body.emit(i);
            // Not where a mask may have left nothing.
            if (inst.mask == kNone) keep(phase, inst.buffer, inst.offset, body.value(i));
        }
        std::vector<Partial> results;
        for (const Reduction& r : phase.reductions) {
            Partial next = value_of(r, body), none = identity(context_, r, map_.lanes);
            next.value = splat(b_, next.value, map_.lanes);
            if (next.index) next.index = splat(b_, next.index, map_.lanes);
            if (active) {
                std::vector<IrValue> parts;
                map(none, [&](IrValue v) { return parts.emplace_back(v); });
                std::size_t k = 0;
                next = map(next, [&](IrValue v) { return b_.CreateSelect(active, v, parts[k++]); });
            }
            results.push_back(across_lanes(context_, r, next));
        }
        std::vector<const Store*> stores;
        for (const Store& s : phase.stores) {
            if (in_registers_[static_cast<std::size_t>(s.buffer)])
                keep(phase, s.buffer, s.offset, body.value(s.value));
            else
                stores.push_back(&s);
        }
        const auto write = [&] {
            for (const Store* s : stores) body.store(*s);
        };
        if (!stores.empty()) {
            for (const Store* s : stores) index_.scalar(s->offset);  // for all threads: see store
            if (active)
                emit_if(b_, active, write);
            else
                write();
        }
        if (map_.lanes > 1) index_.clear_vector();
        index_.leave_scope();
        return results;
    }

    std::vector<Partial> emit_loop(const Phase& phase, bool together, unsigned lanes) {
        // Lanes are either elements of the loop or neighbouring points, whose results stay apart.
        const unsigned wide = map_.rows ? lanes : map_.lanes;
        Accumulators sums(context_, phase.reductions, wide, false);
        BodyEmitter body = body_of(phase);
        const auto at_point = [&] {
            body.emit_all();
            for (std::size_t r = 0; r < phase.reductions.size(); ++r) {
                Partial next = value_of(phase.reductions[r], body);
                sums.add(r, map(next, [&](IrValue v) { return splat(b_, v, wide); }), nullptr);
            }
            store(phase, body, together);
        };
        if (phase.loops.empty()) {
            at_point();
        } else {
            const Expr extent = extent_of(phase.loops);
            IrValue begin = together ? lane_ : b_.getInt64(0);
            IrValue step = number(together ? map_.group : 1);
            // A thread alone asks for several elements before it needs the first.
            unsigned copies = 1;
            if (!together && extent.is_constant())
                for (unsigned n : {8u, 4u, 2u})
                    if (copies == 1 && extent.constant() % n == 0) copies = n;
            if (copies > 1) step = number(copies);
            if (lanes > 1) {
                begin = b_.CreateMul(begin, number(lanes));
                step = number(static_cast<std::uint64_t>(map_.group) * lanes);
            }
            stride_loop("inner", begin, index_.scalar(extent), step, [&](IrValue flat) {
                for (unsigned k = 0; k < copies; ++k) {
                    index_.enter_scope();
                    if (lanes > 1) index_.set_vector(phase.loops.back().var, lanes, lanes);
                    bind_flat(phase.loops, k == 0 ? flat : b_.CreateAdd(flat, number(k)));
                    at_point();
                    if (lanes > 1) index_.clear_vector();
                    index_.leave_scope();
                }
            });
        }
        std::vector<Partial> results;
        for (std::size_t r = 0; r < phase.reductions.size(); ++r) {
            Partial p = sums.get(r);
            results.push_back(lanes > 1 ? across_lanes(context_, phase.reductions[r], p) : p);
        }
        return results;
    }

    // Without a loop of its own a phase runs alike in all threads of a point; one of them stores.
    void store(const Phase& phase, BodyEmitter& body, bool together) {
        if (phase.stores.empty()) return;
        auto all = [&] {
            for (const Store& s : phase.stores) body.store(s);
        };
        if (map_.rows && !together) {
            // Later phases share what is computed here, so that all threads compute it.
            for (const Store& s : phase.stores) index_.scalar(s.offset);
            emit_if(b_, b_.CreateICmpEQ(lane_, b_.getInt64(0)), all);
        } else {
            all();
        }
    }

    // Whether a later phase may read from memory what phases up to this one have stored.
    bool read_later(std::size_t phase) const {
        std::vector<bool> stored(kernel_.buffers.size(), false);
        for (const Store& s : nest_.phases[phase].stores)
            stored[static_cast<std::size_t>(s.buffer)] =
                !in_registers_[static_cast<std::size_t>(s.buffer)];
        for (std::size_t p = phase + 1; p < nest_.phases.size(); ++p)
            for (const Inst& i : nest_.phases[p].insts)
                if (i.kind == InstKind::Load && stored[static_cast<std::size_t>(i.buffer)])
                    return true;
        return false;
    }

    // --- reductions over threads ---

    // Every thread's partial results combined, known to every thread: a butterfly within each warp,
    // then the warps' results through shared memory, with one barrier for all of a phase.
    void across_group(const Phase& phase, std::vector<Partial>& partials) {
        if (partials.empty()) return;
        for (std::size_t r = 0; r < partials.size(); ++r)
            partials[r] = butterfly(phase.reductions[r], partials[r]);
        const unsigned warps = map_.group / kWarp;
        if (warps == 1) return;
        std::vector<std::pair<llvm::GlobalVariable*, llvm::Type*>> slots;
        IrValue lane = b_.CreateURem(thread_, number(kWarp)),
                warp = b_.CreateUDiv(thread_, number(kWarp));
        for (Partial& p : partials) map(p, [&](IrValue v) { return slots.push_back(slot(v)), v; });
        emit_if(b_, b_.CreateICmpEQ(lane, b_.getInt64(0)), [&] {
            std::size_t k = 0;
            for (Partial& p : partials)
                map(p, [&](IrValue v) {
                    if (v->getType()->isIntegerTy(1)) v = b_.CreateZExt(v, b_.getInt8Ty());
                    b_.CreateStore(v, b_.CreateGEP(slots[k].second, slots[k].first, warp));
                    ++k;
                    return v;
                });
        });
        barrier();
        std::size_t k = 0;
        for (std::size_t r = 0; r < partials.size(); ++r) {
            const std::size_t first = k;
            const Reduction& reduction = phase.reductions[r];
            const auto load = [&](IrValue which) {
                k = first;
                return map(partials[r], [&](IrValue v) -> IrValue {
                    auto [variable, type] = slots[k++];
                    IrValue x = b_.CreateLoad(type, b_.CreateGEP(type, variable, which));
                    return v->getType()->isIntegerTy(1) ? b_.CreateICmpNE(x, b_.getInt8(0)) : x;
                });
            };
            if (warps > kFewWarps) {
                // Lanes beyond the warps repeat none.
                IrValue real = b_.CreateICmpULT(lane, number(warps));
                Partial one = load(b_.CreateSelect(real, lane, b_.getInt64(0)));
                std::vector<IrValue> parts;
                map(identity(context_, reduction, 1),
                    [&](IrValue v) { return parts.emplace_back(v); });
                std::size_t n = 0;
                one = map(one, [&](IrValue v) { return b_.CreateSelect(real, v, parts[n++]); });
                partials[r] = butterfly(reduction, one);
                continue;
            }
            Partial total = load(b_.getInt64(0));
            for (unsigned w = 1; w < warps; ++w)
                total = combine(context_, reduction, total, load(number(w)));
            partials[r] = total;
        }
    }

    Partial butterfly(const Reduction& r, Partial p) {
        for (unsigned distance = kWarp / 2; distance > 0; distance /= 2)
            p = combine(context_, r, p, map(p, [&](IrValue v) { return shuffle(v, distance); }));
        return p;
    }

    std::pair<llvm::GlobalVariable*, llvm::Type*> slot(IrValue v) {
        llvm::Type* type = v->getType()->isIntegerTy(1) ? b_.getInt8Ty() : v->getType();
        auto* array = llvm::ArrayType::get(type, map_.group / kWarp);
        auto* variable = new llvm::GlobalVariable(
            module_, array, false, llvm::GlobalValue::InternalLinkage, llvm::UndefValue::get(array),
            "partial", nullptr, llvm::GlobalValue::NotThreadLocal, kShared);
        return {variable, type};
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
    GpuMapping map_;
    GpuLaunch launch_;
    llvm::Function* function_ = nullptr;
    std::vector<BufferRef> buffers_;
    std::vector<std::vector<Partial>> results_;  // by phase
    IrValue thread_ = nullptr;                   // of the block
    IrValue lane_ = nullptr;                     // among those that share its point
    std::optional<Expr> nest_variable_;          // the phases' loop variables under one name
    std::vector<bool> in_registers_;             // by buffer: scratch rows without memory
    std::map<std::pair<std::int32_t, const ExprNode*>, Lanes> kept_;
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
    std::string message;
    llvm::raw_string_ostream stream(message);
    if (llvm::verifyModule(module, &stream)) throw InternalError("invalid LLVM IR: " + message);
    for (const llvm::Function& f : module)
        if (f.isDeclaration() && !f.isIntrinsic())
            throw NotSupported("'" + f.getName().str() + "' is a library function that GPUs lack");
    return launches;
}

}  // namespace ingot::codegen
