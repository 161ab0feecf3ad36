// The driver around the micro-kernels. See contraction.h.
#include "codegen/contraction/contraction.h"

#include <llvm/IR/IntrinsicsX86.h>

#include <algorithm>
#include <string>

#include "codegen/contraction/emitter.h"
#include "codegen/contraction/ir_loop.h"
#include "ir/error.h"

namespace ingot::codegen {

using llvm::Value;

void ContractionEmitter::if_then(Value* condition, const std::function<void()>& body) {
    llvm::Function* f = b_.GetInsertBlock()->getParent();
    auto* then = llvm::BasicBlock::Create(b_.getContext(), "then", f);
    auto* after = llvm::BasicBlock::Create(b_.getContext(), "after", f);
    b_.CreateCondBr(condition, then, after);
    b_.SetInsertPoint(then);
    body();
    b_.CreateBr(after);
    b_.SetInsertPoint(after);
}

llvm::Function* ContractionEmitter::begin_function(const std::string& name,
                                                   llvm::ArrayRef<llvm::Type*> parameters,
                                                   bool is_public) {
    auto* type = llvm::FunctionType::get(b_.getVoidTy(), parameters, false);
    auto* f = llvm::Function::Create(
        type, is_public ? llvm::GlobalValue::ExternalLinkage : llvm::GlobalValue::InternalLinkage,
        name, module_);
    f->addFnAttr(llvm::Attribute::NoUnwind);
    if (!is_public) f->addFnAttr(llvm::Attribute::NoInline);
    b_.SetInsertPoint(llvm::BasicBlock::Create(b_.getContext(), "entry", f));
    buffers_argument_ = f->getArg(0);
    sizes_argument_ = f->getArg(1);
    buffers_.list.clear();
    std::int64_t argument = 0;
    for (const KernelBuffer& buffer : kernel_.buffers) {
        if (buffer.scope != BufferScope::Argument)
            throw NotSupported("contraction: scratch buffers");
        Value* slot = at(b_.getPtrTy(), buffers_argument_, i64(argument++));
        BufferRef ref{b_.CreateLoad(b_.getPtrTy(), slot), buffer.dtype};
        if (d_.streamed[buffers_.list.size()]) make_streamable(b_, ref);
        buffers_.list.push_back(ref);
    }
    symbols_.clear();
    for (std::size_t n = 0; n < kernel_.sizes.size(); ++n) {
        Value* slot = at(b_.getInt64Ty(), sizes_argument_, i64(static_cast<std::int64_t>(n)));
        if (kernel_.sizes[n].is_symbol())
            symbols_[kernel_.sizes[n].node()] = b_.CreateLoad(b_.getInt64Ty(), slot);
    }
    return f;
}

void ContractionEmitter::call(llvm::Function* f, std::vector<Value*> extra) {
    extra.insert(extra.begin(), {buffers_argument_, sizes_argument_, error_argument_});
    b_.CreateCall(f, extra);
}

/// The block's tiles: full ones in a loop, then the rest.
void ContractionEmitter::for_tiles(Value* start, Value* end, const TileBody& body) {
    const int full = d_.heights[0];
    Value* count = b_.CreateSub(end, start);
    // Tiles of matrix units are whole ones or halves.
    if (d_.plan.by_matrix_units()) count = round_up(count, d_.heights.back());
    Value* counted = d_.pad_rest ? b_.CreateAdd(count, i64(full - 1)) : count;
    Value* whole = b_.CreateMul(b_.CreateUDiv(counted, i64(full)), i64(full));
    emit_loop(b_, "tile", i64(0), whole, i64(full), {},
              [&](Value* local, const std::vector<Value*>&) {
                  body(full, b_.CreateAdd(start, local), local);
                  return std::vector<Value*>{};
              });
    // Each smaller height at most once: the rest in binary, or the constant rest itself. A height
    // of which two may be needed (12 = 8 + 4 leaves at most 11 = 8 + 2 + 1) does not occur.
    Value* local = whole;
    for (std::size_t n = 1; n < d_.heights.size(); ++n) {
        const int height = d_.heights[n];
        Value* fits = b_.CreateICmpSGE(b_.CreateSub(count, local), i64(height));
        if_then(fits, [&] { body(height, b_.CreateAdd(start, local), local); });
        local = b_.CreateSelect(fits, b_.CreateAdd(local, i64(height)), local);
    }
}

/// Asks for the image's points that a full tile reads, `local` rows into the block: windows are
/// many short runs, which the processor does not see coming.
void ContractionEmitter::fetch_windows(Value* batch_shift, Value* local) {
    constexpr std::uint32_t kRead = 0, kSecondCache = 2, kData = 1;
    Value* segments = expr(d_.plan.a.segments);
    Value* table =
        at(b_.getPtrTy(), bytes_at(scratch_, d_.scratch.table), b_.CreateMul(local, segments));
    Value* run_bytes = b_.CreateMul(expr(d_.plan.a.run), i64(bytes(d_.dtype)));
    emit_loop(b_, "window", i64(0), b_.CreateMul(segments, i64(d_.heights[0])), [&](Value* n) {
        Value* run = at(b_.getInt8Ty(), b_.CreateLoad(b_.getPtrTy(), at(b_.getPtrTy(), table, n)),
                        batch_shift);
        emit_loop(b_, "line", i64(0), run_bytes, i64(64), {},
                  [&](Value* line, const std::vector<Value*>&) {
                      b_.CreateIntrinsic(llvm::Intrinsic::prefetch, {b_.getPtrTy()},
                                         {at(b_.getInt8Ty(), run, line), b_.getInt32(kRead),
                                          b_.getInt32(kSecondCache), b_.getInt32(kData)});
                      return std::vector<Value*>{};
                  });
    });
}

/// Counts the taps before the first and behind the last that reach into the image: their pointers
/// are all those of zeros, which nobody need multiply.
ContractionEmitter::Taps ContractionEmitter::taps_inside(Value* table, int height) {
    auto* pointers = llvm::FixedVectorType::get(b_.getInt64Ty(), static_cast<unsigned>(height));
    Value* zero = b_.CreatePtrToInt(bytes_at(scratch_, d_.scratch.zero), b_.getInt64Ty());
    zero = b_.CreateVectorSplat(static_cast<unsigned>(height), zero);
    llvm::Function* f = b_.GetInsertBlock()->getParent();
    // Moves `tap` on by `step` while its row of the table is one of zeros.
    const auto skip = [&](Value* begin, Value* end, std::int64_t step) -> Value* {
        auto* look = llvm::BasicBlock::Create(b_.getContext(), "look", f);
        auto* compare = llvm::BasicBlock::Create(b_.getContext(), "compare", f);
        auto* found = llvm::BasicBlock::Create(b_.getContext(), "found", f);
        llvm::BasicBlock* before = b_.GetInsertBlock();
        b_.CreateBr(look);
        b_.SetInsertPoint(look);
        llvm::PHINode* tap = b_.CreatePHI(b_.getInt64Ty(), 2);
        tap->addIncoming(begin, before);
        b_.CreateCondBr(b_.CreateICmpEQ(tap, end), found, compare);
        b_.SetInsertPoint(compare);
        // Counted downwards, a tap is the one before.
        Value* entry = step > 0 ? static_cast<Value*>(tap) : b_.CreateSub(tap, i64(1));
        Value* row = b_.CreateAlignedLoad(
            pointers, at(b_.getPtrTy(), table, b_.CreateMul(entry, i64(height))), llvm::Align(8));
        Value* zeros = b_.CreateAndReduce(b_.CreateICmpEQ(row, zero));
        tap->addIncoming(b_.CreateAdd(tap, i64(step)), compare);
        b_.CreateCondBr(zeros, look, found);
        b_.SetInsertPoint(found);
        return tap;
    };
    Value* first = skip(i64(0), expr(d_.plan.a.segments), 1);
    Value* end = skip(expr(d_.plan.a.segments), first, -1);
    return {first, b_.CreateSub(end, first)};
}

void ContractionEmitter::tiles(Value* batch, Value* start, Value* end, Value* panel_index,
                               Value* is_first_panel) {
    Value* k = units(d_.plan.k);
    Value* n = expr(d_.plan.n);
    Value* first_column = b_.CreateMul(panel_index, i64(columns()));
    Value* count = select_min(b_.CreateSub(n, first_column), i64(columns()));
    const PanelValue right =
        panel(batch, panel_index, first_column, count, bytes_at(scratch_, d_.scratch.panel));
    const std::int64_t distance = d_.b_in_place ? kRuntimeStride : columns();
    const int vectors = d_.plan.tile.vectors;
    // The last panel may need fewer vectors.
    int last_vectors = vectors;
    if (d_.plan.n.is_constant() && d_.plan.n.constant() % columns() != 0)
        last_vectors = static_cast<int>(
            (d_.plan.n.constant() % columns() + d_.plan.tile.lanes - 1) / d_.plan.tile.lanes);
    auto kernel = [&](int height) -> llvm::FunctionCallee {
        auto make = [&](int v) {
            return d_.pack_a ? packed_kernel(module_, shape(height, v), distance)
                             : rows_kernel(module_, shape(height, v), distance);
        };
        llvm::Function* usual = make(vectors);
        if (last_vectors == vectors) return usual;
        Value* is_last = b_.CreateICmpSLT(count, i64(columns()));
        return {usual->getFunctionType(), b_.CreateSelect(is_last, make(last_vectors), usual)};
    };
    Value* shift = d_.batch_shift ? b_.CreateMul(batch, expr(*d_.batch_shift)) : i64(0);
    Value* tile_count = i64(1);
    const std::int64_t row_bytes = std::int64_t{columns()} * bytes(d_.dtype);
    if (looks_ahead()) {
        const int full = d_.heights[0];
        tile_count =
            b_.CreateUDiv(b_.CreateAdd(b_.CreateSub(end, start), i64(full - 1)), i64(full));
    }
    // `from` and `length` of k; what is behind them in B is fetched meanwhile, each tile its share,
    // a little with each k.
    auto pass = [&](Value* from, Value* length, Value* is_last_part) {
        Value* right_part = at(b_.getInt8Ty(), right.address, b_.CreateMul(from, i64(row_bytes)));
        Value* next_step = b_.CreateUDiv(i64(row_bytes), tile_count);
        Value* share_bytes = b_.CreateMul(length, next_step);
        Value* part_end = b_.CreateMul(b_.CreateAdd(from, length), i64(row_bytes));
        Value* behind = at(b_.getInt8Ty(), right.packed ? right.packed : right.address, part_end);
        Value* add = b_.CreateICmpNE(from, i64(0));
        for_tiles(start, end, [&](int height, Value* row, Value* local) {
            const llvm::FunctionCallee f = kernel(height);
            if (fetches_windows() && height == d_.heights[0]) {
                Value* behind_next = b_.CreateAdd(row, i64(2 * std::int64_t{height}));
                if_then(b_.CreateAnd(is_first_panel, b_.CreateICmpSLE(behind_next, end)),
                        [&] { fetch_windows(shift, b_.CreateAdd(local, i64(height))); });
            }
            Value* ldc = i64(columns());
            Value* sums = d_.block_k > 0
                              ? at(element_, scratch_, b_.CreateMul(local, i64(columns())))
                              : scratch_;
            Value* next = at(b_.getInt8Ty(), behind,
                             b_.CreateMul(b_.CreateUDiv(local, i64(d_.heights[0])), share_bytes));
            if (d_.pack_a) {
                Value* a =
                    at(element_, bytes_at(scratch_, d_.scratch.a_packed), b_.CreateMul(local, k));
                a = at(element_, a, b_.CreateMul(from, i64(height)));
                b_.CreateCall(
                    f, {a, length, right_part, right.distance, sums, ldc, add, next, next_step});
            } else {
                Value* segments = expr(d_.plan.a.segments);
                Value* table = at(b_.getPtrTy(), bytes_at(scratch_, d_.scratch.table),
                                  b_.CreateMul(local, segments));
                Value* run = d_.block_k > 0 ? length : units(d_.plan.a.run);
                Value* part_shift = b_.CreateAdd(shift, b_.CreateMul(from, i64(bytes(d_.dtype))));
                Value* rows_of_b = right_part;
                if (d_.skips) {
                    const auto [first, inside] = taps_inside(table, height);
                    table = at(b_.getPtrTy(), table, b_.CreateMul(first, i64(height)));
                    Value* passed = b_.CreateMul(b_.CreateMul(first, run), right.distance);
                    rows_of_b = at(element_, rows_of_b, passed);
                    segments = inside;
                }
                b_.CreateCall(f, {table, segments, run, rows_of_b, right.distance, sums, ldc, add,
                                  part_shift, next, next_step});
            }
            Value* rows =
                d_.pad_rest ? select_min(b_.CreateSub(end, row), i64(height)) : i64(height);
            if_then(is_last_part,
                    [&] { call(epilogue_, {batch, row, rows, first_column, count, sums}); });
        });
    };
    if (d_.block_k == 0) {
        pass(i64(0), k, b_.getTrue());
        return;
    }
    emit_loop(
        b_, "part", i64(0), k, i64(d_.block_k), {}, [&](Value* from, const std::vector<Value*>&) {
            Value* left = b_.CreateSub(k, from);
            pass(from, select_min(left, i64(d_.block_k)), b_.CreateICmpSLE(left, i64(d_.block_k)));
            return std::vector<Value*>{};
        });
}

Value* ContractionEmitter::first_row(Value* block) {
    if (d_.tiles == 0) return b_.CreateMul(block, i64(d_.block_rows));
    Value* tile = b_.CreateUDiv(b_.CreateMul(block, i64(d_.tiles)), expr(d_.blocks));
    return b_.CreateMul(tile, i64(d_.heights[0]));
}

/// The KernelFn.
llvm::Function* ContractionEmitter::main_function() {
    auto* ptr = b_.getPtrTy();
    auto* word = b_.getInt64Ty();
    llvm::Function* f = begin_function(prefix_, {ptr, ptr, word, word, ptr, ptr}, true);
    scratch_ = f->getArg(4);
    error_argument_ = f->getArg(5);
    Value* zero_bytes = expr(d_.scratch.a_rows - d_.scratch.zero);
    b_.CreateMemSet(bytes_at(scratch_, d_.scratch.zero), b_.getInt8(0), zero_bytes,
                    llvm::MaybeAlign(64));
    if (d_.plan.by_matrix_units()) configure_tiles();
    if (d_.image) find_image_steps();
    if (d_.winograd) find_tiles();
    Value* groups = expr(d_.groups);
    Value* blocks = expr(d_.blocks);
    Value* m = expr(d_.plan.m);
    emit_loop(b_, "item", f->getArg(2), f->getArg(3), i64(1), {i64(-1)},
              [&](Value* item, const std::vector<Value*>& carried) {
                  Value* group = b_.CreateURem(item, groups);
                  Value* rest = b_.CreateUDiv(item, groups);
                  // Blocks within batches, or batches within blocks where they share the table.
                  Value* inner = d_.batch_shift ? expr(d_.plan.batch) : blocks;
                  Value* low = b_.CreateURem(rest, inner);
                  Value* high = b_.CreateUDiv(rest, inner);
                  Value* batch = d_.batch_shift ? low : high;
                  Value* block_index = d_.batch_shift ? high : low;
                  Value* block = d_.batch_shift ? high : rest;
                  RowBlock rows{};
                  if (d_.image) {
                      rows = image_block(block_index);
                  } else if (d_.winograd) {
                      rows = tile_rows_of(block_index);
                  } else {
                      Value* is_last = b_.CreateICmpEQ(block_index, b_.CreateSub(blocks, i64(1)));
                      rows.start = first_row(block_index);
                      rows.end =
                          b_.CreateSelect(is_last, m, first_row(b_.CreateAdd(block_index, i64(1))));
                  }
                  if (d_.gradient) {
                      // Neighbours have the same channels of points.
                      Value* channels = b_.CreateUDiv(item, blocks);
                      gradient_item(channels, b_.CreateURem(item, blocks),
                                    b_.CreateICmpNE(channels, carried[0]));
                      return std::vector<Value*>{channels};
                  }
                  Value* is_fresh = b_.CreateICmpNE(block, carried[0]);
                  if_then(is_fresh, [&] {
                      if (d_.image) return prepare_image(rows);
                      if (d_.winograd) return prepare_tiles(rows);
                      prepare_block(d_.batch_shift ? i64(0) : batch, rows.start, rows.end);
                  });
                  d_.winograd                 ? filter_tiles(batch, rows, group)
                  : d_.plan.by_matrix_units() ? matrix_tiles(batch, rows, group)
                                              : tiles(batch, rows.start, rows.end, group, is_fresh);
                  return std::vector<Value*>{block};
              });
    if (d_.plan.by_matrix_units()) b_.CreateIntrinsic(llvm::Intrinsic::x86_tilerelease, {}, {});
    // Streaming stores are ordered before whatever tells others that the work is done.
    if (std::ranges::find(d_.streamed, true) != d_.streamed.end())
        b_.CreateIntrinsic(llvm::Intrinsic::x86_sse_sfence, {}, {});
    b_.CreateRetVoid();
    return f;
}

KernelCode ContractionEmitter::emit() {
    if (d_.gradient)
        gradient_tables();
    else
        fill_a_ = d_.image ? image_table_function()
                  : d_.plan.a.form == OperandForm::Runs
                      ? table_function("_rows", d_.plan.a, c_.a_insts, d_.rows, d_.plan.m)
                      : compute_a();
    if (d_.plan.b.form == OperandForm::Runs && !d_.gradient)
        fill_b_ = table_function("_columns", d_.plan.b, c_.b_insts, c_.n, d_.plan.n);
    if (d_.b_by_points) fill_points_ = point_table_function();
    if (d_.winograd) fill_points_ = tile_points_function();
    if (d_.plan.b.form == OperandForm::Computed) fill_b_ = compute_b();
    epilogue_ = epilogue_function();
    llvm::Function* f = main_function();
    Launch launch;
    launch.symbol = f->getName().str();
    launch.work = d_.plan.batch * d_.blocks * d_.groups;
    // Some 20 microseconds' worth of FMAs make a thread worth waking.
    const std::int64_t per_item =
        std::max<std::int64_t>(1, std::min(d_.block_rows, or_default(d_.plan.m, d_.block_rows)) *
                                      columns() * d_.group * or_default(d_.plan.k, 512));
    launch.grain = std::max<std::int64_t>(1, 1000000 / per_item);
    launch.scratch_bytes = d_.scratch.total;
    return {{launch}};
}

namespace {
/// Measured where named, one thread; PyTorch's libraries are Intel's, and only its own processors
/// run their best code.
ContractionRates rates_of(Maker maker) {
    if (maker != Maker::Intel) return {};
    // Sapphire Rapids, 230 GFLOP/s a core: sgemm 125 to 180 in all orders of its operands;
    // generated ones 0.85 to 1.05 of it while a block of rows stays in the second cache, and 0.45
    // to 0.8 from the third, which is far. Convolutions of several taps: 0.9 to 1.2 of oneDNN's,
    // and over twice as fast where an image has three channels.
    return {.peak_gflops = 230,
            .generated = 0.54,
            .generated_far = 0.42,
            .vendor = 0.6,
            .vendor_taps = 0.48,
            .vendor_few = 0.12,
            .split = 1.3};
}
}  // namespace

VectorTarget vector_target(const TargetInfo& target) {
    VectorTarget v;
    v.vector_bits = static_cast<int>(target.vector_bits);
    // 28 leave three registers for the operands; fewer broadcasts for each FMA are worth 5 % where
    // a core has two of the widest FMAs a cycle (Intel's).
    v.tile_vectors = target.vector_registers() < 32 ? 12 : target.maker == Maker::Intel ? 28 : 24;
    v.l2_bytes = static_cast<std::int64_t>(target.l2_bytes);
    v.cores = static_cast<int>(target.cores);
    v.bf16_dot = target.avx512bf16;
    v.matrix_units = target.amx_bf16 && target.avx512f;
    v.rates = rates_of(target.maker);
    return v;
}

KernelCode emit_contraction(llvm::Module& module, const Kernel& kernel, const TargetInfo& target,
                            std::string_view symbol_prefix) {
    return ContractionEmitter(module, kernel, target, std::string(symbol_prefix)).emit();
}

}  // namespace ingot::codegen
