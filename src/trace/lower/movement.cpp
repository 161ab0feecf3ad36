// Operators that move elements into a new tensor: cat, flip, roll, pad, tril ...
#include <numeric>

#include "trace/lower/promote.h"

namespace ingot::trace {

namespace {

std::size_t at(std::int64_t i) { return static_cast<std::size_t>(i); }

void lower_cat(Call& call) {
    std::vector<at::Tensor> tensors = call.tensors("tensors");
    if (tensors.empty()) throw UserError("cat of no tensors");
    Emitter& e = call.emit();
    c10::ScalarType type = common_type(tensors);
    // 1-d tensors of size 0 are skipped, whatever the others' rank.
    std::vector<at::Tensor> parts;
    for (const at::Tensor& t : tensors) {
        if (!(t.dim() == 1 && t.sym_size(0) == 0))
            parts.push_back(t);
        else if (t.requires_grad())
            call.read(t);  // its gradient is an empty tensor, not none
    }
    if (parts.empty()) parts.push_back(tensors[0]);
    std::int64_t dim = wrap_dim(call.integer_or("dim", 0), parts[0].dim());
    if (parts[0].dim() == 0) throw UserError("cat of 0-dim tensors");
    std::vector<ValueId> values;
    SymInts sizes = parts[0].sym_sizes().vec();
    sizes[at(dim)] = 0;
    std::optional<c10::MemoryFormat> format;
    for (const at::Tensor& t : parts) {
        if (t.dim() != static_cast<std::int64_t>(sizes.size()))
            throw UserError("cat: ranks differ");
        for (std::int64_t d = 0; d < t.dim(); ++d)
            if (d != dim && t.sym_size(d) != sizes[at(d)]) throw UserError("cat: sizes differ");
        sizes[at(dim)] += t.sym_size(dim);
        auto f = suggested_format(layout_of(t));
        if (!format) format = f;
        if (*format != f) format = c10::MemoryFormat::Contiguous;
        values.push_back(e.convert(call.read(t), to_dtype(type)));
    }
    ValueId v = values.size() == 1 ? values[0] : e.op(Prim::Concat, values, {{"dim", dim}});
    call.give(v, format_strides(sizes, *format), parts[0].device());
}
/// Of equal tensors, one after another along a new dim. Others are PyTorch's to take apart.
void lower_stack(Call& call) {
    const std::vector<at::Tensor> tensors = call.tensors("tensors");
    if (tensors.empty()) throw UserError("stack of no tensors");
    const SymInts part = tensors[0].sym_sizes().vec();
    const std::int64_t dim = wrap_dim(call.integer_or("dim", 0), tensors[0].dim() + 1);
    Emitter& e = call.emit();
    std::vector<ValueId> values;
    for (const at::Tensor& t : tensors) {
        if (!same(t.sym_sizes(), part) || t.scalar_type() != tensors[0].scalar_type() ||
            suggested_format(layout_of(t)) != c10::MemoryFormat::Contiguous)
            throw NotSupported("a stack of tensors that differ");
        values.push_back(e.unsqueeze(call.read(t), dim));
    }
    SymInts sizes = part;
    sizes.insert(sizes.begin() + dim, static_cast<std::int64_t>(tensors.size()));
    const ValueId v = values.size() == 1 ? values[0] : e.op(Prim::Concat, values, {{"dim", dim}});
    call.give(v, contiguous(sizes), tensors[0].device());
}
void lower_flip(Call& call) {
    at::Tensor self = call.tensor("self");
    Ints dims = wrap_dims(call.ints("dims"), self.dim());
    std::sort(dims.begin(), dims.end());
    ValueId v = call.read(self);
    if (!dims.empty() && self.dim() > 0) v = call.emit().op(Prim::Flip, {v}, {{"dims", dims}});
    call.give(v, preserved_strides(layout_of(self)), self.device());
}
void lower_roll(Call& call) {
    at::Tensor self = call.tensor("self");
    Emitter& e = call.emit();
    Ints shifts = call.ints("shifts"), dims = call.ints("dims");
    SymInts sizes = self.sym_sizes().vec();
    ValueId v = call.read(self);
    bool flat = dims.empty();
    if (flat) {
        if (shifts.size() != 1) throw UserError("roll: shifts without dims");
        v = e.reshape(v, {self.sym_numel()});
        dims = {0};
    }
    if (dims.size() != shifts.size()) throw UserError("roll: as many shifts as dims");
    if (!flat && self.dim() == 0) throw UserError("roll: a number has no dims");
    for (std::size_t i = 0; i < dims.size(); ++i) {
        std::int64_t d = wrap_dim(dims[i], e.rank(v));
        const c10::SymInt n = e.sizes(v)[at(d)];
        if (n == 0) continue;
        const c10::SymInt start = ((n - shifts[i]) % n + n) % n;
        if (start == 0) continue;
        v = e.op(Prim::Concat, {e.slice(v, d, start, n), e.slice(v, d, 0, start)}, {{"dim", d}});
    }
    // Eager joins two slices, which come out in their common memory format.
    const Layout layout = layout_of(self);
    const bool empty = self.sym_numel() == 0;
    call.give(e.reshape(v, sizes),
              empty  ? preserved_strides(layout)
              : flat ? contiguous(sizes)
                     : format_strides(sizes, suggested_format(layout)),
              self.device());
}
void lower_repeat(Call& call) {
    at::Tensor self = call.tensor("self");
    Emitter& e = call.emit();
    SymInts times = call.sizes("repeats"), sizes = self.sym_sizes().vec();
    if (times.size() < sizes.size()) throw UserError("repeat: too few numbers");
    SymInts wide = sizes, grid, out;
    Ints dims;
    wide.insert(wide.begin(), times.size() - sizes.size(), 1);
    for (std::size_t i = 0; i < times.size(); ++i) {
        grid.push_back(times[i]);
        dims.push_back(static_cast<std::int64_t>(grid.size()));
        grid.push_back(wide[i]);
        out.push_back(times[i] * wide[i]);
    }
    ValueId v = e.reshape(call.read(self), wide);
    v = e.op(Prim::Broadcast, {v}, {{"sizes", to_sizes(grid)}, {"dims", dims}});
    call.give(e.reshape(v, out), contiguous(out), self.device());
}
void lower_repeat_interleave(Call& call) {
    if (call.overload() != "self_int")
        throw NotSupported("repeat_interleave with counts in a tensor");
    at::Tensor self = call.tensor("self");
    Emitter& e = call.emit();
    const c10::SymInt times = call.size("repeats");
    ValueId v = call.read(self);
    if (!call.given("dim")) v = e.reshape(v, {self.sym_numel()});
    std::int64_t d = call.given("dim") ? wrap_dim(call.integer("dim"), self.dim()) : 0;
    SymInts out = e.sizes(v), grid = out;
    Ints dims;
    grid.insert(grid.begin() + d + 1, times);
    for (std::int64_t i = 0; i < static_cast<std::int64_t>(out.size()); ++i)
        dims.push_back(i <= d ? i : i + 1);
    v = e.op(Prim::Broadcast, {v}, {{"sizes", to_sizes(grid)}, {"dims", dims}});
    out[at(d)] *= times;
    call.give(e.reshape(v, out), contiguous(out), self.device());
}
void lower_constant_pad(Call& call) {
    at::Tensor self = call.tensor("self");
    SymInts pad = call.sizes("pad");
    auto rank = static_cast<std::size_t>(self.dim());
    if (pad.size() % 2 != 0 || pad.size() / 2 > rank) throw UserError("constant_pad_nd: bad pad");
    SymInts low(rank, 0), high(rank, 0);
    for (std::size_t i = 0; i < pad.size() / 2; ++i) {
        low[rank - 1 - i] = pad[2 * i];
        high[rank - 1 - i] = pad[2 * i + 1];
    }
    Emitter& e = call.emit();
    Scalar value = cast_scalar(call.number_or("value", 0), to_dtype(self.scalar_type()));
    ValueId v = e.pad(call.read(self), low, high, value);
    SymInts sizes = e.sizes(v);
    call.give(v, format_strides(sizes, suggested_format(layout_of(self))), self.device());
}

/// Padding by reflection or repetition: indices computed per dim, elements taken.
void pad_by_index(Call& call, std::size_t spatial, bool reflect) {
    at::Tensor self = call.tensor("self");
    Ints pad = call.ints("padding");
    Emitter& e = call.emit();
    ValueId v = call.read(self);
    std::int64_t rank = self.dim();
    for (std::size_t i = 0; i < spatial; ++i) {
        std::int64_t d = rank - 1 - static_cast<std::int64_t>(i), n = self.size(d);
        std::int64_t low = pad[2 * i], high = pad[2 * i + 1];
        if (low == 0 && high == 0) continue;
        if (low < 0 || high < 0 || (reflect && (low >= n || high >= n)))
            throw NotSupported("padding with negative or too large numbers");
        std::int64_t total = n + low + high;
        ValueId index = e.iota(DType::I64, {total}, 0, -low);
        ValueId zero = e.number(index, 0), last = e.number(index, static_cast<double>(n - 1));
        if (reflect) {
            index = e.op(Prim::Abs, {index});
            ValueId over = e.op(Prim::Maximum, {e.sub(index, last), zero});
            index = e.sub(index, e.mul(over, 2));
        } else {
            index = e.op(Prim::Clamp, {index, zero, last});
        }
        v = e.op(Prim::Take, {v, index}, {{"dims", Ints{d}}});
    }
    SymInts sizes = e.sizes(v);
    // An image with depth and without a batch has the dims of a batch of images, and its format.
    call.give(
        v,
        spatial > 1 ? format_strides(sizes, suggested_format(layout_of(self))) : contiguous(sizes),
        self.device());
}
template <std::size_t spatial>
void lower_reflection_pad(Call& call) {
    pad_by_index(call, spatial, true);
}
template <std::size_t spatial>
void lower_replication_pad(Call& call) {
    pad_by_index(call, spatial, false);
}

void triangle(Call& call, bool lower) {
    at::Tensor self = call.tensor("self");
    Emitter& e = call.emit();
    if (self.dim() < 2) throw UserError("tril needs two dims");
    SymInts sizes = self.sym_sizes().vec();
    auto rank = self.dim();
    ValueId row = e.iota(DType::I64, sizes, rank - 2, call.integer_or("diagonal", 0));
    ValueId column = e.iota(DType::I64, sizes, rank - 1);
    ValueId keep = e.op(lower ? Prim::Le : Prim::Ge, {column, row});
    ValueId x = call.read(self);
    call.give(e.select(keep, x, e.number(x, 0)), contiguous(sizes), self.device());
}
void lower_tril(Call& call) { triangle(call, true); }
void lower_triu(Call& call) { triangle(call, false); }

void lower_diag_embed(Call& call) {
    at::Tensor self = call.tensor("self");
    Emitter& e = call.emit();
    std::int64_t rank = self.dim() + 1, offset = call.integer_or("offset", 0);
    std::int64_t a = wrap_dim(call.integer_or("dim1", -2), rank),
                 b = wrap_dim(call.integer_or("dim2", -1), rank);
    const c10::SymInt n = self.sym_size(-1) + std::abs(offset);
    SymInts sizes = self.sym_sizes().vec();
    sizes.pop_back();
    sizes.insert(sizes.begin() + std::min(a, b), n);
    sizes.insert(sizes.begin() + std::max(a, b), n);
    ValueId zero = e.full_like(
        e.full(to_dtype(self.scalar_type()), sizes, cast_scalar(0, to_dtype(self.scalar_type()))),
        to_dtype(self.scalar_type()), 0);
    ValueId v = e.op(Prim::UpdateDiagonal, {zero, call.read(self)},
                     {{"dim1", a}, {"dim2", b}, {"offset", offset}});
    call.give(v, contiguous(sizes), self.device());
}
void lower_pixel_shuffle(Call& call) {
    at::Tensor self = call.tensor("self");
    Emitter& e = call.emit();
    std::int64_t r = call.integer("upscale_factor"), rank = self.dim();
    if (rank < 3 || r <= 0) throw UserError("pixel_shuffle: too few dims or no factor");
    SymInts s = self.sym_sizes().vec(), lead(s.begin(), s.end() - 3);
    if (s[at(rank - 3)] % (r * r) != 0)
        throw UserError("pixel_shuffle: the channels are no multiple of the factor's square");
    const c10::SymInt c = s[at(rank - 3)] / (r * r), h = s[at(rank - 2)], w = s[at(rank - 1)];
    SymInts grid = lead, out = lead;
    Ints order;
    for (const c10::SymInt& n : SymInts{c, r, r, h, w}) grid.push_back(n);
    auto k = static_cast<std::int64_t>(lead.size());
    for (std::int64_t i = 0; i < k; ++i) order.push_back(i);
    for (std::int64_t i : {0, 3, 1, 4, 2}) order.push_back(k + i);
    for (const c10::SymInt& n : SymInts{c, h * r, w * r}) out.push_back(n);
    ValueId v = e.reshape(e.permute(e.reshape(call.read(self), grid), order), out);
    call.give(v, format_strides(out, suggested_format(layout_of(self))), self.device());
}

/// Channels dealt out to `groups` hands and picked up again.
void lower_channel_shuffle(Call& call) {
    at::Tensor self = call.tensor("self");
    Emitter& e = call.emit();
    const c10::SymInt groups = call.size("groups");
    if (self.dim() < 3 || groups <= 0 || self.sym_size(1) % groups != 0)
        throw UserError("channel_shuffle: channels are dealt out evenly");
    const SymInts sizes = self.sym_sizes().vec();
    SymInts grid = sizes;
    grid[1] = sizes[1] / groups;
    grid.insert(grid.begin() + 1, groups);
    const ValueId v = e.transpose(e.reshape(call.read(self), grid), 1, 2);
    call.give(e.reshape(v, sizes), format_strides(sizes, suggested_format(layout_of(self))),
              self.device());
}

}  // namespace

std::span<const LoweringEntry> movement_lowerings() {
    static constexpr LoweringEntry table[] = {
        {"cat", lower_cat},
        {"stack", lower_stack},
        {"flip", lower_flip},
        {"roll", lower_roll},
        {"repeat", lower_repeat},
        {"repeat_interleave", lower_repeat_interleave},
        {"constant_pad_nd", lower_constant_pad},
        {"reflection_pad1d", lower_reflection_pad<1>},
        {"reflection_pad2d", lower_reflection_pad<2>},
        {"reflection_pad3d", lower_reflection_pad<3>},
        {"replication_pad1d", lower_replication_pad<1>},
        {"replication_pad2d", lower_replication_pad<2>},
        {"replication_pad3d", lower_replication_pad<3>},
        {"tril", lower_tril},
        {"triu", lower_triu},
        {"diag_embed", lower_diag_embed},
        {"pixel_shuffle", lower_pixel_shuffle},
        {"native_channel_shuffle", lower_channel_shuffle},
    };
    return table;
}

}  // namespace ingot::trace
