// See emit_tiles.h.
#include "codegen/llvm/emit_tiles.h"

#include <llvm/IR/IntrinsicsNVPTX.h>

#include <algorithm>

namespace ingot::codegen {

namespace {

constexpr unsigned kShared = 3;  // address space
constexpr std::int64_t kSide = 32, kNarrowSide = 64, kShortSide = 16;

std::int64_t side(const Loop& loop, std::int64_t wanted) {
    while (wanted > kShortSide && loop.extent.constant() <= wanted / 2) wanted /= 2;
    return wanted;
}

bool is_narrow(DType t) { return bytes(t) == 2 && is_float(t); }

}  // namespace

std::optional<GpuTile> tile_of(const Kernel& kernel, const Nest& nest, IndexEmitter& index) {
    const auto transpose = sched::find_transpose(nest, kernel.buffers);
    if (!transpose) return std::nullopt;
    GpuTile tile;
    tile.transpose = *transpose;
    const Loop &along = nest.loops[transpose->along], &across = nest.loops[transpose->across];
    const bool narrow = transpose->bytes <= 2;
    const std::int64_t wanted = narrow ? kNarrowSide : kSide;
    tile.along = side(along, wanted);
    tile.across = side(across, wanted);
    if (!narrow) return tile;
    // Two neighbours of 16 bits at once, where they lie so in all rows.
    const Phase& phase = nest.phases[0];
    const auto pairs = [&](Expr offset, bool only) {
        const auto stride = index.lane_stride(offset);
        if (!stride || !stride->is_constant()) return false;
        if (!only && stride->is(0)) return true;
        return stride->is(1) && index.alignment(offset) % 2 == 0;
    };
    if (along.extent.constant() % 2 == 0) {
        index.set_vector(along.var, 2, 2);
        if (std::ranges::all_of(transpose->crossing,
                                [&](InstId i) { return pairs(phase.insts[i].offset, true); }))
            tile.lanes_read = 2;
        index.clear_vector();
    }
    if (across.extent.constant() % 2 == 0) {
        index.set_vector(across.var, 2, 2);
        bool all = true;
        for (InstId i = 0; i < phase.insts.size(); ++i) {
            const Inst& inst = phase.insts[i];
            if (std::ranges::find(transpose->crossing, i) != transpose->crossing.end()) continue;
            if (inst.kind == InstKind::Load || inst.kind == InstKind::Index)
                all = all && inst.mask == kNone &&
                      (inst.kind == InstKind::Index || pairs(inst.offset, false));
        }
        for (const Store& s : phase.stores) all = all && pairs(s.offset, true);
        if (all) tile.lanes_written = 2;
        index.clear_vector();
    }
    return tile;
}

Expr tiles_of(const Nest& nest, const GpuTile& tile) {
    Expr n = 1;
    for (std::size_t i = 0; i < nest.loops.size(); ++i) {
        const Expr extent = nest.loops[i].extent;
        if (i == tile.transpose.along)
            n = n * ceil_div(extent, tile.along);
        else if (i == tile.transpose.across)
            n = n * ceil_div(extent, tile.across);
        else
            n = n * extent;
    }
    return n;
}

TileEmitter::TileEmitter(EmitContext& c, IndexEmitter& index, llvm::Module& module,
                         std::span<const BufferRef> buffers, const Nest& nest, const GpuTile& tile,
                         IrValue thread)
    : c_(c),
      b_(c.b),
      index_(index),
      module_(module),
      buffers_(buffers),
      raw_(buffers.begin(), buffers.end()),
      nest_(nest),
      tile_(tile),
      thread_(thread) {
    for (const InstId i : tile_.transpose.crossing) {
        BufferRef& buffer = raw_[static_cast<std::size_t>(nest_.phases[0].insts[i].buffer)];
        if (is_narrow(buffer.dtype)) buffer.dtype = DType::U16;
    }
    slots_.resize(tile_.transpose.crossing.size());
    types_.resize(slots_.size());
}

void TileEmitter::run(IrValue tile) {
    IrValue first_along = nullptr, first_across = nullptr;
    index_.enter_scope();
    // Tiles side by side in what is written are neighbours.
    const auto digit = [&](std::int64_t count) {
        IrValue value = count == 1 ? number(0) : b_.CreateURem(tile, number(count));
        if (count != 1) tile = b_.CreateUDiv(tile, number(count));
        return value;
    };
    const auto count = [](const Loop& l, std::int64_t side) {
        return (l.extent.constant() + side - 1) / side;
    };
    first_across = b_.CreateMul(digit(count(across(), tile_.across)), number(tile_.across));
    first_along = b_.CreateMul(digit(count(along(), tile_.along)), number(tile_.along));
    for (std::size_t i = nest_.loops.size(); i-- > 0;)
        if (i != tile_.transpose.along && i != tile_.transpose.across)
            index_.bind(nest_.loops[i].var, digit(nest_.loops[i].extent.constant()));
    read(first_along, first_across);
    barrier();
    write(first_along, first_across);
    barrier();  // before the next tile
    index_.leave_scope();
}

// The last place where `lanes` neighbours lie, for what is beyond.
IrValue TileEmitter::clamped(IrValue at, const Loop& loop, unsigned lanes) {
    const std::int64_t size = loop.extent.constant();
    const std::int64_t side = &loop == &along() ? tile_.along : tile_.across;
    if (size % side == 0) return at;
    return b_.CreateBinaryIntrinsic(llvm::Intrinsic::smin, at, number(size - lanes));
}

void TileEmitter::enter(Place at, const Loop& wide, unsigned lanes) {
    index_.enter_scope();
    if (lanes > 1) index_.set_vector(wide.var, lanes, lanes);
    index_.bind(along().var, at.along);
    index_.bind(across().var, at.across);
}

void TileEmitter::leave(unsigned lanes) {
    if (lanes > 1) index_.clear_vector();
    index_.leave_scope();
}

void TileEmitter::read(IrValue first_along, IrValue first_across) {
    const Phase& phase = nest_.phases[0];
    const unsigned lanes = tile_.lanes_read;
    const std::int64_t width = tile_.along / lanes;
    const std::int64_t accesses = width * tile_.across / GpuTile::kThreads;
    struct Read {
        IrValue at, value;
        std::size_t slot;
    };
    std::vector<Read> all;
    for (std::int64_t k = 0; k < accesses; ++k) {
        IrValue n = b_.CreateAdd(thread_, number(k * GpuTile::kThreads));
        IrValue u = b_.CreateMul(b_.CreateURem(n, number(width)), number(lanes));
        IrValue v = b_.CreateUDiv(n, number(width));
        const Place at{clamped(b_.CreateAdd(first_along, u), along(), lanes),
                       clamped(b_.CreateAdd(first_across, v), across(), 1)};
        enter(at, along(), lanes);
        BodyEmitter body(c_, index_, raw_, {nest_.round_intermediates});
        body.begin(phase.insts);
        for (std::size_t s = 0; s < slots_.size(); ++s) {
            IrValue value = body.load(phase.insts[tile_.transpose.crossing[s]]).re;
            if (value->getType()->getScalarType()->isIntegerTy(1))
                value = b_.CreateZExt(value, value->getType()->getWithNewBitWidth(8));
            all.push_back({nullptr, splat(b_, value, lanes), s});
            types_[s] = value->getType()->getScalarType();
            if (slots_[s] == nullptr) {
                const std::int64_t pitch = tile_.along + lanes;
                auto* type = llvm::ArrayType::get(types_[s],
                                                  static_cast<std::uint64_t>(pitch * tile_.across));
                slots_[s] = new llvm::GlobalVariable(module_, type, false,
                                                     llvm::GlobalValue::InternalLinkage,
                                                     llvm::UndefValue::get(type), "tile", nullptr,
                                                     llvm::GlobalValue::NotThreadLocal, kShared);
                slots_[s]->setAlignment(llvm::Align(16));
            }
            all.back().at = b_.CreateAdd(b_.CreateMul(v, number(tile_.along + lanes)), u);
        }
        leave(lanes);
    }
    for (const Read& r : all) {
        const auto bytes = r.value->getType()->getPrimitiveSizeInBits().getFixedValue() / 8;
        b_.CreateAlignedStore(r.value, b_.CreateGEP(types_[r.slot], slots_[r.slot], r.at),
                              llvm::Align(bytes));
    }
}

IrValue TileEmitter::from_tile(std::size_t slot, IrValue u, IrValue v) {
    const unsigned lanes = tile_.lanes_written;
    const std::int64_t pitch = tile_.along + tile_.lanes_read;
    IrValue all = lanes > 1 ? llvm::PoisonValue::get(with_lanes(types_[slot], lanes)) : nullptr;
    for (unsigned l = 0; l < lanes; ++l) {
        IrValue row = b_.CreateMul(b_.CreateAdd(v, number(l)), number(pitch));
        IrValue place = b_.CreateGEP(types_[slot], slots_[slot], b_.CreateAdd(row, u));
        IrValue one = b_.CreateLoad(types_[slot], place);
        if (lanes == 1) return one;
        all = b_.CreateInsertElement(all, one, l);
    }
    return all;
}

void TileEmitter::write(IrValue first_along, IrValue first_across) {
    const Phase& phase = nest_.phases[0];
    const unsigned lanes = tile_.lanes_written;
    const std::int64_t width = tile_.across / lanes;
    const std::int64_t accesses = width * tile_.along / GpuTile::kThreads;
    struct Point {
        Place at;
        IrValue active;
        BodyEmitter body;
    };
    std::vector<Point> points;
    for (std::int64_t k = 0; k < accesses; ++k) {
        IrValue n = b_.CreateAdd(thread_, number(k * GpuTile::kThreads));
        IrValue v = b_.CreateMul(b_.CreateURem(n, number(width)), number(lanes));
        IrValue u = b_.CreateUDiv(n, number(width));
        IrValue at_u = b_.CreateAdd(first_along, u), at_v = b_.CreateAdd(first_across, v);
        IrValue active = nullptr;
        const auto inside = [&](IrValue at, const Loop& loop, std::int64_t side) {
            if (loop.extent.constant() % side == 0) return;
            IrValue is = b_.CreateICmpSLT(at, number(loop.extent.constant()));
            active = active ? b_.CreateAnd(active, is) : is;
        };
        inside(at_u, along(), tile_.along);
        inside(at_v, across(), tile_.across);
        const Place at{clamped(at_u, along(), 1), clamped(at_v, across(), lanes)};
        enter(at, across(), lanes);
        BodyEmitter body(c_, index_, buffers_, {nest_.round_intermediates});
        body.begin(phase.insts);
        std::size_t slot = 0;
        for (InstId i = 0; i < phase.insts.size(); ++i) {
            if (slot < slots_.size() && tile_.transpose.crossing[slot] == i) {
                const DType type = buffers_[static_cast<std::size_t>(phase.insts[i].buffer)].dtype;
                IrValue value = from_tile(slot++, u, v);
                if (is_narrow(type))
                    value = from_storage(c_, type, value);
                else if (type == DType::Bool)
                    value = b_.CreateICmpNE(value, llvm::Constant::getNullValue(value->getType()));
                body.preset(i, {value});
                continue;
            }
            body.emit(i);
        }
        leave(lanes);
        points.push_back({at, active, std::move(body)});
    }
    for (Point& p : points) {
        enter(p.at, across(), lanes);
        for (const Store& s : phase.stores) index_.scalar(s.offset);
        const auto all = [&] {
            for (const Store& s : phase.stores) p.body.store(s);
        };
        if (p.active)
            emit_if(b_, p.active, all);
        else
            all();
        leave(lanes);
    }
}

void TileEmitter::barrier() { b_.CreateIntrinsic(llvm::Intrinsic::nvvm_barrier0, {}, {}); }

}  // namespace ingot::codegen
