// Products on Hopper's matrix units.
//
// Each group of four warps multiplies 64 rows by all columns of the block's tile with wgmma, whose
// operands are read from shared memory and whose sums stay in registers. All threads copy the next
// pieces of both operands there (cp.async, 16 bytes each, zeros beyond the edges), in the units'
// swizzle of 128 bytes: the 16 bytes at place c of row r lie at place c ^ (r % 8). A piece is asked
// for stages - 2 steps ahead and one product is in flight while the next is issued, so that one
// barrier a step orders everything: behind it all groups have finished the product before the last,
// whose place the next copy takes. The form is that of CUTLASS's multistage main loop
// (sm90_mma_multistage_gmma_ss); descriptors as in the PTX manual, "Asynchronous warpgroup level
// matrix instructions".
//
// Sums go through shared memory once (each warp its own 16 rows), so that the epilogue, the same
// body as a nest's, runs on eight neighbouring elements a thread with wide, coalesced accesses.
// Rows of an odd number of results begin anywhere: there a row's sums are staged as far behind a
// multiple of eight as its results lie, so that eight of them are still written at once; those at
// the row's two ends are written one by one.
// Blocks are numbered by columns first: those that run together share rows of A. Where B is too
// large to stay in the second cache, they are numbered down bands of rows first, so that each band
// reads it once.
#include "codegen/contraction_gpu/emit_product.h"

#include <llvm/IR/InlineAsm.h>
#include <llvm/IR/Intrinsics.h>
#include <llvm/IR/IntrinsicsNVPTX.h>

#include <algorithm>

#include "codegen/llvm/emit_body.h"
#include "codegen/llvm/gpu_module.h"
#include "codegen/llvm/quick_forms.h"
#include "ir/error.h"

namespace ingot::codegen {

namespace {

constexpr unsigned kShared = 3, kGlobal = 1;    // address spaces
constexpr unsigned kRowBytes = kDepth * 2;      // of a piece in shared memory
constexpr unsigned kCopies = kRowBytes / 16;    // threads that copy a row
constexpr std::uint64_t kBufferAlignment = 16;  // of every buffer: programs see to it
constexpr unsigned kSwizzleRows = 8;
constexpr std::int64_t kStaysInCache = 8 << 20;  // elements of 16 bits
constexpr std::uint64_t kBand = 16;              // tiles one below the other

class ProductEmitter {
  public:
    ProductEmitter(llvm::Module& module, const Kernel& kernel, const TargetInfo& target,
                   std::string symbol, const ProductForm& form, const ProductTile& tile)
        : module_(module),
          kernel_(kernel),
          product_(*kernel.contraction),
          form_(form),
          tile_(tile),
          steps_(static_cast<unsigned>((form.depth + kDepth - 1) / kDepth)),
          b_(module.getContext()),
          context_{b_, target},
          index_(b_) {
        context_.quick_math = std::ranges::all_of(product_.epilogue.stores, [&](const Store& s) {
            const DType t = kernel.buffers[static_cast<std::size_t>(s.buffer)].dtype;
            return is_float(t) && bytes(t) <= 2;
        });
        llvm::FastMathFlags fused;
        fused.setAllowContract(context_.quick_math);
        b_.setFastMathFlags(fused);
        launch_.symbol = std::move(symbol);
        launch_.points = ceil_div(form.rows, static_cast<int>(tile.rows())) * Expr(columns());
        launch_.threads = tile.threads();
        launch_.shared_bytes = Expr(std::int64_t{tile.shared_bytes()});
        launch_.strides = false;
    }

    GpuLaunch run() {
        make_function();
        bind_arguments();
        place_block();
        run_volatile("griddepcontrol.wait; griddepcontrol.launch_dependents;");
        launch_.overlaps = true;
        place_copies();
        const std::vector<IrValue> sums = multiply();
        stage(sums);
        if (form_.odd())
            odd_results();
        else
            epilogue();
        b_.CreateRetVoid();
        return launch_;
    }

  private:
    std::int64_t columns() const { return (form_.columns + tile_.columns - 1) / tile_.columns; }
    llvm::ConstantInt* number(std::uint64_t n) { return b_.getInt32(static_cast<unsigned>(n)); }
    IrValue special(llvm::Intrinsic::ID id) { return b_.CreateIntrinsic(id, {}, {}); }
    IrValue generic(IrValue pointer) { return b_.CreateAddrSpaceCast(pointer, b_.getPtrTy()); }
    IrValue wide(IrValue v) { return b_.CreateZExt(v, b_.getInt64Ty()); }
    void barrier() { run_volatile("bar.sync 0;"); }

    void run_volatile(const std::string& text, const std::string& operands = "",
                      llvm::ArrayRef<IrValue> values = {}) {
        std::vector<llvm::Type*> types;
        for (IrValue v : values) types.push_back(v->getType());
        auto* type = llvm::FunctionType::get(b_.getVoidTy(), types, false);
        b_.CreateCall(llvm::InlineAsm::get(
                          type, text, operands + (operands.empty() ? "" : ",") + "~{memory}", true),
                      values);
    }

    void make_function() {
        llvm::LLVMContext& c = module_.getContext();
        std::vector<llvm::Type*> types(kernel_.buffers.size(), llvm::PointerType::get(c, kGlobal));
        types.insert(types.end(), kernel_.sizes.size(), b_.getInt64Ty());
        types.push_back(llvm::PointerType::get(c, kGlobal));
        auto* type = llvm::FunctionType::get(b_.getVoidTy(), types, false);
        function_ =
            llvm::Function::Create(type, llvm::Function::ExternalLinkage, launch_.symbol, module_);
        function_->setCallingConv(llvm::CallingConv::PTX_Kernel);
        annotate_kernel(*function_, "maxntidx", tile_.threads());
        annotate_kernel(*function_, "minctasm", tile_.blocks);
        b_.SetInsertPoint(llvm::BasicBlock::Create(c, "entry", function_));
        shared_ =
            new llvm::GlobalVariable(module_, llvm::ArrayType::get(b_.getInt8Ty(), 0), false,
                                     llvm::GlobalValue::ExternalLinkage, nullptr, "ingot_tiles",
                                     nullptr, llvm::GlobalValue::NotThreadLocal, kShared);
        shared_->setAlignment(llvm::Align(1024));
    }

    void bind_arguments() {
        unsigned next = 0;
        for (const KernelBuffer& k : kernel_.buffers) {
            BufferRef ref;
            ref.dtype = k.dtype;
            ref.alignment = kBufferAlignment;
            ref.pointer = generic(function_->getArg(next++));
            buffers_.push_back(ref);
        }
        for (const Expr& s : kernel_.sizes) index_.bind(s, function_->getArg(next++));
        context_.error = generic(function_->getArg(next));
    }

    // The block's first row and column, and the thread's place.
    void place_block() {
        IrValue block = special(llvm::Intrinsic::nvvm_read_ptx_sreg_ctaid_x);
        thread_ = special(llvm::Intrinsic::nvvm_read_ptx_sreg_tid_x);
        const auto across = static_cast<std::uint64_t>(columns());
        IrValue row = nullptr, column = nullptr;
        if (form_.rows.is_constant() && form_.columns * form_.depth > kStaysInCache) {
            const auto tall = static_cast<std::uint64_t>(
                (form_.rows.constant() + tile_.rows() - 1) / tile_.rows());
            const std::uint64_t band = std::min<std::uint64_t>(tall, kBand);
            IrValue above = b_.CreateMul(b_.CreateUDiv(block, number(band * across)), number(band));
            IrValue within = b_.CreateURem(block, number(band * across));
            IrValue left = b_.CreateSub(number(tall), above);  // of the last band
            IrValue high =
                b_.CreateSelect(b_.CreateICmpULT(left, number(band)), left, number(band));
            row = b_.CreateAdd(above, b_.CreateURem(within, high));
            column = b_.CreateUDiv(within, high);
        } else {
            row = b_.CreateUDiv(block, number(across));
            column = b_.CreateURem(block, number(across));
        }
        first_row_ = b_.CreateMul(wide(row), b_.getInt64(tile_.rows()));
        first_column_ = b_.CreateMul(wide(column), b_.getInt64(tile_.columns));
        rows_ = index_.scalar(form_.rows);
        IrValue start =
            b_.CreateTrunc(b_.CreatePtrToInt(shared_, b_.getInt64Ty()), b_.getInt32Ty());
        base_ = b_.CreateAnd(b_.CreateAdd(start, number(1023)), number(~1023u));
        offset_ = b_.CreateSub(base_, start);
    }

    // --- copies ---

    struct Source {
        IrValue from;       // i64: the thread's first element, of piece 0
        IrValue row;        // i64: of the whole matrix
        std::int64_t step;  // bytes from one of the thread's rows to the next
        IrValue rows;       // i64: of the whole matrix
        bool all_inside;    // no row is beyond the edge
        unsigned tile_rows;
    };

    unsigned rows_at_once() const { return tile_.threads() / kCopies; }

    Source source(const ProductOperand& operand, IrValue first, IrValue rows, bool all_inside,
                  unsigned tile_rows) {
        IrValue row = b_.CreateAdd(first, wide(copy_row_));
        IrValue element = b_.CreateAdd(
            b_.CreateMul(row, index_.scalar(operand.stride)),
            b_.CreateAdd(wide(b_.CreateMul(copy_place_, number(8))), index_.scalar(operand.base)));
        IrValue start = b_.CreatePtrToInt(function_->getArg(static_cast<unsigned>(operand.buffer)),
                                          b_.getInt64Ty());
        return {b_.CreateAdd(start, b_.CreateMul(element, b_.getInt64(2))),
                row,
                operand.stride.constant() * 2 * rows_at_once(),
                rows,
                all_inside,
                tile_rows};
    }

    void place_copies() {
        copy_place_ = b_.CreateAnd(thread_, number(kCopies - 1));
        copy_row_ = b_.CreateLShr(thread_, number(3));
        IrValue swizzled =
            b_.CreateXor(copy_place_, b_.CreateAnd(copy_row_, number(kSwizzleRows - 1)));
        copy_to_ = b_.CreateAdd(base_, b_.CreateAdd(b_.CreateMul(copy_row_, number(kRowBytes)),
                                                    b_.CreateMul(swizzled, number(16))));
        const bool whole_rows =
            form_.rows.is_constant() && form_.rows.constant() % tile_.rows() == 0;
        a_ = source(form_.a, first_row_, rows_, whole_rows, tile_.rows());
        b_side_ =
            source(form_.b, first_column_, b_.getInt64(static_cast<std::uint64_t>(form_.columns)),
                   form_.columns % tile_.columns == 0, tile_.columns);
    }

    // Piece `step` (i32) of one operand, to `place` (i32, bytes from the first stage).
    void copy(const Source& s, IrValue step, IrValue place) {
        IrValue along = b_.CreateMul(wide(step), b_.getInt64(kRowBytes));
        IrValue deep = nullptr;
        if (form_.depth % kDepth != 0) {
            IrValue element = b_.CreateAdd(b_.CreateMul(step, number(kDepth)),
                                           b_.CreateMul(copy_place_, number(8)));
            deep = b_.CreateICmpULT(element, number(static_cast<std::uint64_t>(form_.depth)));
        }
        IrValue to = b_.CreateAdd(copy_to_, place), from = b_.CreateAdd(s.from, along);
        for (unsigned i = 0; i * rows_at_once() < s.tile_rows; ++i) {
            IrValue inside = deep;
            if (!s.all_inside) {
                IrValue row = b_.CreateAdd(s.row, b_.getInt64(i * rows_at_once()));
                IrValue within = b_.CreateICmpSLT(row, s.rows);
                inside = inside ? b_.CreateAnd(inside, within) : within;
            }
            IrValue size = inside ? b_.CreateSelect(inside, number(16), number(0)) : number(16);
            const auto one = [&] {
                run_volatile("cp.async.cg.shared.global.L2::128B [$0], [$1], 16, $2;", "r,l,r",
                             {b_.CreateAdd(to, number(i * rows_at_once() * kRowBytes)),
                              b_.CreateAdd(from, b_.getInt64(static_cast<std::uint64_t>(
                                                     s.step * static_cast<std::int64_t>(i)))),
                              size});
            };
            // The last copies of a tile that is no multiple of the threads' rows.
            if ((i + 1) * rows_at_once() > s.tile_rows)
                emit_if(b_, b_.CreateICmpULT(copy_row_, number(s.tile_rows - i * rows_at_once())),
                        one);
            else
                one();
        }
    }
    void copy_piece(IrValue step, IrValue place) {
        copy(a_, step, place);
        copy(b_side_, step, b_.CreateAdd(place, number(tile_.rows() * kRowBytes)));
    }
    void end_of_copies() { run_volatile("cp.async.commit_group;"); }

    // --- products ---

    // Where an operand lies for the units: address, 1024 bytes from eight rows to the next eight,
    // swizzle of 128 bytes.
    IrValue descriptor(IrValue address) {
        IrValue place = wide(b_.CreateLShr(b_.CreateAnd(address, number(0x3ffff)), number(4)));
        const std::uint64_t rest =
            (std::uint64_t{1} << 16) | (std::uint64_t{64} << 32) | (std::uint64_t{1} << 62);
        return b_.CreateOr(place, b_.getInt64(rest));
    }

    llvm::StructType* sums_type() {
        return llvm::StructType::get(module_.getContext(),
                                     std::vector<llvm::Type*>(tile_.columns / 2, b_.getFloatTy()));
    }
    // "$0, $1, ..": the sums.
    std::string sums_list() const {
        std::string list;
        for (unsigned i = 0; i < tile_.columns / 2; ++i)
            list += (i ? ", $" : "$") + std::to_string(i);
        return list;
    }
    // Runs `text` over the sums, which it may change, and `more`.
    std::vector<IrValue> with_sums(const std::string& text, const std::vector<IrValue>& sums,
                                   const std::vector<IrValue>& more) {
        std::string operands;
        for (std::size_t i = 0; i < sums.size(); ++i) operands += "=f,";
        for (std::size_t i = 0; i < sums.size(); ++i) operands += std::to_string(i) + ",";
        for (std::size_t i = 0; i < more.size(); ++i) operands += "l,";
        std::vector<IrValue> values = sums;
        values.insert(values.end(), more.begin(), more.end());
        std::vector<llvm::Type*> types;
        for (IrValue v : values) types.push_back(v->getType());
        auto* type = llvm::FunctionType::get(sums_type(), types, false);
        IrValue result =
            b_.CreateCall(llvm::InlineAsm::get(type, text, operands + "~{memory}", true), values);
        std::vector<IrValue> out;
        for (unsigned i = 0; i < sums.size(); ++i) out.push_back(b_.CreateExtractValue(result, i));
        return out;
    }

    // The piece at `place`: four instructions of 16 elements of the sum each.
    std::vector<IrValue> multiply_piece(const std::vector<IrValue>& sums, IrValue place) {
        IrValue group = b_.CreateUDiv(thread_, number(128));
        IrValue at = b_.CreateAdd(base_, place);
        IrValue a = descriptor(b_.CreateAdd(at, b_.CreateMul(group, number(64 * kRowBytes))));
        IrValue b = descriptor(b_.CreateAdd(at, number(tile_.rows() * kRowBytes)));
        const std::string type = form_.dtype == DType::F16 ? "f16" : "bf16";
        // Behind the sums, which count twice: as results and as operands.
        const std::string next = std::to_string(tile_.columns);
        const std::string last = std::to_string(tile_.columns + 1);
        std::string text = "{\n.reg .b64 a, b;\nwgmma.fence.sync.aligned;\n";
        for (unsigned k = 0; k < kDepth / 16; ++k)
            text += "add.s64 a, $" + next + ", " + std::to_string(2 * k) + ";\nadd.s64 b, $" +
                    last + ", " + std::to_string(2 * k) + ";\nwgmma.mma_async.sync.aligned.m64n" +
                    std::to_string(tile_.columns) + "k16.f32." + type + "." + type + " {" +
                    sums_list() + "}, a, b, 1, 1, 1, 0, 0;\n";
        text += "wgmma.commit_group.sync.aligned;\n}";
        return with_sums(text, sums, {a, b});
    }

    // Tells ptxas to leave the loop as it is: it would unroll some tiles' fourfold, which takes it
    // ten times as long, for registers that do not suffice.
    static void keep_rolled(llvm::Instruction& latch) {
        llvm::LLVMContext& c = latch.getContext();
        llvm::Metadata* no =
            llvm::MDNode::get(c, llvm::MDString::get(c, "llvm.loop.unroll.disable"));
        llvm::MDNode* loop = llvm::MDNode::getDistinct(c, {nullptr, no});
        loop->replaceOperandWith(0, loop);
        latch.setMetadata(llvm::LLVMContext::MD_loop, loop);
    }

    std::vector<IrValue> multiply() {
        const unsigned ahead = tile_.stages - 2;
        for (unsigned k = 0; k < ahead; ++k) {
            if (k < steps_) copy_piece(number(k), number(k * tile_.stage_bytes()));
            end_of_copies();
        }
        const unsigned all = tile_.stages * tile_.stage_bytes();
        const auto after = [&](IrValue place) {
            IrValue next = b_.CreateAdd(place, number(tile_.stage_bytes()));
            return b_.CreateSelect(b_.CreateICmpEQ(next, number(all)), number(0), next);
        };
        llvm::BasicBlock* before = b_.GetInsertBlock();
        auto* loop = llvm::BasicBlock::Create(b_.getContext(), "piece", function_);
        auto* done = llvm::BasicBlock::Create(b_.getContext(), "finished", function_);
        b_.CreateBr(loop);
        b_.SetInsertPoint(loop);
        llvm::PHINode* step = b_.CreatePHI(b_.getInt32Ty(), 2, "step");
        llvm::PHINode* here = b_.CreatePHI(b_.getInt32Ty(), 2, "here");
        llvm::PHINode* there = b_.CreatePHI(b_.getInt32Ty(), 2, "there");
        step->addIncoming(number(0), before);
        here->addIncoming(number(0), before);
        there->addIncoming(number(ahead * tile_.stage_bytes()), before);
        std::vector<llvm::PHINode*> phis;
        for (unsigned i = 0; i < tile_.columns / 2; ++i) {
            phis.push_back(b_.CreatePHI(b_.getFloatTy(), 2, "sum"));
            phis.back()->addIncoming(llvm::ConstantFP::get(b_.getFloatTy(), 0), before);
        }
        // The copies of this piece are there, for the units too, and so are all threads.
        run_volatile("cp.async.wait_group " + std::to_string(ahead - 1) +
                     "; fence.proxy.async.shared::cta; bar.sync 0;");
        std::vector<IrValue> sums =
            multiply_piece(std::vector<IrValue>(phis.begin(), phis.end()), here);
        IrValue coming = b_.CreateAdd(step, number(ahead));
        emit_if(b_, b_.CreateICmpULT(coming, number(steps_)), [&] { copy_piece(coming, there); });
        end_of_copies();
        run_volatile("wgmma.wait_group.sync.aligned 1;");
        IrValue next = b_.CreateAdd(step, number(1));
        llvm::BasicBlock* end = b_.GetInsertBlock();
        IrValue next_here = after(here), next_there = after(there);
        step->addIncoming(next, end);
        here->addIncoming(next_here, end);
        there->addIncoming(next_there, end);
        for (std::size_t i = 0; i < phis.size(); ++i) phis[i]->addIncoming(sums[i], end);
        keep_rolled(*b_.CreateCondBr(b_.CreateICmpULT(next, number(steps_)), loop, done));
        b_.SetInsertPoint(done);
        return with_sums("wgmma.wait_group.sync.aligned 0;", sums, {});
    }

    // --- results ---

    IrValue shared_at(IrValue bytes_from_base) {
        return b_.CreateGEP(b_.getInt8Ty(), shared_, b_.CreateAdd(offset_, bytes_from_base));
    }

    // A thread has two neighbouring columns of eight, in rows eight apart.
    void stage(const std::vector<IrValue>& sums) {
        barrier();  // the units have read all pieces
        const unsigned row_bytes = form_.odd() ? odd_row() : tile_.staged_row() * 4;
        warp_ = b_.CreateLShr(thread_, number(5));
        lane_ = b_.CreateAnd(thread_, number(31));
        own_ = b_.CreateMul(warp_, number(16 * row_bytes));
        IrValue row = b_.CreateLShr(lane_, number(2)), pair = b_.CreateAnd(lane_, number(3));
        if (form_.odd())
            stage_odd(sums, row, pair);
        else
            stage_wide(sums, row, pair, row_bytes);
        run_volatile("bar.warp.sync 0xffffffff;");
    }

    void stage_wide(const std::vector<IrValue>& sums, IrValue row, IrValue pair,
                    unsigned row_bytes) {
        IrValue at = b_.CreateAdd(own_, b_.CreateAdd(b_.CreateMul(row, number(row_bytes)),
                                                     b_.CreateMul(pair, number(8))));
        IrValue to = shared_at(at);
        for (unsigned i = 0; i < sums.size(); i += 2) {
            const unsigned place = i / 4 * 32 + (i % 4 / 2) * 8 * row_bytes;
            IrValue both = llvm::PoisonValue::get(with_lanes(b_.getFloatTy(), 2));
            both = b_.CreateInsertElement(both, sums[i], std::uint64_t{0});
            both = b_.CreateInsertElement(both, sums[i + 1], std::uint64_t{1});
            b_.CreateAlignedStore(both, b_.CreateGEP(b_.getInt8Ty(), to, number(place)),
                                  llvm::Align(8));
        }
    }

    // --- results at odd places ---

    DType odd_type() const {
        const Store& s = product_.epilogue.stores[0];
        return kernel_.buffers[static_cast<std::size_t>(s.buffer)].dtype;
    }
    // Bytes of a row of rounded sums in shared memory: neighbouring rows start four banks apart.
    unsigned odd_row() const { return tile_.staged_row() * 2; }
    IrValue row_of_result(IrValue row) {
        return b_.CreateAdd(first_row_, wide(b_.CreateAdd(b_.CreateMul(warp_, number(16)), row)));
    }
    // Where the block's first result of row m lies, in elements.
    IrValue odd_start(IrValue m) {
        index_.enter_scope();
        index_.bind(product_.m[0].var, m);
        index_.bind(product_.n[0].var, first_column_);
        IrValue at = index_.scalar(product_.epilogue.stores[0].offset);
        index_.leave_scope();
        return at;
    }
    // How far that is behind a multiple of eight.
    IrValue shift(IrValue start) {
        return b_.CreateAnd(b_.CreateTrunc(start, b_.getInt32Ty()), number(kEpilogueLanes - 1));
    }

    // The sums, rounded, each as far behind its column as the row begins behind a multiple of 8.
    void stage_odd(const std::vector<IrValue>& sums, IrValue row, IrValue pair) {
        IrValue rows[2];
        for (unsigned h = 0; h < 2; ++h) {
            IrValue at = b_.CreateAdd(row, number(8 * h));
            IrValue place =
                b_.CreateAdd(shift(odd_start(row_of_result(at))), b_.CreateMul(pair, number(2)));
            rows[h] = shared_at(b_.CreateAdd(own_, b_.CreateAdd(b_.CreateMul(at, number(odd_row())),
                                                                b_.CreateMul(place, number(2)))));
        }
        for (unsigned i = 0; i < sums.size(); i += 2) {
            IrValue both = llvm::PoisonValue::get(with_lanes(b_.getFloatTy(), 2));
            both = b_.CreateInsertElement(both, sums[i], std::uint64_t{0});
            both = b_.CreateInsertElement(both, sums[i + 1], std::uint64_t{1});
            IrValue rounded = to_storage(context_, odd_type(), both);
            for (unsigned k = 0; k < 2; ++k)
                b_.CreateAlignedStore(
                    b_.CreateExtractElement(rounded, std::uint64_t{k}),
                    b_.CreateGEP(b_.getInt8Ty(), rows[i % 4 / 2], number(i / 4 * 16 + k * 2)),
                    llvm::Align(2));
        }
    }

    // A row at a time: most lanes have eight results each that are written at once, eight have one
    // before these and one behind them.
    void odd_results() {
        const unsigned whole = tile_.columns / kEpilogueLanes - 1;
        IrValue left =
            b_.CreateSub(b_.getInt64(static_cast<std::uint64_t>(form_.columns)), first_column_);
        IrValue all = b_.getInt64(tile_.columns);
        IrValue columns = b_.CreateTrunc(b_.CreateSelect(b_.CreateICmpSLT(left, all), left, all),
                                         b_.getInt32Ty());
        IrValue out = function_->getArg(static_cast<unsigned>(product_.epilogue.stores[0].buffer));
        IrValue has_piece = b_.CreateICmpULT(lane_, number(whole));
        IrValue has_ends =
            b_.CreateICmpULT(b_.CreateSub(lane_, number(whole)), number(kEpilogueLanes));
        IrValue piece = b_.CreateMul(b_.CreateAdd(lane_, number(1)), number(kEpilogueLanes));
        IrValue first = b_.CreateSub(lane_, number(whole));
        emit_for(b_, "row", b_.getInt64(0), b_.getInt64(16), 1, [&](IrValue r) {
            IrValue row = b_.CreateTrunc(r, b_.getInt32Ty()), m = row_of_result(row);
            IrValue start = odd_start(m), moved = shift(start);
            IrValue end = b_.CreateAdd(columns, moved);
            if (!a_.all_inside) end = b_.CreateSelect(b_.CreateICmpSLT(m, rows_), end, number(0));
            IrValue from = b_.CreateAdd(own_, b_.CreateMul(row, number(odd_row())));
            IrValue to =
                b_.CreateGEP(b_.getInt16Ty(), out,
                             b_.CreateAnd(start, b_.getInt64(~std::uint64_t{kEpilogueLanes - 1})));
            const auto move = [&](IrValue place, llvm::Type* type, unsigned align) {
                IrValue at = b_.CreateMul(place, number(2));
                IrValue v = b_.CreateAlignedLoad(type, shared_at(b_.CreateAdd(from, at)),
                                                 llvm::Align(align));
                b_.CreateAlignedStore(v, b_.CreateGEP(b_.getInt8Ty(), to, at), llvm::Align(align));
            };
            IrValue behind = b_.CreateAdd(piece, number(kEpilogueLanes));
            emit_if(b_, b_.CreateAnd(has_piece, b_.CreateICmpULE(behind, end)),
                    [&] { move(piece, with_lanes(b_.getInt32Ty(), 4), 16); });
            emit_if(b_, has_ends, [&] {
                IrValue inside =
                    b_.CreateAnd(b_.CreateICmpUGE(first, moved), b_.CreateICmpULT(first, end));
                emit_if(b_, inside, [&] { move(first, b_.getInt16Ty(), 2); });
                // Behind the last whole eight, but not the first again.
                IrValue last = b_.CreateAnd(end, number(~(kEpilogueLanes - 1)));
                last =
                    b_.CreateSelect(b_.CreateICmpEQ(last, number(0)), number(kEpilogueLanes), last);
                last = b_.CreateAdd(last, first);
                emit_if(b_, b_.CreateICmpULT(last, end), [&] { move(last, b_.getInt16Ty(), 2); });
            });
        });
    }

    Phase body_phase() const {
        if (!context_.quick_math) return product_.epilogue;
        Nest nest;
        nest.phases.push_back(product_.epilogue);
        return quick_forms(nest).phases[0];
    }

    void epilogue() {
        const Phase phase = body_phase();
        const unsigned across = tile_.columns / kEpilogueLanes, pieces = 16 * across;
        emit_for(b_, "piece", wide(lane_), b_.getInt64(pieces), 32, [&](IrValue flat) {
            IrValue at = b_.CreateTrunc(flat, b_.getInt32Ty());
            IrValue row = b_.CreateUDiv(at, number(across));
            IrValue column =
                b_.CreateMul(b_.CreateURem(at, number(across)), number(kEpilogueLanes));
            IrValue m =
                b_.CreateAdd(first_row_, wide(b_.CreateAdd(b_.CreateMul(warp_, number(16)), row)));
            IrValue n = b_.CreateAdd(first_column_, wide(column));
            IrValue inside = nullptr;
            if (!a_.all_inside) inside = b_.CreateICmpSLT(m, rows_);
            if (!b_side_.all_inside) {
                IrValue within =
                    b_.CreateICmpSLT(n, b_.getInt64(static_cast<std::uint64_t>(form_.columns)));
                inside = inside ? b_.CreateAnd(inside, within) : within;
            }
            const auto body = [&] {
                IrValue place = b_.CreateAdd(
                    own_, b_.CreateAdd(b_.CreateMul(row, number(tile_.staged_row() * 4)),
                                       b_.CreateMul(column, number(4))));
                IrValue sum = b_.CreateAlignedLoad(with_lanes(b_.getFloatTy(), kEpilogueLanes),
                                                   shared_at(place), llvm::Align(16));
                results(phase, m, n, sum);
            };
            if (inside)
                emit_if(b_, inside, body);
            else
                body();
        });
    }

    void results(const Phase& phase, IrValue m, IrValue n, IrValue sum) {
        index_.enter_scope();
        index_.set_vector(product_.n[0].var, kEpilogueLanes, kEpilogueLanes);
        index_.bind(product_.m[0].var, m);
        index_.bind(product_.n[0].var, n);
        BodyEmitter body(context_, index_, buffers_, {product_.round_intermediates});
        body.accumulator = [&](const Inst&) { return Lanes{sum}; };
        body.begin(phase.insts);
        body.emit_all();
        for (const Store& s : phase.stores) body.store(s);
        index_.clear_vector();
        index_.leave_scope();
    }

    llvm::Module& module_;
    const Kernel& kernel_;
    const Contraction& product_;
    const ProductForm form_;
    const ProductTile tile_;
    const unsigned steps_;
    llvm::IRBuilder<> b_;
    EmitContext context_;
    IndexEmitter index_;
    GpuLaunch launch_;
    llvm::Function* function_ = nullptr;
    llvm::GlobalVariable* shared_ = nullptr;
    std::vector<BufferRef> buffers_;
    IrValue thread_ = nullptr, warp_ = nullptr, lane_ = nullptr;
    IrValue first_row_ = nullptr, first_column_ = nullptr, rows_ = nullptr;  // i64
    IrValue base_ = nullptr, offset_ = nullptr;  // of the first stage: address, from the array
    IrValue own_ = nullptr;                      // the warp's staged sums, from the first stage
    IrValue copy_place_ = nullptr, copy_row_ = nullptr, copy_to_ = nullptr;
    Source a_{}, b_side_{};
};

}  // namespace

GpuLaunch emit_gpu_product(llvm::Module& module, const Kernel& kernel, const TargetInfo& target,
                           const std::string& symbol, const ProductTile& tile) {
    const auto form = product_form(kernel);
    if (!form) throw NotSupported("a contraction without a generated form on a GPU");
    if (target.gpu_capability() != kProductCapability || !target.cpu.ends_with('a'))
        throw NotSupported("generated products need a GPU of compute capability 9.0");
    GpuLaunch launch = ProductEmitter(module, kernel, target, symbol, *form, tile).run();
    check_gpu_module(module);
    return launch;
}

GpuLaunch emit_gpu_product(llvm::Module& module, const Kernel& kernel, const TargetInfo& target,
                           const std::string& symbol) {
    const auto form = product_form(kernel);
    if (!form) throw NotSupported("a contraction without a generated form on a GPU");
    return emit_gpu_product(module, kernel, target, symbol, tile_of(*form));
}

}  // namespace ingot::codegen
