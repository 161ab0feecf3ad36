// Indexing: index, gather, scatter, embedding and their in-place relatives.
#include <algorithm>
#include <numeric>

#include "trace/lower/indices.h"
#include "trace/lower/promote.h"

namespace ingot::trace {

namespace {

std::size_t at(std::int64_t i) { return static_cast<std::size_t>(i); }

/// Advanced indices made uniform: i64, one common shape, the dims they index.
struct Indices {
    Ints dims;                    // indexed dims of self
    std::vector<ValueId> values;  // of shape `shape`
    SymInts shape;
    bool adjacent = true;
};
Indices read_indices(Call& call, const at::Tensor& self, const char* name) {
    Indices out;
    Emitter& e = call.emit();
    std::vector<at::Tensor> given;
    std::int64_t d = 0;
    for (const at::Tensor& t : call.optional_tensors(name)) {
        if (t.defined()) {
            if (t.scalar_type() == c10::kBool || t.scalar_type() == c10::kByte)
                throw NotSupported("indexing with a mask");
            if (t.scalar_type() != c10::kLong && t.scalar_type() != c10::kInt)
                throw NotSupported("an index that is no integer");
            out.dims.push_back(d);
            given.push_back(t);
            out.shape = given.size() == 1 ? t.sym_sizes().vec()
                                          : broadcast_sizes(out.shape, t.sym_sizes().vec());
        }
        ++d;
    }
    if (d > self.dim()) throw UserError("too many indices");
    if (given.empty()) throw NotSupported("indexing with no index");
    for (const at::Tensor& t : given)
        out.values.push_back(e.expand(e.convert(call.read(t), DType::I64), out.shape));
    for (std::size_t i = 1; i < out.dims.size(); ++i)
        out.adjacent = out.adjacent && out.dims[i] == out.dims[i - 1] + 1;
    return out;
}

/// A boolean mask as the only index of a write is a where.
bool is_mask(const std::vector<at::Tensor>& indices, const at::Tensor& self) {
    return indices.size() == 1 && indices[0].defined() && indices[0].scalar_type() == c10::kBool &&
           indices[0].dim() <= self.dim();
}

void lower_index(Call& call) {
    at::Tensor self = call.tensor("self");
    Emitter& e = call.emit();
    Indices ix = read_indices(call, self, "indices");
    ValueId x = call.read(self);
    Ints dims = ix.dims;
    if (!ix.adjacent) {  // the index dims go to the front
        Ints order = ix.dims;
        for (std::int64_t d = 0; d < self.dim(); ++d)
            if (std::find(ix.dims.begin(), ix.dims.end(), d) == ix.dims.end()) order.push_back(d);
        x = e.permute(x, order);
        for (std::size_t i = 0; i < dims.size(); ++i) dims[i] = static_cast<std::int64_t>(i);
    }
    std::vector<ValueId> operands{x};
    operands.insert(operands.end(), ix.values.begin(), ix.values.end());
    ValueId v = e.op(Prim::Take, operands, {{"dims", dims}});
    SymInts sizes = e.sizes(v);
    // TensorIterator sees the restrided operand (index dims with stride 0) and the index tensors.
    Layout restrided{sizes, {}};
    SymInts index_strides(ix.shape.size(), 0);
    Ints rest;
    for (std::int64_t d = 0; d < self.dim(); ++d) {
        bool indexed = std::find(ix.dims.begin(), ix.dims.end(), d) != ix.dims.end();
        if (!indexed) rest.push_back(d);
    }
    std::int64_t first = ix.adjacent ? ix.dims[0] : 0;
    for (std::int64_t d : rest)
        if (d < first) restrided.strides.push_back(self.sym_stride(d));
    std::size_t position = restrided.strides.size();
    restrided.strides.insert(restrided.strides.end(), index_strides.begin(), index_strides.end());
    for (std::int64_t d : rest)
        if (d >= first) restrided.strides.push_back(self.sym_stride(d));
    std::vector<Layout> layouts{restrided};
    for (const at::Tensor& t : call.optional_tensors("indices")) {
        if (!t.defined()) continue;
        // The index is expanded to the common shape and stands at `position` among ones.
        Layout l{SymInts(sizes.size(), 1), SymInts(sizes.size(), 0)};
        std::size_t shift = ix.shape.size() - at(t.dim());
        for (std::int64_t d = 0; d < t.dim(); ++d) {
            l.sizes[position + shift + at(d)] = t.sym_size(d);
            l.strides[position + shift + at(d)] = t.sym_stride(d);
        }
        layouts.push_back(l);
    }
    call.give(v, iterator_strides(sizes, layouts), self.device());
}

ValueId put(Call& call, const at::Tensor& self, bool accumulate) {
    Emitter& e = call.emit();
    at::Tensor values = call.tensor("values");
    DType type = to_dtype(self.scalar_type());
    std::vector<at::Tensor> given = call.optional_tensors("indices");
    ValueId x = call.read(self);
    if (is_mask(given, self) && !accumulate && values.sym_numel() == 1) {
        ValueId mask = call.read(given[0]);
        SymInts wide = given[0].sym_sizes().vec();
        wide.resize(at(self.dim()), 1);
        mask = e.expand(e.reshape(mask, wide), self.sym_sizes().vec());
        ValueId fill =
            e.expand(e.reshape(value_as(call, values, type), {}), self.sym_sizes().vec());
        return e.select(mask, fill, x);
    }
    Indices ix = read_indices(call, self, "indices");
    Ints order;  // indexed dims first when they are apart
    Ints dims = ix.dims;
    if (!ix.adjacent) {
        order = ix.dims;
        for (std::int64_t d = 0; d < self.dim(); ++d)
            if (std::find(ix.dims.begin(), ix.dims.end(), d) == ix.dims.end()) order.push_back(d);
        x = e.permute(x, order);
        for (std::size_t i = 0; i < dims.size(); ++i) dims[i] = static_cast<std::int64_t>(i);
    }
    SymInts shape;
    SymInts sizes = e.sizes(x);
    for (std::size_t d = 0; d < sizes.size(); ++d) {
        if (static_cast<std::int64_t>(d) == dims[0])
            shape.insert(shape.end(), ix.shape.begin(), ix.shape.end());
        if (std::find(dims.begin(), dims.end(), static_cast<std::int64_t>(d)) == dims.end())
            shape.push_back(sizes[d]);
    }
    std::vector<ValueId> operands{x, e.expand(value_as(call, values, type), shape)};
    operands.insert(operands.end(), ix.values.begin(), ix.values.end());
    ValueId v = e.op(Prim::Put, operands, {{"dims", dims}, {"accumulate", accumulate}});
    if (order.empty()) return v;
    Ints back(order.size());
    for (std::size_t i = 0; i < order.size(); ++i)
        back[at(order[i])] = static_cast<std::int64_t>(i);
    return e.permute(v, back);
}
void lower_index_put(Call& call) {
    at::Tensor self = call.tensor("self");
    call.give(put(call, self, call.flag("accumulate")), preserved_strides(layout_of(self)),
              self.device());
}
ValueId read_without_negative(Call& call, const at::Tensor& index) {
    return without_negative(call.emit(), call.emit().convert(call.read(index), DType::I64));
}
void lower_index_select(Call& call) {
    at::Tensor self = call.tensor("self"), index = call.tensor("index");
    Emitter& e = call.emit();
    if (self.dim() == 0) throw NotSupported("index_select of a 0-dim tensor");
    std::int64_t dim = wrap_dim(call.integer("dim"), self.dim());
    ValueId i = e.reshape(read_without_negative(call, index), {index.sym_numel()});
    ValueId v = e.op(Prim::Take, {call.read(self), i}, {{"dims", Ints{dim}}});
    call.give(v, contiguous(e.sizes(v)), self.device());
}
void lower_embedding(Call& call) {
    at::Tensor weight = call.tensor("weight"), indices = call.tensor("indices");
    Emitter& e = call.emit();
    if (weight.dim() != 2) throw UserError("embedding: the weight must have two dims");
    ValueId v = e.op(Prim::Take, {call.read(weight), read_without_negative(call, indices)},
                     {{"dims", Ints{0}}});
    call.give(v, contiguous(e.sizes(v)), weight.device());
}
void lower_take(Call& call) {
    at::Tensor self = call.tensor("self"), index = call.tensor("index");
    Emitter& e = call.emit();
    ValueId flat = e.reshape(call.read(self), {self.sym_numel()});
    ValueId v = e.op(Prim::Take, {flat, call.read(index)}, {{"dims", Ints{0}}});
    call.give(v, contiguous(index.sym_sizes().vec()), self.device());
}

void check_index(const at::Tensor& index) {
    if (index.scalar_type() != c10::kLong && index.scalar_type() != c10::kInt)
        throw UserError("an index of another type than int32 and int64");
}
/// The part of self (dims other than `dim`) that an index tensor covers.
ValueId cut_to(Emitter& e, ValueId v, const SymInts& sizes, std::int64_t dim) {
    for (std::int64_t d = 0; d < static_cast<std::int64_t>(sizes.size()); ++d)
        if (d != dim && e.sizes(v)[at(d)] != sizes[at(d)]) v = e.slice(v, d, 0, sizes[at(d)]);
    return v;
}
void lower_gather(Call& call) {
    at::Tensor self = call.tensor("self"), index = call.tensor("index");
    Emitter& e = call.emit();
    if (self.dim() == 0 || index.dim() != self.dim())
        throw NotSupported("gather of a 0-dim tensor");
    check_index(index);
    std::int64_t dim = wrap_dim(call.integer("dim"), self.dim());
    ValueId x = cut_to(e, call.read(self), index.sym_sizes().vec(), dim);
    ValueId i = e.convert(call.read(index), DType::I64);
    ValueId v = e.op(Prim::Gather, {x, i}, {{"dim", dim}});
    call.give(v, contiguous(index.sym_sizes().vec()), self.device());
}

/// scatter, scatter_add and scatter_reduce: the part that index covers is changed, the rest kept.
void scatter(Call& call, const std::string& reduce, bool include_self) {
    at::Tensor self = call.tensor("self"), index = call.tensor("index");
    Emitter& e = call.emit();
    DType type = to_dtype(self.scalar_type());
    std::int64_t dim = wrap_dim(call.integer("dim"), self.dim());
    if (self.dim() == 0 || index.dim() != self.dim())
        throw NotSupported("scatter of a 0-dim tensor");
    check_index(index);
    SymInts sizes = index.sym_sizes().vec();
    at::Tensor source = call.given("src") ? operand(call, "src") : operand(call, "value");
    if (call.given("src") && source.scalar_type() != self.scalar_type())
        throw UserError("scatter: a source of another type");
    ValueId b = value_as(call, source, type);
    if (is_wrapped(source) || source.dim() == 0) {
        b = e.expand(b, sizes);
    } else {
        for (std::int64_t d = 0; d < index.dim(); ++d)
            if (e.sizes(b)[at(d)] != sizes[at(d)]) b = e.slice(b, d, 0, sizes[at(d)]);
    }
    ValueId whole = call.read(self), part = cut_to(e, whole, sizes, dim);
    ValueId i = e.convert(call.read(index), DType::I64);
    ValueId v = reduce.empty()
                    ? e.op(Prim::Scatter, {part, i, b}, {{"dim", dim}})
                    : e.op(Prim::ScatterReduce, {part, i, b},
                           {{"dim", dim}, {"reduce", reduce}, {"include_self", include_self}});
    if (part != whole)
        v = e.op(Prim::Update, {whole, v},
                 {{"starts", Sizes(sizes.size(), 0)}, {"steps", Ints(sizes.size(), 1)}});
    call.give(v, contiguous(self.sym_sizes().vec()), self.device());
}
void lower_scatter(Call& call) {
    std::string r = call.given("reduce") ? call.text("reduce") : "";
    scatter(call, r == "add" ? "sum" : r == "multiply" ? "prod" : r, true);
}
void lower_scatter_add(Call& call) { scatter(call, "sum", true); }
void lower_scatter_reduce(Call& call) {
    scatter(call, call.text("reduce"), call.flag("include_self", true));
}

/// index_add, index_copy, index_fill: slices of self along dim.
enum class SliceWrite { Add, Copy, Fill };
template <SliceWrite kind>
void lower_index_write(Call& call) {
    at::Tensor self = call.tensor("self"), index = call.tensor("index");
    Emitter& e = call.emit();
    if (self.dim() == 0) throw NotSupported("index_add of a 0-dim tensor");
    std::int64_t dim = wrap_dim(call.integer("dim"), self.dim());
    DType type = to_dtype(self.scalar_type());
    ValueId i = kind == SliceWrite::Fill ? e.convert(call.read(index), DType::I64)
                                         : read_without_negative(call, index);
    i = e.reshape(i, {index.sym_numel()});
    SymInts shape = self.sym_sizes().vec();
    shape[at(dim)] = index.sym_numel();
    at::Tensor source = operand(call, kind == SliceWrite::Fill ? "value" : "source");
    // Eager broadcasts no slices: sizes differ along dim at most, and only a value has no dims.
    if (kind == SliceWrite::Add && source.dim() > 0 && !same(source.sym_sizes(), shape))
        throw UserError("index_add: a source of other sizes");
    ValueId b = e.expand(value_as(call, source, type), shape);
    if (kind == SliceWrite::Add && call.given("alpha")) {
        c10::Scalar alpha = call.number("alpha");
        if (alpha.isComplex() || alpha.toDouble() != 1)
            b = e.mul(b, e.full(type, shape, cast_scalar(alpha, type)));
    }
    // Numbers of 16 bits are added up in f32 and rounded once: 600 ones are 600, not 256.
    const DType sum = kind == SliceWrite::Add ? compute_type(type) : type;
    ValueId v = e.op(Prim::Put, {e.convert(call.read(self), sum), e.convert(b, sum), i},
                     {{"dims", Ints{dim}}, {"accumulate", kind == SliceWrite::Add}});
    call.give(
        e.convert(v, type),
        kind == SliceWrite::Fill ? preserved_strides(layout_of(self)) : contiguous(e.sizes(v)),
        self.device());
}
void lower_masked_scatter(Call& call) {
    at::Tensor self = call.tensor("self");
    Emitter& e = call.emit();
    SymInts shape = broadcast_sizes(self.sym_sizes().vec(), call.tensor("mask").sym_sizes().vec());
    ValueId mask = e.expand(call.read(call.tensor("mask")), shape);
    ValueId v = e.op(Prim::MaskedScatter,
                     {e.expand(call.read(self), shape), mask, call.read(call.tensor("source"))});
    call.give(v, contiguous(shape), self.device());
}

// ---- functional forms of writes through views: self with a part replaced ----

/// Eager copies the whole storage, so the result has self's strides with their gaps; only where
/// elements are expanded it makes a plain copy.
SymInts strides_of_updated(const Layout& self) {
    if (is_dense(self)) return self.strides;
    std::vector<std::size_t> order(self.sizes.size());
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
        return self.strides[a] < self.strides[b];
    });
    c10::SymInt end = 1;  // of what the dims before span
    for (std::size_t d : order) {
        if (self.sizes[d] == 1) continue;
        if (self.strides[d] == 0) return preserved_strides(self);
        if (self.strides[d] < end) throw NotSupported("an update of overlapping elements");
        end += (self.sizes[d] - 1) * self.strides[d];
    }
    return self.strides;
}
void give_updated(Call& call, ValueId v) {
    at::Tensor self = call.tensor("self");
    call.give(v, strides_of_updated(layout_of(self)), self.device());
}
void lower_slice_scatter(Call& call) {
    at::Tensor self = call.tensor("self");
    std::int64_t d = wrap_dim(call.integer_or("dim", 0), self.dim());
    const c10::SymInt n = self.sym_size(d);
    c10::SymInt start = call.size_or("start", 0);
    if (start < 0) start += n;
    start = start <= 0 ? c10::SymInt(0) : start >= n ? n : start;
    SymInts starts(at(self.dim()), 0);
    Ints steps(at(self.dim()), 1);
    starts[at(d)] = start;
    steps[at(d)] = call.integer_or("step", 1);
    give_updated(
        call, call.emit().op(Prim::Update,
                             {call.read(self), call.emit().convert(call.read(call.tensor("src")),
                                                                   to_dtype(self.scalar_type()))},
                             {{"starts", to_sizes(starts)}, {"steps", steps}}));
}
void lower_select_scatter(Call& call) {
    at::Tensor self = call.tensor("self");
    std::int64_t d = wrap_dim(call.integer("dim"), self.dim());
    const c10::SymInt i = call.size("index");
    SymInts starts(at(self.dim()), 0);
    Ints steps(at(self.dim()), 1);
    starts[at(d)] = i < 0 ? i + self.sym_size(d) : i;
    ValueId part = call.emit().unsqueeze(
        call.emit().convert(call.read(call.tensor("src")), to_dtype(self.scalar_type())), d);
    give_updated(call, call.emit().op(Prim::Update, {call.read(self), part},
                                      {{"starts", to_sizes(starts)}, {"steps", steps}}));
}
void lower_bucketize(Call& call) {
    at::Tensor self = operand(call, "self"), boundaries = call.tensor("boundaries");
    Emitter& e = call.emit();
    if (is_wrapped(self)) throw NotSupported("bucketize of a number");
    DType type = to_dtype(common_type(std::vector<at::Tensor>{self, boundaries}));
    // Boundaries are shared by all elements: one row.
    ValueId x = e.reshape(e.convert(call.read(self), type), {self.sym_numel()});
    ValueId v = e.op(Prim::Searchsorted, {e.convert(call.read(boundaries), type), x},
                     {{"dtype", call.flag("out_int32") ? DType::I32 : DType::I64},
                      {"right", call.flag("right")}});
    call.give(e.reshape(v, self.sym_sizes().vec()), contiguous(self.sym_sizes().vec()),
              self.device());
}

}  // namespace

std::span<const LoweringEntry> index_lowerings() {
    static constexpr LoweringEntry table[] = {
        {"index", lower_index},
        {"_unsafe_index", lower_index},
        {"index_put", lower_index_put},
        {"_unsafe_index_put", lower_index_put},
        {"_index_put_impl", lower_index_put},
        {"index_select", lower_index_select},
        {"embedding", lower_embedding},
        {"take", lower_take},
        {"gather", lower_gather},
        {"scatter", lower_scatter},
        {"scatter_add", lower_scatter_add},
        {"scatter_reduce", lower_scatter_reduce},
        {"index_add", lower_index_write<SliceWrite::Add>},
        {"index_copy", lower_index_write<SliceWrite::Copy>},
        {"index_fill", lower_index_write<SliceWrite::Fill>},
        {"masked_scatter", lower_masked_scatter},
        {"slice_scatter", lower_slice_scatter},
        {"select_scatter", lower_select_scatter},
        {"bucketize", lower_bucketize},
    };
    return table;
}

}  // namespace ingot::trace
