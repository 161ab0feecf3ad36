// View operators: metadata as eager computes them, contents as movement prims on the same storage.
#include <ATen/InferSize.h>
#include <ATen/TensorUtils.h>
#include <torch/csrc/autograd/variable.h>

#include <numeric>

#include "trace/lower/call.h"

namespace ingot::trace {

namespace {

std::size_t at(std::int64_t i) { return static_cast<std::size_t>(i); }

/// `n` between the bounds, decided by the example (a guard), so that results stay plain sizes.
c10::SymInt clamp_size(const c10::SymInt& n, const c10::SymInt& low, const c10::SymInt& high) {
    if (n < low) return low;
    return n <= high ? n : high;
}

/// A view under construction: its metadata and its path.
struct Viewer {
    Call& call;
    Promise& base;
    ViewPath path;
    SymInts sizes, strides;
    c10::SymInt offset;
    c10::ScalarType dtype;
    bool conj, neg;  // what PyTorch is to see; the path has it, too

    Viewer(Call& c, const at::Tensor& t)
        : call(c),
          base(c.promise(t)),
          path(base.view()),
          sizes(base.sym_sizes().vec()),
          strides(base.sym_strides().vec()),
          offset(base.sym_storage_offset()),
          dtype(c10::typeMetaToScalarType(base.dtype())),
          conj(base.is_conj()),
          neg(base.is_neg()) {}

    std::int64_t rank() const { return static_cast<std::int64_t>(sizes.size()); }
    /// Where the tensor begins in its storage decides something. Offsets of inputs are not guarded
    /// otherwise.
    void depend_on_place() const {
        const std::int32_t input = base.cell()->input;
        if (input >= 0)
            call.state().inputs[at(input)].offset =
                base.cell()->offset.guard_int(__FILE__, __LINE__);
    }
    void step(Prim prim, Attrs attrs) {
        if ((prim == Prim::Conj || prim == Prim::Neg) && path && path->prim == prim) {
            path = path->parent;  // twice is not at all
            return;
        }
        path = call.state().extend(*base.cell(), path, prim, std::move(attrs));
    }
    void permute(const Ints& dims) {
        SymInts s, t;
        bool identity = true;
        for (std::size_t i = 0; i < dims.size(); ++i) {
            s.push_back(sizes[at(dims[i])]);
            t.push_back(strides[at(dims[i])]);
            identity = identity && dims[i] == static_cast<std::int64_t>(i);
        }
        if (!identity) step(Prim::Permute, {{"dims", dims}});
        sizes = s;
        strides = t;
    }
    /// To sizes and strides that show the same elements in the same row-major order.
    void reshape(SymInts to_sizes_, SymInts to_strides) {
        if (!same(to_sizes_, sizes)) step(Prim::Reshape, {{"sizes", to_sizes(to_sizes_)}});
        sizes = std::move(to_sizes_);
        strides = std::move(to_strides);
    }
    void slice(std::int64_t dim, const c10::SymInt& start, const c10::SymInt& end,
               std::int64_t by) {
        if (!same(start, 0) || !same(end, sizes[at(dim)]) || by != 1) {
            SymInts starts(sizes.size(), 0), ends = sizes;
            Ints steps(sizes.size(), 1);
            starts[at(dim)] = start;
            ends[at(dim)] = end;
            steps[at(dim)] = by;
            step(Prim::Slice,
                 {{"starts", to_sizes(starts)}, {"ends", to_sizes(ends)}, {"steps", steps}});
        }
        offset += start * strides[at(dim)];
        sizes[at(dim)] = by == 1 ? end - start : (end - start + (by - 1)) / by;
        strides[at(dim)] *= by;
    }
    void drop(std::int64_t dim) {
        SymInts s = sizes, t = strides;
        s.erase(s.begin() + dim);
        t.erase(t.begin() + dim);
        reshape(std::move(s), std::move(t));
    }
    void select(std::int64_t dim, const c10::SymInt& index) {
        slice(dim, index, index + 1, 1);
        drop(dim);
    }
    at::Tensor result() {
        at::Tensor view = call.state().view_of(base, path, dtype, sizes, strides, offset);
        set_bits(*view.unsafeGetTensorImpl(), conj, neg);
        return view;
    }
    void give() { call.give(result()); }
};

void view_as_sizes(Call& call, const SymInts& wanted) {
    Viewer v(call, call.tensor("self"));
    const c10::SymDimVector to = at::infer_size_dv(c10::SymIntArrayRef(wanted), numel(v.sizes));
    auto strides = at::detail::computeStride(c10::SymIntArrayRef(v.sizes),
                                             c10::SymIntArrayRef(v.strides), c10::SymDimVector(to));
    if (!strides) throw UserError("view size is not compatible with the tensor's size and stride");
    v.reshape(SymInts(to.begin(), to.end()), SymInts(strides->begin(), strides->end()));
    v.give();
}
void view_dtype(Call& call) {
    Viewer v(call, call.tensor("self"));
    c10::ScalarType to = *call.scalar_type("dtype");
    if (to == v.dtype) return v.give();
    if (v.conj || v.neg) throw UserError("a lazy conjugate or negative as another type");
    DType from = to_dtype(v.dtype), type = to_dtype(to);
    if (bytes(from) == bytes(type) && !is_complex(from) && !is_complex(type)) {
        v.step(Prim::Bitcast, {{"dtype", type}});
        v.dtype = to;
        return v.give();
    }
    throw NotSupported("a view as a type of another width");
}
void lower_view(Call& call) {
    if (call.overload() == "dtype") return view_dtype(call);
    view_as_sizes(call, call.sizes("size"));
}
void lower_reshape_alias(Call& call) {
    Viewer v(call, call.tensor("self"));
    v.reshape(call.sizes("size"), call.sizes("stride"));
    v.give();
}
void lower_permute(Call& call) {
    Viewer v(call, call.tensor("self"));
    Ints dims = wrap_dims(call.ints("dims"), v.rank());
    if (static_cast<std::int64_t>(dims.size()) != v.rank())
        throw UserError("permute names another number of dims");
    v.permute(dims);
    v.give();
}
void swap_dims(Call& call, std::int64_t a, std::int64_t b) {
    Viewer v(call, call.tensor("self"));
    if (v.rank() > 0) {
        Ints dims(v.sizes.size());
        std::iota(dims.begin(), dims.end(), 0);
        std::swap(dims[at(wrap_dim(a, v.rank()))], dims[at(wrap_dim(b, v.rank()))]);
        v.permute(dims);
    }
    v.give();
}
void lower_transpose(Call& call) { swap_dims(call, call.integer("dim0"), call.integer("dim1")); }
void lower_t(Call& call) {
    std::int64_t rank = call.tensor("self").dim();
    if (rank > 2) throw UserError("t() needs at most two dims");
    swap_dims(call, 0, rank < 2 ? 0 : 1);
}
void lower_alias(Call& call) { Viewer(call, call.tensor("self")).give(); }

void lower_expand(Call& call) {
    Viewer v(call, call.tensor("self"));
    SymInts to = call.sizes("size");
    if (to.size() < v.sizes.size()) throw UserError("expand to fewer dims");
    std::size_t shift = to.size() - v.sizes.size();
    SymInts strides(to.size(), 0), spread = to;
    Ints dims;
    bool same = shift == 0;
    for (std::size_t i = to.size(); i-- > 0;) {
        if (i < shift) {
            if (to[i] < 0) throw UserError("expand: -1 for a new dim");
            strides[i] = i + 1 < to.size() ? spread[i + 1] * strides[i + 1] : c10::SymInt(1);
            if (to[i] != 1) strides[i] = 0;
            continue;
        }
        const c10::SymInt size = v.sizes[i - shift];
        if (to[i] == -1) to[i] = spread[i] = size;
        if (size != to[i] && size != 1) throw UserError("expand: sizes do not match");
        strides[i] = size == to[i] ? v.strides[i - shift] : c10::SymInt(0);
        same = same && size == to[i];
    }
    for (std::size_t i = 0; i < v.sizes.size(); ++i)
        dims.push_back(static_cast<std::int64_t>(i + shift));
    if (!same && numel(to) == numel(v.sizes)) {
        v.reshape(to, strides);  // keeps writes through the view possible
    } else if (!same) {
        v.step(Prim::Broadcast, {{"sizes", to_sizes(to)}, {"dims", dims}});
        v.sizes = to;
        v.strides = strides;
    }
    v.give();
}

/// Sizes and strides without the dims of size 1 that are listed (all when `dims` is empty).
void squeeze(Viewer& v, const Ints& dims, bool all) {
    SymInts s, t;
    for (std::int64_t d = 0; d < v.rank(); ++d) {
        bool named = all || std::find(dims.begin(), dims.end(), d) != dims.end();
        if (named && v.sizes[at(d)] == 1) continue;
        s.push_back(v.sizes[at(d)]);
        t.push_back(v.strides[at(d)]);
    }
    v.reshape(std::move(s), std::move(t));
}
void lower_squeeze(Call& call) {
    Viewer v(call, call.tensor("self"));
    bool all = !call.given("dim");
    if (v.rank() > 0) squeeze(v, all ? Ints{} : wrap_dims(call.ints("dim"), v.rank()), all);
    v.give();
}
void lower_unsqueeze(Call& call) {
    Viewer v(call, call.tensor("self"));
    std::int64_t d = wrap_dim(call.integer("dim"), v.rank() + 1);
    SymInts s = v.sizes, t = v.strides;
    const c10::SymInt stride = d < v.rank() ? v.sizes[at(d)] * v.strides[at(d)] : c10::SymInt(1);
    s.insert(s.begin() + d, 1);
    t.insert(t.begin() + d, stride);
    v.reshape(std::move(s), std::move(t));
    v.give();
}
void lower_select(Call& call) {
    Viewer v(call, call.tensor("self"));
    std::int64_t d = wrap_dim(call.integer("dim"), v.rank());
    const c10::SymInt i = call.size("index");
    if (v.rank() == 0) throw UserError("select of a 0-dim tensor");
    const c10::SymInt n = v.sizes[at(d)];
    if (i < -n || i >= n) throw UserError("select: the index is out of range");
    v.select(d, i < 0 ? i + n : i);
    v.give();
}
void lower_slice(Call& call) {
    Viewer v(call, call.tensor("self"));
    std::int64_t d = wrap_dim(call.integer_or("dim", 0), v.rank());
    if (v.rank() == 0) throw UserError("slice of a 0-dim tensor");
    const c10::SymInt n = v.sizes[at(d)];
    const std::int64_t step = call.integer_or("step", 1);
    c10::SymInt start = call.size_or("start", 0), end = call.size_or("end", n);
    if (step <= 0) throw UserError("slice: the step must be positive");
    if (start < 0) start += n;
    if (end < 0) end += n;
    start = clamp_size(start, 0, n);
    end = clamp_size(end, start, n);
    v.slice(d, start, end, step);
    v.give();
}
std::vector<at::Tensor> parts(Call& call, std::int64_t d, const SymInts& lengths) {
    std::vector<at::Tensor> out;
    c10::SymInt start = 0;
    for (const c10::SymInt& n : lengths) {
        Viewer v(call, call.tensor("self"));
        v.slice(d, start, start + n, 1);
        out.push_back(v.result());
        start += n;
    }
    return out;
}
void lower_split(Call& call) {
    at::Tensor self = call.tensor("self");
    if (self.dim() == 0) throw UserError("split of a 0-dim tensor");
    std::int64_t d = wrap_dim(call.integer_or("dim", 0), self.dim());
    const c10::SymInt n = self.sym_size(d), length = call.sizes("split_size")[0];
    if (length < 0 || (length == 0 && n != 0)) throw UserError("split: bad size");
    SymInts lengths;
    for (c10::SymInt left = n; left > 0; left = left - length)
        lengths.push_back(left < length ? left : length);
    if (n == 0) lengths.push_back(0);
    call.give(parts(call, d, lengths));
}
void lower_split_with_sizes(Call& call) {
    at::Tensor self = call.tensor("self");
    std::int64_t d = wrap_dim(call.integer_or("dim", 0), self.dim());
    SymInts lengths = call.sizes("split_sizes");
    if (std::accumulate(lengths.begin(), lengths.end(), c10::SymInt(0)) != self.sym_size(d))
        throw UserError("split_with_sizes: the sizes do not add up");
    call.give(parts(call, d, lengths));
}
void lower_unbind(Call& call) {
    at::Tensor self = call.tensor("self");
    std::int64_t d = wrap_dim(call.integer_or("dim", 0), self.dim());
    std::vector<at::Tensor> out;
    const std::int64_t count = self.size(d);
    for (std::int64_t i = 0; i < count; ++i) {
        Viewer v(call, self);
        v.select(d, i);
        out.push_back(v.result());
    }
    call.give(std::move(out));
}
void lower_diagonal(Call& call) {
    Viewer v(call, call.tensor("self"));
    std::int64_t a = wrap_dim(call.integer_or("dim1", 0), v.rank());
    std::int64_t b = wrap_dim(call.integer_or("dim2", 1), v.rank());
    std::int64_t offset = call.integer_or("offset", 0);
    c10::SymInt length = offset >= 0 ? v.sizes[at(a)].min(v.sizes[at(b)] - offset)
                                     : (v.sizes[at(a)] + offset).min(v.sizes[at(b)]);
    length = length.max(0);
    if (length > 0)
        v.offset += offset >= 0 ? v.strides[at(b)] * offset : v.strides[at(a)] * -offset;
    v.step(Prim::Diagonal, {{"dim1", a}, {"dim2", b}, {"offset", offset}});
    const c10::SymInt stride = v.strides[at(a)] + v.strides[at(b)];
    for (std::int64_t d : {std::max(a, b), std::min(a, b)}) {
        v.sizes.erase(v.sizes.begin() + d);
        v.strides.erase(v.strides.begin() + d);
    }
    v.sizes.push_back(length);
    v.strides.push_back(stride);
    v.give();
}

/// Whether what begins where the tensor does goes along dims of its own, each at most once, or
/// stays in place; the steps to it then.
bool strides_along_own_dims(Viewer& v, const SymInts& sizes, const SymInts& strides) {
    std::vector<bool> used(v.sizes.size(), false);
    Ints order, broadcast;  // of the tensor's dims; where these go
    for (std::size_t i = 0; i < sizes.size(); ++i) {
        if (sizes[i] == 1) continue;
        std::size_t d = 0;
        while (d < used.size() &&
               (used[d] || !same(v.strides[d], strides[i]) || v.sizes[d] < sizes[i]))
            ++d;
        if (d < used.size()) {
            used[d] = true;
            order.push_back(static_cast<std::int64_t>(d));
            broadcast.push_back(static_cast<std::int64_t>(i));
        } else if (!same(strides[i], 0)) {
            return false;
        }
    }
    for (std::size_t k = 0; k < order.size(); ++k) v.slice(order[k], 0, sizes[at(broadcast[k])], 1);
    for (std::int64_t d = v.rank() - 1; d >= 0; --d)
        if (!used[at(d)]) {
            if (v.sizes[at(d)] == 0) return false;
            v.select(d, 0);
            for (std::int64_t& o : order) o -= o > d ? 1 : 0;
        }
    v.permute(order);
    if (!same(v.sizes, sizes))
        v.step(Prim::Broadcast, {{"sizes", to_sizes(sizes)}, {"dims", broadcast}});
    return true;
}

/// What a storage holds, counted in elements of the type of a view of it. Autograd asks for such
/// views: `y.imag.mul_(3)` has it make `imag` of the new `y` again, as view_as_real and as_strided.
struct Counted {
    bool as_real, as_complex;
    c10::SymInt begin, count;

    Counted(const Cell& cell, c10::ScalarType type)
        : as_real(c10::isComplexType(cell.dtype) && type == c10::toRealValueType(cell.dtype)),
          as_complex(c10::isComplexType(type) && cell.dtype == c10::toRealValueType(type)),
          begin(cell.offset),
          count(numel(cell.sizes)) {
        const bool same_width = bytes(to_dtype(cell.dtype)) == bytes(to_dtype(type)) &&
                                !c10::isComplexType(cell.dtype) && !c10::isComplexType(type);
        if (as_real) {
            begin *= 2;
            count *= 2;
        } else if (as_complex) {
            if (begin % 2 != 0 || count % 2 != 0)
                throw NotSupported("as_strided of half a complex number");
            begin = begin / 2;
            count = count / 2;
        } else if (!same_width && cell.dtype != type) {
            throw NotSupported("as_strided of a view as a type of another width");
        }
    }
    /// The storage in its order, as elements of that type.
    void view(Viewer& v, const Cell& cell) const {
        if (as_real) {
            v.step(Prim::ViewAsReal, {});
        } else if (as_complex) {
            v.step(Prim::Reshape, {{"sizes", to_sizes(SymInts{count, 2})}});
            v.step(Prim::ViewAsComplex, {});
        } else if (cell.dtype != v.dtype) {
            v.step(Prim::Bitcast, {{"dtype", to_dtype(v.dtype)}});
        }
    }
};

/// as_strided counts in the storage: on the base, first permuted to the order of its storage.
void lower_as_strided(Call& call) {
    Viewer v(call, call.tensor("self"));
    SymInts sizes = call.sizes("size"), strides = call.sizes("stride");
    const c10::SymInt offset = call.size_or("storage_offset", v.offset);
    if (call.given("storage_offset")) v.depend_on_place();
    if (sizes == v.sizes && strides == v.strides && offset == v.offset) return v.give();
    const Cell& cell = *v.base.cell();
    if (!is_dense({cell.sizes, cell.strides})) {
        Viewer own = v;
        if (same(offset, v.offset) && strides_along_own_dims(own, sizes, strides)) {
            own.sizes = sizes;
            own.strides = strides;
            return own.give();
        }
        throw NotSupported("as_strided of a storage with gaps");
    }
    const Counted storage(cell, v.dtype);
    c10::SymInt last = offset - storage.begin;
    for (std::size_t i = 0; i < sizes.size(); ++i) last += (sizes[i] - 1) * strides[i];
    if (numel(sizes) > 0 && (offset < storage.begin || last >= storage.count))
        throw NotSupported("as_strided beyond the known part of a storage");
    v.path = nullptr;
    if (!is_contiguous({cell.sizes, cell.strides})) {
        Ints order(cell.sizes.size());
        std::iota(order.begin(), order.end(), 0);
        std::stable_sort(order.begin(), order.end(), [&](std::int64_t a, std::int64_t b) {
            return cell.strides[at(a)] > cell.strides[at(b)];
        });
        v.step(Prim::Permute, {{"dims", order}});
    }
    storage.view(v, cell);
    v.step(Prim::AsStrided, {{"sizes", to_sizes(sizes)},
                             {"strides", to_sizes(strides)},
                             {"offset", unwrap(offset - storage.begin)}});
    if (v.conj) v.step(Prim::Conj, {});
    if (v.neg) v.step(Prim::Neg, {});
    v.sizes = sizes;
    v.strides = strides;
    v.offset = offset;
    v.give();
}
void lower_unfold(Call& call) {
    Viewer v(call, call.tensor("self"));
    std::int64_t d = wrap_dim(call.integer("dimension"), v.rank());
    std::int64_t size = call.integer("size"), step = call.integer("step");
    if (v.rank() == 0) throw NotSupported("unfold of a 0-dim tensor");
    const c10::SymInt n = v.sizes[at(d)];
    if (n < size || step <= 0) throw UserError("unfold: bad size or step");
    v.step(Prim::Window, {{"dims", Ints{d}},
                          {"sizes", to_sizes(Ints{size})},
                          {"steps", Ints{step}},
                          {"dilations", Ints{1}}});
    v.sizes.push_back(size);
    v.strides.push_back(v.strides[at(d)]);
    v.sizes[at(d)] = (n - size) / step + 1;
    v.strides[at(d)] *= step;
    v.give();
}
void lower_view_as_real(Call& call) {
    Viewer v(call, call.tensor("self"));
    if (v.conj) throw UserError("view_as_real of a lazy conjugate");
    v.step(Prim::ViewAsReal, {});
    for (c10::SymInt& s : v.strides) s *= 2;
    v.sizes.push_back(2);
    v.strides.push_back(1);
    v.offset *= 2;
    v.dtype = c10::toRealValueType(v.dtype);
    v.give();
}
void lower_view_as_complex(Call& call) {
    Viewer v(call, call.tensor("self"));
    if (v.rank() == 0 || v.sizes.back() != 2 || v.strides.back() != 1)
        throw UserError("view_as_complex needs a last dim of 2 with stride 1");
    v.step(Prim::ViewAsComplex, {});
    v.sizes.pop_back();
    v.strides.pop_back();
    for (c10::SymInt& s : v.strides) {
        if (s % 2 != 0) throw UserError("view_as_complex: odd strides");
        s /= 2;
    }
    v.depend_on_place();
    if (v.offset % 2 != 0) throw UserError("view_as_complex: an odd offset");
    v.offset /= 2;
    v.dtype = c10::toComplexType(v.dtype);
    v.give();
}
/// Conjugation is done when read; to PyTorch the view carries the lazy bit.
void lower_conj(Call& call) {
    Viewer v(call, call.tensor("self"));
    if (c10::isComplexType(v.dtype)) {
        v.step(Prim::Conj, {});
        v.conj = !v.conj;
    }
    v.give();
}
void lower_neg_view(Call& call) {
    Viewer v(call, call.tensor("self"));
    v.step(Prim::Neg, {});
    v.neg = !v.neg;
    v.give();
}

/// Autograd has kept how the tensor was made, which is not how it is made from here on: it is to go
/// by its strides, as eager does. Views that are another type, or conjugates, are not made by
/// strides; there it keeps to the old way in eager, too.
void forget_how_made(const at::Tensor& self) {
    auto* const meta = torch::autograd::impl::get_view_autograd_meta(self);
    if (meta == nullptr || !meta->has_bw_view()) return;
    const torch::autograd::ViewInfo& info = meta->get_backward_view();
    if (!info.has_view_fn() || info.base_.scalar_type() != self.scalar_type() ||
        info.base_.is_conj() != self.is_conj() || info.base_.is_neg() != self.is_neg())
        return;
    const_cast<torch::autograd::ViewInfo&>(info).view_fn_ = nullptr;
}

/// transpose_ and its like: the tensor itself becomes the view.
template <void (*make)(Call&)>
void in_place(Call& call) {
    make(call);
    at::Tensor view = call.results().back().value.toTensor(), self = call.tensor("self");
    Promise& p = call.promise(self);
    Promise& q = call.promise(view);
    if (p.cell()->input >= 0 &&
        (p.sym_sizes() != q.sym_sizes() || p.sym_strides() != q.sym_strides()))
        throw NotSupported("an input's sizes change in place");
    p.become(q.cell(), q.view(), q.sym_sizes().vec(), q.sym_strides().vec(),
             q.sym_storage_offset());
    forget_how_made(self);
    call.results().clear();
    call.give(self);
}

}  // namespace

std::span<const LoweringEntry> view_lowerings() {
    static constexpr LoweringEntry table[] = {
        {"view", lower_view},
        {"_unsafe_view", lower_view},
        {"_reshape_alias", lower_reshape_alias},
        {"permute", lower_permute},
        {"transpose", lower_transpose},
        {"t", lower_t},
        {"alias", lower_alias},
        {"detach", lower_alias},
        {"lift", lower_alias},
        {"expand", lower_expand},
        {"squeeze", lower_squeeze},
        {"unsqueeze", lower_unsqueeze},
        {"select", lower_select},
        {"slice", lower_slice},
        {"split", lower_split},
        {"split_with_sizes", lower_split_with_sizes},
        {"unbind", lower_unbind},
        {"diagonal", lower_diagonal},
        {"as_strided", lower_as_strided},
        {"unfold", lower_unfold},
        {"view_as_real", lower_view_as_real},
        {"view_as_complex", lower_view_as_complex},
        {"_conj", lower_conj},
        {"_neg_view", lower_neg_view},
        {"transpose_", in_place<lower_transpose>},
        {"t_", in_place<lower_t>},
        {"squeeze_", in_place<lower_squeeze>},
        {"unsqueeze_", in_place<lower_unsqueeze>},
        {"as_strided_", in_place<lower_as_strided>},
        {"detach_", in_place<lower_alias>},
    };
    return table;
}

}  // namespace ingot::trace
