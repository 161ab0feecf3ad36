// Loop nests for NVIDIA GPUs; see emit_nvptx.h.
#include "codegen/llvm/emit_nvptx.h"

#include <llvm/IR/InlineAsm.h>
#include <llvm/IR/Intrinsics.h>
#include <llvm/IR/IntrinsicsNVPTX.h>

#include <map>
#include <optional>
#include <set>
#include <tuple>

#include "codegen/llvm/emit_body.h"
#include "codegen/llvm/emit_reduce.h"
#include "codegen/llvm/emit_row_copy.h"
#include "codegen/llvm/gpu_mapping.h"
#include "codegen/llvm/gpu_module.h"
#include "codegen/llvm/gpu_reduce.h"
#include "codegen/llvm/math.h"
#include "codegen/llvm/quick_forms.h"
#include "codegen/llvm/summed_exponentials.h"
#include "ir/error.h"

namespace ingot::codegen {

namespace {

constexpr unsigned kShared = 3, kGlobal = 1;  // address spaces
constexpr std::int64_t kSharedBytes = 96 << 10;
constexpr unsigned kChunks = 4;                 // of rows copied at odd places, of a thread at once
constexpr int kOverlapping = 90;                // capability from which on kernels may overlap
constexpr std::size_t kMostRepeated = 64;       // instructions of a phase that a thread repeats
constexpr std::int64_t kMostUnrolled = 256;     // instructions of a window
constexpr unsigned kStoredAtOnce = 4;           // pieces of a long row
constexpr unsigned kMostAhead = 8;              // accesses that later phases ask for early
constexpr std::int64_t kAccessBytes = 16;       // of one, at most
constexpr std::uint64_t kBufferAlignment = 16;  // of every buffer: programs see to it

class GpuNestEmitter {
  public:
    GpuNestEmitter(llvm::Module& module, const Kernel& kernel, const TargetInfo& target,
                   const Nest& nest, std::string symbol, const NestForm& form)
        : module_(module),
          kernel_(kernel),
          nest_(writes_narrow(kernel, nest) ? quick_forms(nest) : nest),
          outer_(nest.loops),
          b_(module.getContext()),
          context_{b_, target},
          index_(b_),
          map_(map_to_gpu(kernel, nest_, index_, form)) {
        context_.quick_math = writes_narrow(kernel, nest);
        // Quick ones are quicker still.
        if (!context_.quick_math) beside_one_ = exponentials_beside_one(nest_);
        // As eager's own kernels are compiled: a product and a sum are rounded once.
        llvm::FastMathFlags fused;
        fused.setAllowContract(context_.quick_math || has_exact_products(nest_));
        b_.setFastMathFlags(fused);
        launch_.symbol = std::move(symbol);
        if (!outer_.empty() && outer_.back().kind == LoopKind::Run) {
            run_ = outer_.back();
            outer_.pop_back();
        }
        launch_.points = extent_of(outer_);
        launch_.threads = map_.threads;
        launch_.points_per_block = map_.groups() * (map_.rows ? 1 : map_.lanes) * map_.copies;
        if (map_.tile) {
            launch_.points = tiles_of(nest_, *map_.tile);
            launch_.threads = GpuTile::kThreads;
            launch_.points_per_block = 1;
            return;
        }
        if (map_.rows || map_.lanes > 1) return;
        copy_ = find_row_copy(kernel, nest_);
        if (!copy_) return;
        outer_.pop_back();
        launch_.points = extent_of(outer_) * Expr(copy_->chunks());
        launch_.points_per_block = map_.threads * kChunks;
    }

    GpuLaunch run() {
        make_function();
        wait_for_launches_before();
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
            if (map_.parts > 1) {
                own = b_.CreateURem(thread_, groups);
                part_ = b_.CreateUDiv(thread_, groups);
            }
            lane_ = map_.group == 1 ? b_.getInt64(0) : b_.CreateURem(thread_, number(map_.group));
            first = b_.CreateAdd(b_.CreateMul(block, groups), own);
            step = b_.CreateMul(blocks, groups);
        }
        if (map_.tile) {
            TileEmitter tiles(context_, index_, module_, buffers_, nest_, *map_.tile, thread_);
            stride_loop("tile", block, points, blocks, [&](IrValue tile) { tiles.run(tile); });
            b_.CreateRetVoid();
            return launch_;
        }
        if (copy_) {
            copy_rows(block, blocks, points);
            b_.CreateRetVoid();
            return launch_;
        }
        const unsigned at_once = map_.rows ? 1 : map_.lanes;
        // Rows that share a warp, and columns whose parts a block shares, come and go together.
        unsigned neighbours = 1;
        IrValue own_point = nullptr;
        if (map_.rows && map_.group < kWarp) {
            neighbours = kWarp / map_.group;
            own_point = b_.CreateUDiv(thread_, number(map_.group));
            own_point = b_.CreateURem(own_point, number(neighbours));
        } else if (part_ && map_.single) {
            neighbours = map_.groups();
            own_point = b_.CreateURem(thread_, number(neighbours));
        }
        if (own_point) first = b_.CreateSub(first, own_point);
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
            if (own_point) {
                IrValue own = b_.CreateMul(own_point, number(at_once));
                point = enter_neighbour(b_.CreateAdd(point, own), points, neighbours, at_once);
            }
            if (!map_.ragged) return emit_at(point, at_once);
            IrValue end = b_.CreateAdd(point, number(at_once));
            emit_if_else(
                b_, b_.CreateICmpSLE(end, points), [&] { emit_at(point, at_once); },
                [&] {
                    map_.lanes = 1;
                    stride_loop("single", point, points, number(1),
                                [&](IrValue one) { emit_at(one, 1); });
                    map_.lanes = at_once;
                });
        });
        b_.CreateRetVoid();
        return launch_;
    }

  private:
    // Beyond the last point threads work on that one again, and store nothing.
    IrValue enter_neighbour(IrValue point, IrValue points, unsigned neighbours, unsigned at_once) {
        const Expr all = launch_.points;
        if (all.is_constant() && all.constant() % (neighbours * at_once) == 0) return point;
        row_active_ = b_.CreateICmpSLT(point, points);
        return b_.CreateSelect(row_active_, point, b_.CreateSub(points, number(at_once)));
    }

    void emit_at(IrValue point, unsigned lanes) {
        index_.enter_scope();
        if (lanes > 1) index_.set_vector(outer_.back().var, lanes, lanes);
        bind_flat(outer_, point);
        if (run_)
            emit_run();
        else
            emit_point();
        if (lanes > 1) index_.clear_vector();
        index_.leave_scope();
    }

    void emit_point() {
        results_.clear();
        if (!run_) kept_.clear();
        of_row_.clear();
        for (std::size_t p = 0; p < nest_.phases.size(); ++p) results_.push_back(emit_phase(p));
        // The next point overwrites what this one keeps in shared memory.
        if (map_.rows && !takes_turns()) barrier();
    }

    // Whether a run's points keep nothing in shared memory but what threads exchange, and no thread
    // writes that before all have read what lay there: an exchange of two in each point has all
    // threads wait between the other one's reading and its next writing, one alone takes places by
    // turns.
    bool takes_turns() const { return run_ && launch_.shared_bytes.is(0); }
    // The place's number where it does.
    IrValue turn() {
        if (!takes_turns() || exchanges() != 1) return nullptr;
        return b_.CreateAnd(index_.scalar(run_->var), b_.getInt64(1));
    }
    std::ptrdiff_t exchanges() const {
        return std::ranges::count_if(
            nest_.phases, [](const Phase& p) { return !p.loops.empty() && !p.reductions.empty(); });
    }

    // Neighbouring threads take neighbouring chunks of rows; a thread has several, a block's width
    // apart, and beyond the last one that one again.
    void copy_rows(IrValue block, IrValue blocks, IrValue points) {
        IrValue width = number(map_.threads * kChunks);
        IrValue first = b_.CreateAdd(b_.CreateMul(block, width), thread_);
        IrValue last = b_.CreateSub(points, b_.getInt64(1));
        const bool small = launch_.points.range().hi < (std::int64_t{1} << 31);
        llvm::Type* type = small ? b_.getInt32Ty() : b_.getInt64Ty();
        IrValue chunks = llvm::ConstantInt::get(type, static_cast<std::uint64_t>(copy_->chunks()));
        const auto pointer = [&](std::int32_t buffer) {
            return buffers_[static_cast<std::size_t>(buffer)].pointer;
        };
        stride_loop("chunk", first, points, b_.CreateMul(blocks, width), [&](IrValue begin) {
            RowCopier copier(b_, *copy_, pointer(copy_->load->buffer),
                             pointer(copy_->store->buffer));
            for (unsigned k = 0; k < kChunks; ++k) {
                IrValue at = b_.CreateAdd(begin, number(k * map_.threads));
                at = b_.CreateSelect(b_.CreateICmpSLT(at, last), at, last);
                at = b_.CreateTrunc(at, type);
                index_.enter_scope();
                bind_flat(outer_, b_.CreateZExt(b_.CreateUDiv(at, chunks), b_.getInt64Ty()));
                index_.bind(copy_->along, b_.getInt64(0));
                copier.load(index_.scalar(copy_->load->offset), index_.scalar(copy_->store->offset),
                            b_.CreateZExt(b_.CreateURem(at, chunks), b_.getInt64Ty()));
                index_.leave_scope();
            }
            copier.store();
        });
    }

    // The points of a run, each after the one before; what adds up over them stays in registers.
    void emit_run() {
        sums_.clear();
        if (map_.single)
            for (const Phase& p : nest_.phases)
                for (const Store& s : p.stores)
                    for (unsigned k = 0; s.mode == StoreMode::Sum && k < map_.each; ++k) {
                        llvm::Type* type = with_lanes(b_.getFloatTy(), map_.lanes);
                        IrValue sum = entry_alloca(b_, type, "sum");
                        b_.CreateStore(llvm::Constant::getNullValue(type), sum);
                        sums_[{&s, k}] = {sum, type};
                    }
        std::vector<Ahead> next = map_.single ? rows_ahead() : std::vector<Ahead>{};
        ask_for_row(next, b_.getInt64(0));
        IrValue length = index_.scalar(run_->extent);
        IrValue one = b_.getInt64(1), last = b_.CreateSub(length, one);
        stride_loop("run", b_.getInt64(0), length, one, [&](IrValue at) {
            kept_.clear();
            for (const Ahead& a : next) {
                piece_ = a.piece;
                IrValue raw = b_.CreateLoad(a.type, a.slot);
                keep(*a.phase, a.load->buffer, a.load->offset, {raw}, true);
            }
            IrValue after = b_.CreateAdd(at, one);
            ask_for_row(next, b_.CreateSelect(b_.CreateICmpSLT(after, last), after, last));
            index_.enter_scope();
            index_.bind(run_->var, at);
            emit_point();
            index_.leave_scope();
        });
        if (takes_turns()) barrier();
        if (map_.single)
            for (const Phase& p : nest_.phases)
                for (piece_ = 0; piece_ < map_.each; ++piece_) store_sums(p);
    }

    // A row's element that is on its way while the row before is worked on, as it lies in memory.
    struct Ahead {
        const Phase* phase;
        const Inst* load;
        unsigned piece;
        IrValue slot = nullptr;
        llvm::Type* type = nullptr;
    };

    // What phases read of each row and nobody writes, elements and numbers that a row has once.
    std::vector<Ahead> rows_ahead() {
        std::vector<Ahead> found;
        std::set<std::pair<std::int32_t, const ExprNode*>> seen;
        for (const Phase& p : nest_.phases) {
            if (p.loops.size() != 1 || has_bound(p)) continue;
            for (const Inst& i : p.insts) {
                if (i.kind != InstKind::Load || i.mask != kNone || !contains(i.offset, run_->var))
                    continue;
                const KernelBuffer& buffer = kernel_.buffers[static_cast<std::size_t>(i.buffer)];
                if (buffer.written || !is_plain(buffer.dtype)) continue;
                if (!seen.insert({i.buffer, common(p, i.offset).node()}).second) continue;
                const unsigned lanes = contains(i.offset, p.loops[0].var) ? map_.lanes : 1;
                for (unsigned k = 0; k < map_.each && found.size() < kMostAhead; ++k) {
                    llvm::Type* type =
                        with_lanes(storage_type(b_.getContext(), buffer.dtype), lanes);
                    found.push_back({&p, &i, k, entry_alloca(b_, type, "ahead"), type});
                }
            }
        }
        return found;
    }

    void ask_for_row(const std::vector<Ahead>& rows, IrValue at) {
        for (const Ahead& a : rows) {
            index_.enter_scope();
            index_.bind(run_->var, at);
            piece_ = a.piece;
            enter_piece(*a.phase);
            b_.CreateStore(load_raw(*a.phase, *a.load), a.slot);
            leave_piece();
            index_.leave_scope();
        }
    }
    // As it lies in memory: where it is only widened when it is used, it takes fewer registers.
    IrValue load_raw(const Phase& phase, const Inst& load) {
        BufferRef& buffer = buffers_[static_cast<std::size_t>(load.buffer)];
        const DType type = buffer.dtype;
        if (bytes(type) == 2) buffer.dtype = DType::U16;
        BodyEmitter body = body_of(phase);
        IrValue raw = body.load(load).re;
        buffer.dtype = type;
        return raw;
    }
    // Whether a row's element takes fewer registers as it lies in memory.
    bool stays_narrow(const Inst& load) const {
        const KernelBuffer& buffer = kernel_.buffers[static_cast<std::size_t>(load.buffer)];
        return !buffer.written && load.mask == kNone && is_plain(buffer.dtype) &&
               bytes(buffer.dtype) == 2;
    }
    // The same bits, but nothing that another phase has computed from them: what would be kept
    // instead is wider.
    IrValue anew(IrValue raw, const Phase& phase) {
        const unsigned bits = raw->getType()->getPrimitiveSizeInBits().getFixedValue();
        if (bits % 32 != 0) return raw;
        auto* words = llvm::FixedVectorType::get(b_.getInt32Ty(), bits / 32);
        IrValue v = b_.CreateBitCast(raw, words);
        for (unsigned k = 0; k < bits / 32; ++k)
            v = b_.CreateInsertElement(v, of_phase(b_.CreateExtractElement(v, k), phase), k);
        return b_.CreateBitCast(v, raw->getType());
    }
    // The same word for a compiler that cannot tell it from another phase's. That addresses have
    // fewer than 58 bits only this program knows.
    IrValue of_phase(IrValue word, const Phase& phase) {
        const auto shift = 58 + (&phase - nest_.phases.data()) % 6;
        IrValue zero = b_.CreatePtrToInt(context_.error, b_.getInt64Ty());
        zero = b_.CreateTrunc(b_.CreateLShr(zero, shift), b_.getInt32Ty());
        auto* type =
            llvm::FunctionType::get(b_.getInt32Ty(), {b_.getInt32Ty(), b_.getInt32Ty()}, false);
        auto* with = llvm::InlineAsm::get(type, "or.b32 $0, $1, $2;", "=r,r,r", false);
        return b_.CreateCall(with, {word, zero});
    }
    static bool is_plain(DType t) { return t == DType::F32 || t == DType::BF16 || t == DType::F16; }

    static bool has_bound(const Phase& p) {
        return std::ranges::any_of(p.insts, [](const Inst& i) { return i.kind == InstKind::Bind; });
    }

    void store_sums(const Phase& phase) {
        if (std::ranges::none_of(phase.stores,
                                 [](const Store& s) { return s.mode == StoreMode::Sum; }))
            return;
        IrValue active = enter_piece(phase);
        const auto write = [&] {
            for (const Store& s : phase.stores) {
                if (s.mode != StoreMode::Sum) continue;
                const auto [sum, type] = sums_.at({&s, piece_});
                BodyEmitter body = body_of(phase);
                body.preset(s.value, {b_.CreateLoad(type, sum)});
                Store whole = s;
                whole.mode = StoreMode::Write;
                body.store(whole);
            }
        };
        if (active)
            emit_if(b_, active, write);
        else
            write();
        leave_piece();
    }

    llvm::ConstantInt* number(std::uint64_t n) { return b_.getInt64(n); }

    // Whether all that the nest writes are numbers with fewer bits than fp32, which hide the errors
    // of quick instructions.
    static bool writes_narrow(const Kernel& kernel, const Nest& nest) {
        for (const Phase& p : nest.phases)
            for (const Store& s : p.stores) {
                const KernelBuffer& to = kernel.buffers[static_cast<std::size_t>(s.buffer)];
                // Sums of what is narrow count as that.
                if (to.scope != BufferScope::Argument || s.mode == StoreMode::Sum) continue;
                if (!is_float(to.dtype) || bytes(to.dtype) > 2) return false;
            }
        return true;
    }

    // Whether all products are of numbers of 16 bits as they lie in memory, which fp32 holds whole:
    // to round a product and the sum with it at once is the same then.
    static bool has_exact_products(const Nest& nest) {
        for (const Phase& p : nest.phases) {
            std::vector<bool> stored(p.insts.size(), false);
            const auto narrow = [&](InstId id) {
                const Inst& i = p.insts[id];
                return i.kind == InstKind::Prim && i.prim == Prim::Convert &&
                       i.dtype == DType::F32 && stored[i.operands[0]];
            };
            for (InstId id = 0; id < p.insts.size(); ++id) {
                const Inst& i = p.insts[id];
                const bool reduced = i.dtype == DType::F16 || i.dtype == DType::BF16;
                if (i.kind == InstKind::Load || i.kind == InstKind::Constant) stored[id] = reduced;
                if (i.kind != InstKind::Prim) continue;
                switch (i.prim) {
                    case Prim::Select:
                        stored[id] = reduced && stored[i.operands[1]] && stored[i.operands[2]];
                        break;
                    case Prim::Convert:
                    case Prim::Add:
                    case Prim::LogicalAnd:
                    case Prim::Lt:
                    case Prim::Ge:
                        break;
                    case Prim::Mul:
                        if (narrow(i.operands[0]) && narrow(i.operands[1])) break;
                        return false;
                    default:
                        return false;
                }
            }
        }
        return true;
    }

    void make_function() {
        llvm::LLVMContext& c = module_.getContext();
        std::vector<llvm::Type*> types;
        if (kernel_.instances > 1)
            types.push_back(b_.getPtrTy());
        else
            types.insert(types.end(), arguments(), llvm::PointerType::get(c, kGlobal));
        types.insert(types.end(), kernel_.sizes.size(), b_.getInt64Ty());
        types.push_back(llvm::PointerType::get(c, kGlobal));
        auto* type = llvm::FunctionType::get(b_.getVoidTy(), types, false);
        function_ =
            llvm::Function::Create(type, llvm::Function::ExternalLinkage, launch_.symbol, module_);
        function_->setCallingConv(llvm::CallingConv::PTX_Kernel);
        if (kernel_.instances > 1) {
            function_->addParamAttr(0, llvm::Attribute::getWithByValType(c, pointers()));
            function_->addParamAttr(0, llvm::Attribute::getWithAlignment(c, llvm::Align(8)));
        }
        // Tells ptxas how many registers a thread may take: rows that wait for memory and for each
        // other need company.
        annotate_kernel(*function_, "maxntidx", map_.threads);
        if (map_.resident > 0) annotate_kernel(*function_, "minctasm", map_.resident);
        b_.SetInsertPoint(llvm::BasicBlock::Create(c, "entry", function_));
    }

    // Blocks may be started while the last ones of the kernel before are at work, and let those of
    // the kernel behind be started; until all of that kernel has ended they touch no memory. Since
    // every block waits here, this kernel's end is behind the end of all kernels before.
    void wait_for_launches_before() {
        if (context_.target.gpu_capability() < kOverlapping) return;
        auto* type = llvm::FunctionType::get(b_.getVoidTy(), false);
        b_.CreateCall(llvm::InlineAsm::get(
            type, "griddepcontrol.wait; griddepcontrol.launch_dependents;", "~{memory}", true));
        launch_.overlaps = true;
    }

    std::size_t arguments() const {
        return static_cast<std::size_t>(std::ranges::count_if(
            kernel_.buffers,
            [](const KernelBuffer& k) { return k.scope == BufferScope::Argument; }));
    }
    // The buffers of all instances, which are one parameter.
    llvm::ArrayType* pointers() {
        return llvm::ArrayType::get(b_.getInt64Ty(),
                                    arguments() * static_cast<std::size_t>(kernel_.instances));
    }
    // Buffer `argument` of the block's instance.
    IrValue pointer_of_instance(std::size_t argument) {
        IrValue at =
            b_.CreateMul(special(llvm::Intrinsic::nvvm_read_ptx_sreg_ctaid_y), number(arguments()));
        at = b_.CreateAdd(at, number(argument));
        IrValue place = b_.CreateInBoundsGEP(pointers(), function_->getArg(0), {number(0), at});
        IrValue address = b_.CreateAlignedLoad(b_.getInt64Ty(), place, llvm::Align(8));
        return b_.CreateIntToPtr(address, llvm::PointerType::get(b_.getContext(), kGlobal));
    }

    IrValue generic(IrValue pointer) { return b_.CreateAddrSpaceCast(pointer, b_.getPtrTy()); }

    void bind_arguments() {
        buffers_.resize(kernel_.buffers.size());
        unsigned next = 0;
        for (std::size_t i = 0; i < kernel_.buffers.size(); ++i) {
            buffers_[i].dtype = kernel_.buffers[i].dtype;
            buffers_[i].alignment = kBufferAlignment;
            if (kernel_.buffers[i].scope != BufferScope::Argument) continue;
            buffers_[i].readable = kernel_.buffers[i].elements.range().lo;
            buffers_[i].pointer = generic(kernel_.instances > 1 ? pointer_of_instance(next)
                                                                : function_->getArg(next));
            ++next;
        }
        if (kernel_.instances > 1) next = 1;
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
    std::optional<Lanes> kept(const Phase& phase, const Inst& load) {
        const auto& buffer = kernel_.buffers[static_cast<std::size_t>(load.buffer)];
        const bool constant = !buffer.written && load.mask == kNone;
        if (!map_.single || phase.loops.size() != 1) return std::nullopt;
        if (!constant && !in_registers_[static_cast<std::size_t>(load.buffer)]) return std::nullopt;
        const auto found = kept_.find({load.buffer, common(phase, load.offset).node(), piece_});
        if (found == kept_.end()) return std::nullopt;
        if (found->second.raw) {
            IrValue raw = found->second.value.re;
            if (map_.as_stored) raw = anew(raw, phase);
            return Lanes{from_storage(context_, buffer.dtype, raw)};
        }
        return found->second.value;
    }
    void keep(const Phase& phase, std::int32_t buffer, Expr offset, Lanes value, bool raw = false) {
        if (!map_.single || phase.loops.size() != 1 || offset.is_constant()) return;
        // A bound symbol may stand for another value in another phase.
        for (const Inst& i : phase.insts)
            if (i.kind == InstKind::Bind && contains(offset, i.offset)) return;
        kept_[{buffer, common(phase, offset).node(), piece_}] = {value, raw};
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
    void barrier() {
        if (part_)
            b_.CreateIntrinsic(llvm::Intrinsic::nvvm_barrier0, {}, {});
        else
            emit_group_barrier(b_, map_);
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
        // What is stored last of a row's numbers is one warp's to compute: the others are done.
        if (map_.rows && !together && !run_ && map_.group > kWarp && phase.reductions.empty() &&
            number_of_phase + 1 == nest_.phases.size()) {
            emit_if(b_, b_.CreateICmpULT(lane_, number(kWarp)),
                    [&] { emit_loop(phase, together, lanes); });
            return {};
        }
        std::vector<Partial> results = map_.single && !phase.loops.empty()
                                           ? emit_pieces(number_of_phase)
                                           : emit_loop(phase, together, lanes);
        if (together)
            GroupReduction(context_, module_, map_, thread_).run(phase, results, turn());
        else if (part_ && map_.single && !results.empty())
            GroupReduction(context_, module_, map_, thread_).run_parts(phase, results);
        if ((map_.rows || (part_ && map_.single)) && read_later(number_of_phase)) barrier();
        return results;
    }

    BodyEmitter body_of(const Phase& phase) {
        BodyEmitter body(context_, index_, buffers_, {nest_.round_intermediates});
        body.begin(phase.insts);
        body.reduced = [this, &phase](const Inst& inst) {
            const Partial& p = results_[static_cast<std::size_t>(inst.phase)]
                                       [static_cast<std::size_t>(inst.reduction)];
            if (inst.component == 1) return Lanes{p.index};
            return map_.as_stored ? Lanes{of_its_own(p.value.re, phase), p.value.im} : p.value;
        };
        return body;
    }
    // A row's number, so that what is computed of it is not kept for all elements either.
    IrValue of_its_own(IrValue number, const Phase& phase) {
        if (!number->getType()->isFloatTy()) return number;
        return b_.CreateBitCast(of_phase(b_.CreateBitCast(number, b_.getInt32Ty()), phase),
                                b_.getFloatTy());
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
                bind_flat(outer_, b_.CreateAdd(point, number(k * map_.threads)));
                if (storing)
                    store(phase, bodies[k], false);
                else
                    bodies.emplace_back(body_of(phase)).emit_all();
                index_.leave_scope();
            }
    }

    // Each thread has `each` pieces of the row, a group's width apart, or fewer: then it works on
    // the last one along with that one's owner, and what it finds does not count.
    std::vector<Partial> emit_pieces(std::size_t number_of_phase) {
        const Phase& phase = nest_.phases[number_of_phase];
        std::vector<BodyEmitter> bodies;
        std::vector<Partial> results;
        // All of a long row's results do not fit into registers at once.
        const bool by_parts = map_.as_stored && phase.reductions.empty();
        const unsigned at_once = by_parts ? kStoredAtOnce : map_.each;
        unsigned stored = 0;
        const auto store_computed = [&](unsigned computed) {
            const unsigned piece = piece_;
            for (; stored < computed; ++stored) {
                piece_ = stored;
                store_piece(phase, bodies[stored]);
            }
            piece_ = piece;
        };
        bodies.reserve(map_.each);
        for (piece_ = 0; piece_ < map_.each; ++piece_) {
            if (piece_ - stored == at_once) store_computed(piece_);
            IrValue active = enter_piece(phase);
            compute_piece(phase, bodies.emplace_back(body_of(phase)));
            for (std::size_t r = 0; r < phase.reductions.size(); ++r) {
                const Reduction& reduction = phase.reductions[r];
                const Inst* stored = extremum_as_stored(phase, reduction);
                Partial next =
                    stored ? Partial{Lanes{words_of_piece(phase, reduction, *stored, active)}}
                           : piece_of(reduction, bodies.back(), active);
                if (piece_ == 0)
                    results.push_back(next);
                else if (stored)
                    results[r].value.re =
                        extremum_of_words(reduction, *stored, results[r].value.re, next.value.re);
                else
                    results[r] = combine(context_, reduction, results[r], next);
            }
            leave_piece();
        }
        for (std::size_t r = 0; r < results.size(); ++r) {
            if (const Inst* stored = extremum_as_stored(phase, phase.reductions[r]))
                results[r].value.re = from_storage(context_, type_of(*stored), results[r].value.re);
            if (map_.rows) results[r] = across_lanes(context_, phase.reductions[r], results[r]);
        }
        if (!results.empty() && map_.rows) ask_ahead(number_of_phase);
        store_computed(map_.each);
        return results;
    }

    // Binds the phase's loop to a thread's piece; returns whether there is one, or null for always.
    IrValue enter_piece(const Phase& phase) {
        // Of a row, neighbouring threads have neighbouring pieces; of columns, warps have rows.
        const unsigned width = map_.rows ? map_.group : map_.parts;
        IrValue active = nullptr, piece = map_.rows ? lane_ : part_;
        if (piece == nullptr) piece = number(0);
        if (piece_ > 0) piece = b_.CreateAdd(piece, number(std::uint64_t{piece_} * width));
        if (static_cast<std::int64_t>(piece_ + 1) * width > map_.pieces) {
            IrValue last = number(static_cast<std::uint64_t>(map_.pieces - 1));
            active = b_.CreateICmpULE(piece, last);
            piece = b_.CreateSelect(active, piece, last);
        }
        index_.enter_scope();
        const Expr var = phase.loops[0].var;
        const bool wide = map_.rows && map_.lanes > 1;
        if (wide) index_.set_vector(var, map_.lanes, map_.lanes);
        index_.bind(var, wide ? b_.CreateMul(piece, number(map_.lanes)) : piece);
        return active;
    }
    void leave_piece() {
        if (map_.rows && map_.lanes > 1) index_.clear_vector();
        index_.leave_scope();
    }

    void emit_inst(const Phase& phase, BodyEmitter& body, InstId i) {
        const auto number_of_phase = static_cast<std::size_t>(&phase - nest_.phases.data());
        if (!beside_one_.empty() && beside_one_[number_of_phase][i]) {
            MathContext math{b_, context_.target};
            IrValue x = body.value(phase.insts[i].operands[0]).re;
            body.preset(i, {emit_exp_beside_one(math, x)});
        }
        body.emit(i);
    }

    void compute_piece(const Phase& phase, BodyEmitter& body) {
        for (InstId i = 0; i < phase.insts.size(); ++i) {
            const Inst& inst = phase.insts[i];
            if (inst.kind != InstKind::Load) {
                emit_inst(phase, body, i);
                continue;
            }
            if (const Lanes* before = of_row(inst)) {
                body.preset(i, *before);
            } else if (const auto before = kept(phase, inst)) {
                body.preset(i, *before);
            } else if (map_.as_stored && stays_narrow(inst)) {
                IrValue raw = load_raw(phase, inst);
                keep(phase, inst.buffer, inst.offset, {raw}, true);
                const DType type = kernel_.buffers[static_cast<std::size_t>(inst.buffer)].dtype;
                body.preset(i, Lanes{from_storage(context_, type, raw)});
            } else {
                body.emit(i);
                // Not where a mask may have left nothing.
                if (inst.mask == kNone) keep(phase, inst.buffer, inst.offset, body.value(i));
            }
        }
        for (const Store& s : phase.stores)
            if (in_registers_[static_cast<std::size_t>(s.buffer)])
                keep(phase, s.buffer, s.offset, body.value(s.value));
        for (const Store& s : phase.stores) {
            if (s.mode != StoreMode::Sum) continue;
            const auto [sum, type] = sums_.at({&s, piece_});
            IrValue term = splat(b_, body.value(s.value).re, map_.lanes);
            b_.CreateStore(b_.CreateFAdd(b_.CreateLoad(type, sum), term), sum);
        }
    }

    DType type_of(const Inst& load) const {
        return kernel_.buffers[static_cast<std::size_t>(load.buffer)].dtype;
    }
    // The load that a maximum or minimum is of, where its elements are at hand as they lie in
    // memory: the greatest of them is the greatest widened one, and two are compared at a time.
    const Inst* extremum_as_stored(const Phase& phase, const Reduction& r) const {
        if (!map_.as_stored || map_.lanes % 2 != 0 || context_.target.gpu_capability() < 80 ||
            (r.op != ReduceOp::Max && r.op != ReduceOp::Min) || r.dtype != DType::F32 ||
            has_bound(phase))
            return nullptr;
        const Inst* i = &phase.insts[r.value];
        while (i->kind == InstKind::Prim && i->prim == Prim::Convert && i->dtype == DType::F32)
            i = &phase.insts[i->operands[0]];
        const bool plain = i->kind == InstKind::Load && is_reduced_float(type_of(*i)) &&
                           stays_narrow(*i) && contains(i->offset, phase.loops[0].var);
        return plain ? i : nullptr;
    }
    IrValue words_of_piece(const Phase& phase, const Reduction& r, const Inst& load,
                           IrValue active) {
        IrValue raw = kept_.at({load.buffer, common(phase, load.offset).node(), piece_}).value.re;
        if (!active) return raw;
        const std::uint64_t infinity = type_of(load) == DType::BF16 ? 0x7f80 : 0x7c00;
        const std::uint64_t none = r.op == ReduceOp::Max ? infinity | 0x8000 : infinity;
        return b_.CreateSelect(active, raw, llvm::ConstantInt::get(raw->getType(), none));
    }
    IrValue extremum_of_words(const Reduction& r, const Inst& load, IrValue x, IrValue y) {
        std::string code = r.op == ReduceOp::Max ? "max.NaN." : "min.NaN.";
        code += type_of(load) == DType::BF16 ? "bf16x2" : "f16x2";
        llvm::Type* word = b_.getInt32Ty();
        auto* type = llvm::FunctionType::get(word, {word, word}, false);
        auto* both = llvm::InlineAsm::get(type, code + " $0, $1, $2;", "=r,r,r", false);
        auto* words = llvm::FixedVectorType::get(word, map_.lanes / 2);
        IrValue p = b_.CreateBitCast(x, words), q = b_.CreateBitCast(y, words);
        for (unsigned k = 0; k < map_.lanes / 2; ++k) {
            IrValue pair =
                b_.CreateCall(both, {b_.CreateExtractElement(p, k), b_.CreateExtractElement(q, k)});
            p = b_.CreateInsertElement(p, pair, k);
        }
        return b_.CreateBitCast(p, x->getType());
    }

    // What the body gives to a reduction, in lanes; one number where registers are short.
    Partial piece_of(const Reduction& r, const BodyEmitter& body, IrValue active) {
        Partial next = value_of(r, body);
        next.value = splat(b_, next.value, map_.lanes);
        if (next.index) next.index = splat(b_, next.index, map_.lanes);
        if (map_.as_stored) next = across_lanes(context_, r, next);
        if (!active) return next;
        std::vector<IrValue> parts;
        map_parts(identity(context_, r, map_.as_stored ? 1 : map_.lanes),
                  [&](IrValue v) { return parts.emplace_back(v); });
        std::size_t k = 0;
        return map_parts(next, [&](IrValue v) { return b_.CreateSelect(active, v, parts[k++]); });
    }

    void store_piece(const Phase& phase, BodyEmitter& body) {
        std::vector<const Store*> stores;
        for (const Store& s : phase.stores)
            if (!in_registers_[static_cast<std::size_t>(s.buffer)] && s.mode != StoreMode::Sum)
                stores.push_back(&s);
        if (stores.empty()) return;
        IrValue active = enter_piece(phase);
        if (row_active_) active = active ? b_.CreateAnd(active, row_active_) : row_active_;
        const auto write = [&] {
            for (const Store* s : stores) body.store(*s);
        };
        for (const Store* s : stores) index_.scalar(s->offset);  // for all threads: see store
        if (active)
            emit_if(b_, active, write);
        else
            write();
        leave_piece();
    }

    // What later phases read of memory that the kernel does not write is on its way while the
    // threads wait for each other, as far as the rows leave registers for it.
    void ask_ahead(std::size_t number_of_phase) {
        const Expr var = nest_.phases[number_of_phase].loops[0].var;
        const std::int64_t left = (kRowBytes - map_.held) / kAccessBytes;
        const unsigned most =
            run_ ? kMostAhead
                 : static_cast<unsigned>(std::clamp<std::int64_t>(left, 0, kMostAhead));
        unsigned asked = 0;
        for (std::size_t q = number_of_phase + 1; q < nest_.phases.size(); ++q) {
            const Phase& later = nest_.phases[q];
            if (later.loops.size() != 1 || !(later.loops[0].var == var)) continue;
            if (has_bound(later)) continue;
            for (InstId i = 0; i < later.insts.size(); ++i) {
                const Inst& load = later.insts[i];
                if (load.kind != InstKind::Load || load.mask != kNone || load.offset.is_constant())
                    continue;
                const KernelBuffer& buffer = kernel_.buffers[static_cast<std::size_t>(load.buffer)];
                if (buffer.written || !is_plain(buffer.dtype)) continue;
                for (piece_ = 0; piece_ < map_.each && asked < most; ++piece_) {
                    if (kept(later, load)) continue;
                    enter_piece(later);
                    keep(later, load.buffer, load.offset, {load_raw(later, load)}, true);
                    leave_piece();
                    ++asked;
                }
            }
        }
    }

    std::vector<Partial> emit_loop(const Phase& phase, bool together, unsigned lanes) {
        // Lanes are either elements of the loop or neighbouring points, whose results stay apart.
        const unsigned wide = map_.rows ? lanes : map_.lanes;
        Accumulators sums(context_, phase, wide, false);
        BodyEmitter body = body_of(phase);
        const auto at_point = [&] {
            for (InstId i = 0; i < phase.insts.size(); ++i)
                if (const Lanes* before = of_row(phase.insts[i])) body.preset(i, *before);
            for (InstId i = 0; i < phase.insts.size(); ++i) emit_inst(phase, body, i);
            for (std::size_t r = 0; r < phase.reductions.size(); ++r) {
                Partial next = value_of(phase.reductions[r], body);
                sums.add(r, map_parts(next, [&](IrValue v) { return splat(b_, v, wide); }),
                         nullptr);
            }
            store(phase, body, together);
        };
        if (phase.loops.empty()) {
            at_point();
        } else {
            Expr extent = extent_of(phase.loops);
            IrValue begin = together ? lane_ : b_.getInt64(0), end = nullptr;
            IrValue step = number(together ? map_.group : 1);
            if (part_) {
                extent = floor_div(extent, static_cast<int>(map_.parts));
                begin = b_.CreateMul(part_, index_.scalar(extent));
                end = b_.CreateAdd(begin, index_.scalar(extent));
            } else {
                end = index_.scalar(extent);
            }
            // A thread alone asks for several elements before it needs the first.
            unsigned copies = 1;
            if (!together && extent.is_constant() && phase.insts.size() <= kMostRepeated)
                for (unsigned n : {8u, 4u, 2u})
                    if (copies == 1 && extent.constant() % n == 0) copies = n;
            if (copies > 1) step = number(copies);
            if (lanes > 1) {
                begin = b_.CreateMul(begin, number(lanes));
                step = number(static_cast<std::uint64_t>(map_.group) * lanes);
            }
            if (unrolls_inner(phase, together)) {
                emit_windows(phase, at_point);
            } else
                stride_loop("inner", begin, end, step, [&](IrValue flat) {
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
        if (part_ && !map_.single && !results.empty())
            GroupReduction(context_, module_, map_, thread_).run_parts(phase, results);
        return results;
    }

    // Whether a thread walks alone over short loops inside of others: a window of an image.
    bool unrolls_inner(const Phase& phase, bool together) const {
        if (together || part_ || phase.loops.size() < 2) return false;
        const Expr inner = phase.loops.back().extent;
        return inner.is_constant() && extent_of(phase.loops).is_constant() &&
               inner.constant() * static_cast<std::int64_t>(phase.insts.size()) <= kMostUnrolled;
    }
    // The inner loop's places, and in small windows all, are numbers that the code contains.
    template <class AtPoint>
    void emit_windows(const Phase& phase, const AtPoint& at_point) {
        std::vector<Loop> outer = phase.loops, inner;
        std::int64_t unrolled = static_cast<std::int64_t>(phase.insts.size());
        while (!outer.empty() && unrolled * outer.back().extent.constant() <= kMostUnrolled) {
            unrolled *= outer.back().extent.constant();
            inner.insert(inner.begin(), outer.back());
            outer.pop_back();
        }
        const std::int64_t count = extent_of(inner).constant();
        const auto points = [&] {
            for (std::int64_t k = 0; k < count; ++k) {
                index_.enter_scope();
                std::int64_t rest = k;
                for (std::size_t l = inner.size(); l-- > 0;) {
                    const std::int64_t n = inner[l].extent.constant();
                    index_.bind(inner[l].var, b_.getInt64(static_cast<std::uint64_t>(rest % n)));
                    rest /= n;
                }
                at_point();
                index_.leave_scope();
            }
        };
        if (outer.empty()) return points();
        stride_loop("outer", b_.getInt64(0), index_.scalar(extent_of(outer)), b_.getInt64(1),
                    [&](IrValue flat) {
                        index_.enter_scope();
                        bind_flat(outer, flat);
                        points();
                        index_.leave_scope();
                    });
    }

    // Without a loop of its own a phase runs alike in all threads of a point; one of them stores.
    void store(const Phase& phase, BodyEmitter& body, bool together) {
        if (phase.stores.empty()) return;
        auto all = [&] {
            for (const Store& s : phase.stores)
                if (s.mode == StoreMode::Sum)
                    add_up(s, body);
                else
                    body.store(s);
        };
        if (map_.single && !map_.rows)
            for (const Store& s : phase.stores)
                if (stays(s)) of_row_[{s.buffer, s.offset.node()}] = rounded(s, body);
        if (part_) {
            for (const Store& s : phase.stores) index_.scalar(s.offset);
            IrValue first = b_.CreateICmpEQ(part_, b_.getInt64(0));
            emit_if(b_, row_active_ ? b_.CreateAnd(first, row_active_) : first, all);
        } else if (map_.rows && !together) {
            for (const Store& s : phase.stores)
                if (stays(s)) of_row_[{s.buffer, s.offset.node()}] = rounded(s, body);
            // Later phases share what is computed here, so that all threads compute it.
            for (const Store& s : phase.stores) index_.scalar(s.offset);
            IrValue first = b_.CreateICmpEQ(lane_, b_.getInt64(0));
            emit_if(b_, row_active_ ? b_.CreateAnd(first, row_active_) : first, all);
        } else {
            all();
        }
    }

    // A sum over the run in memory: rows too long for registers. The same thread takes an element
    // in each row.
    void add_up(const Store& s, BodyEmitter& body) {
        Inst load;
        load.kind = InstKind::Load;
        load.dtype = DType::F32;
        load.buffer = s.buffer;
        load.offset = s.offset;
        IrValue before = body.load(load).re, term = body.value(s.value).re;
        term = splat(b_, term, lanes_of(before));
        IrValue first = b_.CreateICmpEQ(index_.scalar(run_->var), b_.getInt64(0));
        BodyEmitter sum = body;
        sum.preset(s.value, {b_.CreateSelect(first, term, b_.CreateFAdd(before, term))});
        Store whole = s;
        whole.mode = StoreMode::Write;
        sum.store(whole);
    }

    // A number of the row, which every thread has computed, so that nobody reads it back.
    bool stays(const Store& s) const {
        const DType type = kernel_.buffers[static_cast<std::size_t>(s.buffer)].dtype;
        return s.mask == kNone && s.mode == StoreMode::Write && !s.offset.is_constant() &&
               is_plain(type);
    }
    Lanes rounded(const Store& s, const BodyEmitter& body) {
        return round_to(context_, kernel_.buffers[static_cast<std::size_t>(s.buffer)].dtype,
                        body.value(s.value));
    }
    const Lanes* of_row(const Inst& load) const {
        if (load.kind != InstKind::Load || load.mask != kNone || load.offset.is_constant())
            return nullptr;
        const auto found = of_row_.find({load.buffer, load.offset.node()});
        return found == of_row_.end() ? nullptr : &found->second;
    }

    // Whether a later phase may read from memory what phases up to this one have stored.
    bool read_later(std::size_t phase) const {
        std::vector<bool> stored(kernel_.buffers.size(), false);
        for (const Store& s : nest_.phases[phase].stores)
            stored[static_cast<std::size_t>(s.buffer)] =
                !in_registers_[static_cast<std::size_t>(s.buffer)];
        for (std::size_t p = phase + 1; p < nest_.phases.size(); ++p)
            for (const Inst& i : nest_.phases[p].insts)
                if (i.kind == InstKind::Load && stored[static_cast<std::size_t>(i.buffer)] &&
                    of_row(i) == nullptr)
                    return true;
        return false;
    }

    llvm::Module& module_;
    const Kernel& kernel_;
    const Nest nest_;
    std::vector<Loop> outer_;  // without the run
    std::optional<Loop> run_;
    std::optional<RowCopy> copy_;
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
    IrValue part_ = nullptr;                     // of its columns' rows; null: all
    IrValue row_active_ = nullptr;               // whether there is such a row; null: always
    std::optional<Expr> nest_variable_;          // the phases' loop variables under one name
    std::vector<std::vector<bool>> beside_one_;  // see summed_exponentials.h; empty: none
    std::vector<bool> in_registers_;             // by buffer: scratch rows without memory
    // What adds up over a run, by store and piece; numbers of the row, by place.
    std::map<std::pair<const Store*, unsigned>, std::pair<IrValue, llvm::Type*>> sums_;
    std::map<std::pair<std::int32_t, const ExprNode*>, Lanes> of_row_;
    unsigned piece_ = 0;  // of a thread's, in a row cut into pieces
    struct Kept {
        Lanes value;
        bool raw = false;  // as in memory
    };
    std::map<std::tuple<std::int32_t, const ExprNode*, unsigned>, Kept> kept_;
};

}  // namespace

std::vector<GpuLaunch> emit_nvptx(llvm::Module& module, const Kernel& kernel,
                                  const TargetInfo& target, std::string_view prefix,
                                  const NestForm& form) {
    if (kernel.contraction) throw NotSupported("contractions have no generated form on a GPU");
    std::vector<GpuLaunch> launches;
    for (std::size_t i = 0; i < kernel.nests.size(); ++i) {
        std::string symbol = std::string(prefix) + "_" + std::to_string(i);
        launches.push_back(
            GpuNestEmitter(module, kernel, target, kernel.nests[i], symbol, form).run());
    }
    check_gpu_module(module);
    return launches;
}

}  // namespace ingot::codegen
